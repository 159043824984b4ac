"""First boots in a world that does them harm: the process behind `boots.Boots`, with a shim in front of the C library.

    LD_PRELOAD=bad_disk.so python booting.py BUNDLE CALIBRATION JUDGED FOLDER < requests > answers

A request is a line of JSON. Every first boot is a process of its own, forked from this one:

    machine   "pc" or "jetson"
    name      the state is FOLDER/<name>
    like      the state of this name is copied there first, if it is not there
    at, last  the changes on disk that fail; 0: none
    error     that error number; 0: the process is killed; -1: it is, and what was not synced is lost
    later_s   how much later it is than the clock says
    boot_id   which boot of the machine it is; empty is the one that is
    up_s      for how long it has been up; null is for as long as it is
    deadly    names of rungs whose loading has the process killed
    lost      whether the GPU is lost when it computes

The answer is {"served", "problems"} of a first boot that came to its end, {"error"} of one that ended in an error of
the project, {"killed"} or {"bug"}. All have "waits", what it waited for, and "slept_s", for how long by its own clock;
they have "changes", a list of what was changed on disk, if nothing was to fail.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import onnx  # noqa: F401 - before the fork, so that no child has to
import onnxruntime  # noqa: F401

from engines.tensorrt.fake_bindings import FakeGpu
from fakes.board import AGX_ORIN_64, make_board, make_pc
from lifecycle.first_boot.fake_jetson import Builder, on_jetson, tuned
from lifecycle.test_device_choice import LOST
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import OrinRerankError
from orin_rerank.lifecycle.first_boot.backoff import Moment
from orin_rerank.lifecycle.first_boot.journal import Journal, Outcome
from orin_rerank.lifecycle.first_boot.machine import prepare_and_load
from orin_rerank.lifecycle.first_boot.place import Place
from orin_rerank.lifecycle.first_boot.progress import Step

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.first_boot.progress import Progress


class Clock:
    """A clock that sleeping moves on, and nothing else but time does.

    Args:
        later_s: How much later it is than the clock says.
        boot_id: Which boot it is in; empty is the one that is.
        up_s: For how long that has been up; None is for as long as it is.
        log: A file that is told of every sleep, since the process may be killed.
    """

    def __init__(self, later_s: float, boot_id: str, up_s: float | None, log: Path) -> None:
        self._later_s = later_s
        self._boot_id = boot_id
        self._up_later_s = later_s if up_s is None else up_s - Moment.now().boot_s
        self._log = log

    def now(self) -> Moment:
        moment = Moment.now()
        boot_id = self._boot_id or moment.boot_id
        return Moment(moment.wall_s + self._later_s, boot_id, moment.boot_s + self._up_later_s)

    def sleep(self, seconds: float) -> None:
        self._later_s += seconds
        self._up_later_s += seconds
        with self._log.open("a") as file:
            file.write(f"{seconds}\n")


class Listener:
    """A listener that remembers waits, and kills the process where loading a rung is deadly.

    Args:
        state: The state folder.
        deadly: Names of such rungs.
        log: A file that is told of every wait.
    """

    stopping = False

    def __init__(self, state: Path, deadly: list[str], log: Path) -> None:
        self._state = state
        self._deadly = deadly
        self._log = log

    def __call__(self, progress: Progress) -> None:
        if progress.step is Step.WAIT:
            with self._log.open("a") as file:
                file.write(f"{progress.detail}: {progress.reason}\n")
        elif progress.step is Step.LOAD and self._deadly:
            begun = [rung for rung, entry in Journal(self._state).entries.items() if entry.outcome is Outcome.BEGUN]
            if any(rung.value in self._deadly for rung in begun):
                os.kill(os.getpid(), signal.SIGKILL)


def boot(place: Place, listener: Listener) -> dict[str, object]:
    problems: list[tuple[str, ...]] = []
    try:
        model = prepare_and_load(place, listener, lambda prepared: problems.append(prepared.problems))
    except OrinRerankError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    except BaseException:  # noqa: BLE001 - whatever it is, it is a bug
        return {"bug": traceback.format_exc()}
    return {"served": f"{model.info.precision} by {model.info.name}", "problems": problems[-1]}


class Boots:
    """Takes requests.

    Args:
        bundle: What is prepared.
        calibration: The calibration set.
        judged: The judged set.
        folder: Where everything is written.
    """

    def __init__(self, bundle: Path, calibration: Path, judged: Path, folder: Path) -> None:
        self._folder = folder
        self._inputs = bundle, calibration, judged
        self._pc = make_pc(folder / "pc")
        self._jetson = _orin(folder)
        self._shim = ctypes.CDLL(None).bad_disk
        self._shim.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One first boot, in a process of its own."""
        state = self._folder / request["name"]
        if request["like"] is not None and not state.exists():
            shutil.copytree(self._folder / request["like"], state, symlinks=True)
        out, log, waits, sleeps = (self._folder / name for name in ("answer", "changes", "waits", "sleeps"))
        for file in (out, waits, sleeps):
            file.unlink(missing_ok=True)
        place = self._place(request, state, Clock(request["later_s"], request["boot_id"], request["up_s"], sleeps))
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)
            changes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            self._shim(os.fsencode(state), request["at"], request["last"], request["error"], changes)
            answer = boot(place, Listener(state, request["deadly"], waits))
            self._shim(b"", 0, 0, 0, -1)
            out.write_text(json.dumps(answer))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            answer = {"killed": True}
        else:
            answer = json.loads(out.read_text()) if out.exists() else {"bug": f"status {status}"}
        if request["at"] == 0:
            answer["changes"] = log.read_text().splitlines()
        answer["waits"] = list(dict.fromkeys(_lines(waits)))
        answer["slept_s"] = sum(float(line) for line in _lines(sleeps))
        return answer

    def _place(self, request: dict[str, Any], state: Path, clock: Clock) -> Place:
        bundle, calibration, judged = self._inputs
        engine = EngineSettings(threads=1, token_budget=256)
        place = Place(bundle, state, calibration, judged, engine, paths=self._pc, now=clock.now, sleep=clock.sleep)
        if request["machine"] == "pc":
            return place
        gpu = FakeGpu(integrated=True)
        if request["lost"]:
            gpu.failing["execute_async_v3"] = LOST
        return dataclasses.replace(on_jetson(place, Builder(), gpu), paths=self._jetson)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _orin(folder: Path) -> BoardPaths:
    """A board whose GPU is up, and power mode and clocks set."""
    paths = make_board(folder / "jetson", AGX_ORIN_64)
    node = paths.at("/dev/nvhost-gpu")
    node.parent.mkdir(parents=True)
    node.touch()
    tuned(paths, folder / "jetson-state")
    return paths


def main() -> None:
    boots = Boots(*(Path(argument) for argument in sys.argv[1:]))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(boots.answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
