"""orin-rerank calibrate as a real process: what it shows, how it ends, and that a kill leaves what was served."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.conftest import COMMAND, environment, orin_rerank
from graph.checkpoints import VL, write_checkpoint
from lifecycle.calibration_sets import write_calibration_set, write_judged_set
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.store import EngineStore
from orin_rerank.evaluation.dataset import DATASET_FILE
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.quantization.gate import GATE_FILE, GateRecord
from orin_rerank.quantization.plan import PLAN_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Machine:
    """A bundle with sets that fit it, and where its engines go."""

    bundle: Bundle
    data: Path
    judged: Path
    state: Path

    def command(self, *arguments: str, data: Path | None = None) -> list[str]:
        sets = ["--data", str(data or self.data), "--evaluation", str(self.judged)]
        return ["calibrate", "--bundle", str(self.bundle.folder), *sets, "--threads", "1", *arguments]

    def calibrate(self, *arguments: str, data: Path | None = None) -> subprocess.CompletedProcess[str]:
        return orin_rerank(*self.command(*arguments, data=data), ORIN_RERANK_STATE=str(self.state), COLUMNS="80")

    @property
    def place(self) -> Path:
        return self.state / "engines" / self.bundle.digest

    @property
    def in_service(self) -> Bundle:
        """The engine in service, which is whole."""
        folder = EngineStore(self.state).quantized(self.bundle.digest)
        assert folder is not None
        bundle = Bundle.open(folder)
        bundle.verify()
        return bundle

    @property
    def leftovers(self) -> list[str]:
        return [path.name for path in self.place.iterdir() if path.name.startswith(".") and path.name != ".lock"]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Nothing is installed yet."""
    root = tmp_path_factory.mktemp("calibrate")
    options = ExportOptions(name="tiny", max_tokens=512, min_pixels=1, precisions=(Precision.FP32,))
    bundle = export_checkpoint(write_checkpoint(root / "tiny", VL), root / "bundle", options).bundle
    sets = write_calibration_set(root / "data"), write_judged_set(root / "judged", bundle)
    return Machine(bundle, *sets, root / "state")


@pytest.fixture(scope="module")
def first(fresh: Machine) -> subprocess.CompletedProcess[str]:
    """A first calibration, after which an engine is installed."""
    return fresh.calibrate()


@pytest.fixture
def machine(fresh: Machine, first: subprocess.CompletedProcess[str], tmp_path: Path) -> Machine:
    """One with an engine in service, for one test alone."""
    assert first.returncode == 0
    shutil.copytree(fresh.state, tmp_path / "state", symlinks=True)
    return replace(fresh, state=tmp_path / "state")


