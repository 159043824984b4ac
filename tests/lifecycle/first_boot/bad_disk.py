"""First boots on a disk that fails, or under a power that does: a process for `test_power_cuts`, with the shim loaded.

    LD_PRELOAD=bad_disk.so python bad_disk.py BUNDLE CALIBRATION JUDGED FOLDER < requests > answers

A request is a line of JSON, {"name", "at", "error"}: the state is FOLDER/<name>, the disk fails at its `at`-th change
(0: never) with that error number (0: the process is killed). The answer is {"served", "problems"} of a first boot
that came to its end, {"error"} of one that ended in an error of the project, {"killed"} or {"bug"}; with "changes", a
list of what was changed, if nothing was to fail. Every first boot is a process of its own, forked from this one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import onnx  # noqa: F401 - before the fork, so that no child has to
import onnxruntime  # noqa: F401

from fakes.board import make_pc
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import OrinRerankError
from orin_rerank.lifecycle.first_boot.machine import prepare_and_load
from orin_rerank.lifecycle.first_boot.place import Place


class Quiet:
    """A listener that does not care."""

    stopping = False

    def __call__(self, progress: object) -> None:
        pass


def boot(place: Place) -> dict[str, object]:
    problems: list[tuple[str, ...]] = []
    try:
        model = prepare_and_load(place, Quiet(), lambda prepared: problems.append(prepared.problems))
    except OrinRerankError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    except BaseException:  # noqa: BLE001 - whatever it is, it is a bug
        return {"bug": traceback.format_exc()}
    return {"served": model.info.precision, "problems": problems[-1]}


def main() -> None:
    *inputs, folder = (Path(argument) for argument in sys.argv[1:])
    bundle, calibration, judged = inputs
    paths = make_pc(folder / "board")
    shim = ctypes.CDLL(None).bad_disk
    shim.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    for line in sys.stdin:
        request = json.loads(line)
        state = folder / request["name"]
        engine = EngineSettings(threads=1, token_budget=256)
        place = Place(bundle, state, calibration, judged, engine, paths=paths, sleep=lambda _: None)
        out, log = folder / "answer", folder / "changes"
        out.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)
            shim(
                str(state).encode(),
                request["at"],
                request["error"],
                os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            )
            answer = boot(place)
            shim(b"", 0, 0, -1)
            out.write_text(json.dumps(answer))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            answer = {"killed": True}
        else:
            answer = json.loads(out.read_text()) if out.exists() else {"bug": f"status {status}"}
        if request["at"] == 0:
            answer["changes"] = log.read_text().splitlines()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
