"""prepare, and serve --prepare, as a person and the system's service use them: real processes, a tiny model."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.conftest import COMMAND, environment, orin_rerank
from fakes.board import AGX_ORIN_64, make_board, make_pc
from graph.checkpoints import VL, write_checkpoint
from lifecycle.calibration_sets import write_calibration_set, write_judged_set
from lifecycle.first_boot.fake_jetson import tuned
from orin_rerank.board.request import REQUEST
from orin_rerank.board.tuner import tune_board
from orin_rerank.board.tuning import Tuning
from orin_rerank.engines.bundle import Bundle
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.first_boot.journal import JOURNAL_FILE, Journal, Outcome
from orin_rerank.lifecycle.rungs import Rung

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Machine:
    """A machine with a bundle, sets and a settings file."""

    folder: Path
    variables: dict[str, str]

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return orin_rerank(*arguments, **self.variables)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("model")
    export_checkpoint(write_checkpoint(root / "tiny", VL), root / "bundle", ExportOptions(max_tokens=512, min_pixels=1))
    write_calibration_set(root / "calibration")
    write_judged_set(root / "judged", Bundle.open(root / "bundle"))
    return root


@pytest.fixture
def machine(model: Path, tmp_path: Path) -> Machine:
    make_pc(tmp_path / "board")
    (tmp_path / "config.toml").write_text(
        f'[model]\nbundle = "{model / "bundle"}"\nstate = "{tmp_path / "state"}"\n'
        "[engine]\nthreads = 1\ntoken_budget = 128\n"
        f'[server]\nsocket = "{tmp_path / "s"}"\n'
        f'[first_boot]\ncalibration = "{model / "calibration"}"\nevaluation = "{model / "judged"}"\n'
    )
    variables = {
        "ORIN_RERANK_CONFIG": str(tmp_path / "config.toml"),
        "ORIN_RERANK_BOARD_ROOT": str(tmp_path / "board"),
    }
    return Machine(tmp_path, variables)


@dataclass
class Daemon:
    """`serve` as a process."""

    machine: Machine
    process: subprocess.Popen[bytes]

    def until_it_serves(self) -> None:
        deadline = time.monotonic() + 60
        while orin_rerank("status", "--socket", str(self.machine.socket)).returncode:
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def status(self) -> dict[str, object]:
        value: dict[str, object] = json.loads(
            orin_rerank("status", "--json", "--socket", str(self.machine.socket)).stdout
        )
        return value

    def end(self) -> list[dict[str, object]]:
        """Ends it; returns its journal."""
        self.process.send_signal(signal.SIGTERM)
        _, journal = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return [json.loads(line) for line in journal.decode().splitlines()]


@pytest.fixture
def daemon(machine: Machine) -> Iterator[Daemon]:
    process = subprocess.Popen(
        [COMMAND, "serve", "--prepare"], stderr=subprocess.PIPE, env=environment(**machine.variables)
    )
    yield Daemon(machine, process)
    process.kill()
    process.wait(30)
    assert process.stderr is not None
    process.stderr.close()


def test_prepare_makes_what_is_lacking_once(machine: Machine) -> None:
    done = machine.run("prepare")
    assert (done.returncode, done.stderr.split()) == (
        0,
        ["board", "memory", "power-mode", "clocks", "gpu", "calibrate", "build-int8", "build-full"],
    )
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.splitlines() if line[0] != " "}
    assert rows["calibrate"][0] == "done"
    assert rows["calibrate"][1].startswith("INT8 passed its gate")
    again = json.loads(machine.run("prepare", "--json").stdout)
    assert [step["outcome"] for step in again["steps"]] == ["done"] * 8
    assert again["steps"][5]["text"] == "an INT8 engine is installed"


def test_what_is_missing_is_told_with_what_to_do(machine: Machine, tmp_path: Path) -> None:
    text = machine.config.read_text()
    machine.config.write_text(text.replace("calibration = ", f'calibration = "{tmp_path / "none"}" # '))
    done = machine.run("prepare", "--json")
    assert done.returncode == 69
    step = json.loads(done.stdout)["steps"][5]
    assert (step["outcome"], step["retry_in_seconds"]) == ("failed", 60)
    assert f"there is no calibration set at {tmp_path / 'none'}; put it there, or name another" in step["text"]
    assert "tries it again" in " ".join(machine.run("prepare").stdout.split())
    again = json.loads(machine.run("prepare", "--again", "--json").stdout)["steps"][5]
    assert again["retry_in_seconds"] == 60, "it was forgotten how often it had failed"


def test_the_service_prepares_then_serves_and_says_so_meanwhile(daemon: Daemon, machine: Machine) -> None:
    while not machine.socket.exists():
        time.sleep(0.05)
    watch = subprocess.Popen(
        [COMMAND, "status", "--watch", "--json", "--socket", str(machine.socket)],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    daemon.until_it_serves()
    assert daemon.status()["model"]["precision"] == "int8"  # type: ignore[index]
    assert daemon.status()["problems"] == []
    journal = daemon.end()
    updates = [json.loads(line) for line in watch.communicate(timeout=30)[0].splitlines()]
    assert watch.returncode == 69
    states = list(dict.fromkeys(update["state"] for update in updates))
    assert states[-2:] == ["serving", "draining"]
    reasons = {update["activity"]["reason"] for update in updates if update["activity"]["step"] == "calibrate"}
    assert "no INT8 engine is installed for this bundle" in reasons | {
        record.get("reason") for record in journal if record["message"] == "step begins"
    }


def test_without_prepare_nothing_is_made(machine: Machine) -> None:
    process = subprocess.Popen([COMMAND, "serve"], stderr=subprocess.PIPE, env=environment(**machine.variables))
    daemon = Daemon(machine, process)
    daemon.until_it_serves()
    assert daemon.status()["model"]["precision"] == "fp32"  # type: ignore[index]
    daemon.end()
    assert not (machine.folder / "state").exists()


def test_prepare_off_is_off_for_the_service_too(machine: Machine) -> None:
    machine.config.write_text(machine.config.read_text() + 'prepare = "off"\n')
    process = subprocess.Popen(
        [COMMAND, "serve", "--prepare"], stderr=subprocess.PIPE, env=environment(**machine.variables)
    )
    daemon = Daemon(machine, process)
    daemon.until_it_serves()
    daemon.end()
    assert [path.name for path in (machine.folder / "state").iterdir()] == [JOURNAL_FILE]


def test_a_daemon_that_is_killed_while_it_loads_waits_before_it_tries_again_and_says_so(machine: Machine) -> None:
    machine.config.write_text(machine.config.read_text() + 'prepare = "off"\n')
    command, variables = [COMMAND, "serve", "--prepare"], environment(**machine.variables)
    state = machine.folder / "state"
    begun = (Rung.PROCESSOR_FULL, Outcome.BEGUN)
    while begun not in {(step, entry.outcome) for step, entry in Journal(state).entries.items()}:
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=variables) as process:
            while process.poll() is None and begun[0] not in Journal(state).entries:
                time.sleep(0.002)
            process.kill()  # if it was too late, once more
    daemon = Daemon(machine, subprocess.Popen(command, stderr=subprocess.PIPE, env=variables))
    activity: dict[str, Any] = {}
    while activity.get("step") != "wait":
        assert daemon.process.poll() is None
        said = machine.run("status", "--json", "--socket", str(machine.socket)).stdout
        activity = json.loads(said)["activity"] if said else {}
    assert 0 < activity["seconds_left"] <= 60
    assert activity["reason"].startswith("the processor (fp32): the process ended while it was loaded")
    assert activity["reason"].endswith("(once); `orin-rerank prepare --again` tries it at once")
    machine.run("prepare", "--again")
    daemon.until_it_serves()
    assert daemon.status()["problems"] == []
    daemon.end()


def test_settings_are_read_again_on_sighup(daemon: Daemon, machine: Machine) -> None:
    machine.config.write_text(machine.config.read_text().replace("[first_boot]", '[first_boot]\nprepare = "off"'))
    daemon.until_it_serves()
    text = machine.config.read_text()
    changed = text.replace("[server]", '[log]\nlevel = "warning"\n[server]\nmax_queued_documents = 7')
    machine.config.write_text(changed.replace("token_budget = 128", "token_budget = 64"))
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.status()["queue"]["max_documents"] == 7)  # type: ignore[index]
    machine.config.write_text(text.replace("[server]", "[servre]"))
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: bool(daemon.status()["problems"]))
    assert "did you mean server?" in daemon.status()["problems"][0]  # type: ignore[index]
    assert daemon.status()["queue"]["max_documents"] == 7  # type: ignore[index]
    messages = [record["message"] for record in daemon.end()]
    assert "the settings are wrong, and stay as they are" in messages
    assert "draining" not in messages, "the level was taken over"


def test_clocks_that_are_undone_are_told_and_asked_for(machine: Machine, tmp_path: Path) -> None:
    paths = make_board(tmp_path / "jetson", AGX_ORIN_64)
    machine.variables["ORIN_RERANK_BOARD_ROOT"] = str(tmp_path / "jetson")
    tune_board(paths, Tuning(), tmp_path / "board-state", lambda _: None)
    request = paths.at(str(REQUEST))
    request.parent.mkdir(parents=True)
    process = subprocess.Popen([COMMAND, "serve"], stderr=subprocess.PIPE, env=environment(**machine.variables))
    daemon = Daemon(machine, process)
    daemon.until_it_serves()
    assert daemon.status()["problems"] == []
    program = paths.program("nvpmodel")
    assert program is not None
    subprocess.run([program, "-m", "2"], check=True, capture_output=True)
    until(request.exists)
    assert "clocks are not locked" in daemon.status()["problems"][0]  # type: ignore[index]
    daemon.end()


@pytest.fixture
def jetson(machine: Machine, tmp_path: Path) -> Machine:
    """The same as a Jetson, whose TensorRT and GPU are fakes below us, tuned as at boot."""
    paths = make_board(tmp_path / "jetson", AGX_ORIN_64)
    paths.at("/dev").mkdir()
    paths.at("/dev/nvhost-gpu").touch()
    tuned(paths, tmp_path / "board-state")
    nvidia = str(Path(__file__).with_name("fake_nvidia"))
    machine.variables |= {"ORIN_RERANK_BOARD_ROOT": str(tmp_path / "jetson"), "PYTHONPATH": nvidia}
    return machine


def serve(machine: Machine, **changes: str) -> Daemon:
    environ = environment(**machine.variables, **changes)
    return Daemon(machine, subprocess.Popen([COMMAND, "serve", "--prepare"], stderr=subprocess.PIPE, env=environ))


def test_a_jetson_builds_and_a_stop_costs_no_plan(jetson: Machine) -> None:
    """The compiler hangs over the second of four plans and says nothing; SIGTERM ends it within five seconds."""
    daemon = serve(jetson, FAKE_TENSORRT="vision: hangs")
    until(lambda: jetson.socket.exists() and "vision.plan" in daemon.status()["activity"]["detail"])  # type: ignore[index]
    activity = daemon.status()["activity"]
    assert activity["step"] == "build-int8"  # type: ignore[index]
    assert activity["reason"] == "no int8-fp16 plans are installed for this machine"  # type: ignore[index]
    refused = orin_rerank("rank", "q", "d", "--socket", str(jetson.socket))
    assert "the daemon is starting: build-int8: compiling vision.plan" in refused.stderr
    (text,) = (jetson.folder / "state" / "plans").rglob("text.plan")
    written = text.stat().st_mtime_ns
    started = time.monotonic()
    daemon.end()
    assert time.monotonic() - started < 5
    config = str(jetson.config).encode()
    assert not [name for name in Path("/proc").glob("[0-9]*/environ") if config in read(name)], "a compiler lives on"
    daemon = serve(jetson)
    daemon.until_it_serves()
    model = daemon.status()["model"]
    assert (model["engine"], model["precision"]) == ("tensorrt", "int8-fp16")  # type: ignore[index]
    assert daemon.status()["problems"] == []
    daemon.end()
    plans = [path for path in (jetson.folder / "state" / "plans").rglob("text.plan") if "int8" in str(path)]
    assert [path.stat().st_mtime_ns for path in plans] == [written]


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process is gone
        return b""


def test_a_jetson_whose_gpu_is_missing_serves_and_says_so(jetson: Machine) -> None:
    daemon = serve(jetson, FAKE_GPU="none")
    daemon.until_it_serves()
    status = daemon.status()
    (problem,) = status["problems"]  # type: ignore[misc]
    assert problem.startswith("gpu: tensorrt 10.3.0 finds no GPU to compile for")
    assert status["model"]["engine"] == "onnxruntime-cpu"  # type: ignore[index]
    daemon.end()


def until(holds: object) -> None:
    assert callable(holds)
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