class TestWhatItShows:
    def test_card_plan_comparison_and_account(self, fresh: Machine, first: subprocess.CompletedProcess[str]) -> None:
        assert (first.returncode, first.stderr) == (0, "")
        lines = first.stdout.splitlines()
        engine = fresh.in_service
        assert lines[0].rstrip() == "calibration set"
        assert lines[1].split() == ["pairs", "264", "of", "44", "queries"]
        assert any(line.startswith("9 places in INT8, 22 stored as INT8; 100.0% of the decoder") for line in lines)
        assert "gate: passed" in lines
        assert lines[-2].endswith(" MB, in service from the next start on:")
        assert lines[-1] == str(engine.folder)
        # A path is left in one piece to be copied, but all else fits.
        assert max(map(len, lines[:-1])) <= 80
        stages = [line for line in lines if line.startswith(("observing", "judged", "writing", "installing"))]
        assert len(stages) == 6

    def test_json_is_the_papers_of_the_engine(self, machine: Machine) -> None:
        done = machine.calibrate("--json")
        assert done.returncode == 0, done.stderr
        value = json.loads(done.stdout)
        engine = machine.in_service
        assert (value["engine"], value["digest"]) == (str(engine.folder), engine.digest)
        assert value["plan"] == json.loads((engine.folder / PLAN_FILE).read_text())
        assert value["gate"] == json.loads((engine.folder / GATE_FILE).read_text())
        assert value["coverage"]["pairs"] == 264
        assert (value["warnings"], value["refused"]) == ([], [])
        assert {stage["name"] for stage in value["stages"]} >= {"judged set in INT8", "installing"}
        assert done.stderr.startswith("calibration set"), "the card, for who waits"

    def test_warnings_and_refusals_go_to_standard_error(self, machine: Machine, tmp_path: Path) -> None:
        few = write_calibration_set(tmp_path / "few", queries=20, pictures=0)
        done = machine.calibrate("--min-correlation", "1", data=few)
        assert done.returncode == 66
        warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
        assert warnings == [
            "warning: 120 pairs are few; 256 or more make ranges steady",
            "warning: the model takes images, but there are none",
        ]
        assert "plan 1, with 0.0% of the decoder's work wide: margins correlate by 0.99" in done.stderr
        assert "orin-rerank: error: tiny: INT8 is refused: margins correlate by 0.99" in done.stderr
        assert "Traceback" not in done.stderr
        # What was refused is shown, to see what would be lost.
        assert done.stdout.splitlines()[-4].startswith("NDCG@10 x 100")
        assert "gate: refused; nothing is installed, and what was in service stays" in done.stdout
        assert machine.leftovers == []

    def test_a_terminal_of_80_columns(self, machine: Machine, tmp_path: Path) -> None:
        """Tables, warnings and progress share the screen: what stays on it in the end is what a pipe would get."""
        few = write_calibration_set(tmp_path / "few", queries=20)
        command = [COMMAND, *machine.command(data=few)]
        written, code = in_terminal(command, {"ORIN_RERANK_STATE": str(machine.state)})
        assert code == 0
        assert "judged set in INT8" in written
        shown = what_stays(written)
        piped = machine.calibrate(data=few)
        rest = shown.index("what INT8 costs, place by place")
        card, warnings = piped.stdout.partition("\n\n")[0].splitlines(), piped.stderr.splitlines()
        assert warnings
        assert shown[:rest] == [*(line.rstrip() for line in card), *warnings, ""]
        assert sum("gate: passed" in line for line in shown) == 1
        assert not any("━" in line for line in shown), "the progress is gone"
        assert max(len(line) for line in shown if not line.startswith("/")) <= 80

    def test_the_engine_is_what_evaluate_compares(self, machine: Machine) -> None:
        common = ["--bundle", str(machine.bundle.folder), "--data", str(machine.judged), "--threads", "1"]
        done = orin_rerank(
            "evaluate",
            *common,
            "--precision",
            "int8",
            "--against",
            "full",
            "--json",
            ORIN_RERANK_STATE=str(machine.state),
        )
        value = json.loads(done.stdout)
        assert value["gate"] == {"passed": True, "reasons": []}
        record = GateRecord.from_json((machine.in_service.folder / GATE_FILE).read_text())
        assert value["candidate"]["bundle"]["digest"] == machine.in_service.digest
        # Served packs are cut otherwise, so margins differ in what rounding makes of that.
        assert value["total"]["correlation"] == pytest.approx(record.report.total.correlation, abs=1e-3)
        assert value["total"]["reference"] == pytest.approx(record.report.as_dict()["total"]["reference"])


class TestExitCodes:
    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (["--ranges", "/nowhere/at/all"], 2, "ranges: /nowhere/at/all: is in no folder that exists"),
            (["--max-wide", "2"], 2, "'--max-wide'"),
            (["--vision", "fp16"], 2, "'--vision'"),
            (["--data", "/nowhere"], 66, "/nowhere/dataset.jsonl: cannot be read"),
            (["--reuse", "/nowhere"], 66, "plan.json: the plan cannot be read"),
            (["--bundle", "/nowhere"], 66, "/nowhere"),
        ],
    )
    def test_what_is_wrong_is_one_line(self, fresh: Machine, arguments: list[str], code: int, says: str) -> None:
        done = fresh.calibrate(*arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert says in done.stderr.splitlines()[0]
        assert len([line for line in done.stderr.splitlines() if not line.startswith("  hint: ")]) == 1

    def test_another_that_writes_is_waited_for_by_trying_again(self, machine: Machine) -> None:
        with EngineStore(machine.state).staging(machine.bundle.digest):
            done = machine.calibrate()
        assert done.returncode == 75
        assert "another process is making an engine for this bundle" in done.stderr

    def test_a_full_disk_is_no_bug(self, machine: Machine) -> None:
        before = machine.in_service.digest
        done = subprocess.run(
            # In blocks of 512 bytes. By the shell: to fork a process in which gRPC has threads may end in its abort.
            ["sh", "-c", 'ulimit -f 390; exec "$@"', "sh", COMMAND, *machine.command()],
            env=environment(ORIN_RERANK_STATE=str(machine.state)),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 66, done.stderr
        assert b"the engine cannot be made: File too large" in done.stderr
        assert machine.in_service.digest == before
        assert machine.leftovers == []

    def test_interrupting_cleans_up(self, machine: Machine) -> None:
        before = machine.in_service.digest
        with _running(machine) as process:
            _wait_for(machine, process, _staged("model.safetensors"))
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        assert (machine.in_service.digest, machine.leftovers) == (before, [])


def _staged(name: str) -> Callable[[Machine], bool]:
    return lambda machine: any(machine.place.glob(f".staging-*/{name}"))


def _running(machine: Machine) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [COMMAND, *machine.command()],
        env=environment(ORIN_RERANK_STATE=str(machine.state)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait_for(machine: Machine, process: subprocess.Popen[bytes], moment: Callable[[Machine], bool]) -> None:
    deadline = time.monotonic() + 60
    while not moment(machine):
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_kill_at_any_moment_leaves_what_was_served(machine: Machine) -> None:
    before = machine.in_service.digest
    for moment in (
        _staged("observed/*.onnx"),
        _staged("switched/*.onnx"),
        _staged("model.safetensors"),
        _staged("manifest.json"),
    ):
        with _running(machine) as process:
            _wait_for(machine, process, moment)
            process.kill()
        assert machine.in_service.digest == before
        assert machine.leftovers, "killed while it wrote"
    # A daemon does not mind what lies there, and the next to write clears it away.
    assert machine.calibrate().returncode == 0
    assert machine.leftovers == []
    assert machine.in_service.digest == before, "the same sets give the same engine"


def test_a_kill_while_it_installs_leaves_the_old_one_or_the_new_one(machine: Machine, tmp_path: Path) -> None:
    old = machine.in_service.digest
    other = replace(machine, data=write_calibration_set(tmp_path / "other", seed=9))
    with _running(other) as process:
        _wait_for(other, process, _staged(GATE_FILE))
        process.kill()
    survivor = other.in_service.digest
    assert other.calibrate().returncode == 0
    new = other.in_service.digest
    assert other.leftovers == []
    assert survivor in {old, new}
    assert old != new


def test_memory_does_not_grow_with_the_set(fresh: Machine, tmp_path: Path) -> None:
    """Of the whole process at its peak; the same pictures and texts again, in other requests."""
    few = write_calibration_set(tmp_path / "few", queries=48)
    lines = (few / DATASET_FILE).read_text(encoding="utf-8")
    many = Path(shutil.copytree(few, tmp_path / "many"))
    texts = [lines.replace('{"text": "', f'{{"text": "{number} ') for number in range(4)]
    (many / DATASET_FILE).write_text("".join(texts), encoding="utf-8")
    peaks = []
    for data in (few, many):
        machine = replace(fresh, state=tmp_path / f"state-{data.name}")
        process = subprocess.Popen(
            [COMMAND, *machine.command("--json", data=data)],
            env=environment(ORIN_RERANK_STATE=str(machine.state)),
            stdout=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks.append(usage.ru_maxrss)
    assert peaks[1] < 1.05 * peaks[0]


def in_terminal(command: list[str], variables: dict[str, str]) -> tuple[str, int]:
    """Runs a command in a terminal of 80 columns.

    Returns:
        What was written to it, and the exit code.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    settings = environment(**variables, TERM="xterm-256color")
    del settings["COLUMNS"]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=settings, start_new_session=True
    )
    os.close(theirs)
    written = b"".join(_read_all(ours))
    os.close(ours)
    return written.decode(), process.wait(30)


def what_stays(written: str) -> list[str]:
    """The lines on a terminal's screen in the end, by the few sequences that progress displays use."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", written):
        if token == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif up := re.fullmatch(r"\x1b\[(\d+)A", token):
            row -= int(up[1])
        elif token == "\r" or token.startswith("\x1b"):
            pass  # a line is always emptied before it is written again
        else:
            lines[row] += token
    return [line.rstrip() for line in lines]


def _read_all(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end is closed
            return
        if not data:
            return
        yield data
