"""build and engines as a person uses them: real processes, on a machine whose TensorRT and GPU are fakes below us."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import os
import platform
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.conftest import COMMAND, environment, orin_rerank
from graph.checkpoints import VL, write_checkpoint
from lifecycle.calibration_sets import write_calibration_set, write_judged_set
from orin_rerank.engines.bundle import Bundle, write_manifest
from orin_rerank.engines.store import EngineStore
from orin_rerank.lifecycle.calibrate import CalibrationOptions, calibrate
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

NVIDIA = Path(__file__).with_name("fake_nvidia")

needs_compiler = pytest.mark.skipif(
    platform.machine() != "x86_64" or importlib.util.find_spec("tensorrt_rtx") is None,
    reason="compiling needs x86-64 and the tensorrt-rtx wheels: make test-compile",
)


@dataclasses.dataclass(frozen=True)
class Board:
    """A machine with a bundle, an INT8 engine, and the set that it was judged by."""

    bundle: Path
    state: Path
    judged: Path

    def variables(self, **changes: str) -> dict[str, str]:
        return {
            "ORIN_RERANK_STATE": str(self.state),
            "ORIN_RERANK_BUNDLE": str(self.bundle),
            "PYTHONPATH": str(NVIDIA),
            "COLUMNS": "80",
            **changes,
        }

    def arguments(self, *arguments: str) -> list[str]:
        if arguments[0] != "build":
            return [*arguments]
        # The usual plans serve any smaller budget; given one, what is judged need not measure which is best.
        return ["build", "--token-budget", "64", "--evaluation", str(self.judged), *arguments[1:]]

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return orin_rerank(*self.arguments(*arguments), **self.variables(**changes))

    def json(self, *arguments: str, **changes: str) -> dict[str, Any]:
        done = self.run(*arguments, "--json", **changes)
        assert done.returncode == 0, done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    def files(self, pattern: str) -> set[str]:
        return {path.name for path in (self.state / "plans").rglob(pattern)}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Board:
    """A bundle and an INT8 engine that passed its gate; nothing compiled yet."""
    root = tmp_path_factory.mktemp("board")
    export_checkpoint(write_checkpoint(root / "tiny", VL), root / "bundle", ExportOptions(max_tokens=512, min_pixels=1))
    bundle = Bundle.open(root / "bundle")
    judged = write_judged_set(root / "judged", bundle)
    options = CalibrationOptions(write_calibration_set(root / "calibration"), judged, threads=1)
    calibrate(bundle, options, EngineStore(root / "state"))
    return Board(bundle.folder, root / "state", judged)


@pytest.fixture
def board(fresh: Board, tmp_path: Path) -> Board:
    shutil.copytree(fresh.state, tmp_path / "state", symlinks=True)
    return dataclasses.replace(fresh, state=tmp_path / "state")


def test_both_precisions_are_compiled_once(board: Board) -> None:
    value = board.json("build")
    assert [engine["precision"] for engine in value["engines"]] == ["int8-fp16", "fp16"]
    assert (value["runtime"], value["gpu"], value["sibling"], value["warnings"]) == (
        "tensorrt 10.3.0",
        "Orin",
        None,
        [],
    )
    int8, half = value["engines"]
    assert half["bundle"] == value["bundle"] == Bundle.open(board.bundle).digest != int8["bundle"]
    assert half["key"]["precision_plan"] is None
    assert (half["key"]["compute_capability"], half["key"]["multiprocessors"]) == ("8.7", 8)
    for engine in (int8, half):
        assert [plan["name"] for plan in engine["plans"]] == ["text.plan", "vision.plan"]
        assert all(plan["compiled"]["attempts"] == 1 for plan in engine["plans"])
        text = json.loads((Path(engine["folder"]) / "text.plan").read_text())
        # 1,024 tokens of a pack, and one prompt more: what serving has buffers for
        *rungs, longest = [profile["ids"][2][0] for profile in text["profiles"]]
        assert rungs == [64, 128, 256, 512, 1024]
        assert longest >= 1024 + 512
    again = board.json("build")
    assert [plan["compiled"] for engine in again["engines"] for plan in engine["plans"]] == [None] * 4
    assert [engine["folder"] for engine in again["engines"]] == [int8["folder"], half["folder"]]
    forced = board.json("build", "--precision", "full", "--again", "--workspace", "64")
    assert [engine["precision"] for engine in forced["engines"]] == ["fp16"]
    assert forced["engines"][0]["plans"][0]["compiled"]["workspace_bytes"] == 64 << 20
    assert forced["engines"][0]["folder"] != half["folder"]


def test_a_person_is_told_what_came_of_it(board: Board) -> None:
    done = board.run("build", "--precision", "int8", FAKE_TENSORRT="text: warns")
    assert done.returncode == 0, done.stderr
    head, target, gate, folder = done.stdout.splitlines()
    assert head == "int8-fp16: 2 plans compiled, 0.0 MB"
    assert target.startswith("  for Orin, tensorrt 10.3.0, CUDA driver 12.6; key ")
    assert re.fullmatch(r"  gate on this GPU: passed, NDCG@10 [+-]0\.\d\d points, margins correlate by 0\.99\d\d", gate)
    assert (Path(folder.strip()) / "text.plan").is_file()
    lines = done.stderr.splitlines()
    assert [line for line in lines if "is slow" in line] == [
        f"warning: int8-fp16 text: layer {i} is slow" for i in range(5)
    ]
    assert [line.split(" in ")[0] for line in lines if " MB in " in line] == [
        "int8-fp16 text: 0.0 MB",
        "int8-fp16 vision: 0.0 MB",
    ]
    assert f"int8-fp16 gate: {gate.partition(': ')[2]}" in lines


def test_the_inventory_fits_a_terminal(board: Board) -> None:
    board.json("build")
    board.json("build", "--precision", "full", "--max-tokens", "256")
    listed = board.json("engines")["engines"]
    assert [(item["kind"], item["current"]) for item in listed] == [
        ("bundle", True),
        ("plans", True),
        ("plans", False),
        ("int8", True),
        ("plans", True),
    ]
    bundle, half, before, int8, plans = listed
    assert (bundle["digest"], int8["gate"], bundle["gate"]) == (half["made_from"], "passed", None)
    assert (plans["made_from"], plans["precisions"]) == (int8["digest"], ["int8-fp16"])
    assert half["key"]["profiles"] != before["key"]["profiles"]
    table = board.run("engines")
    lines = table.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {item["digest"][:12]: next(line for line in lines if item["digest"][:12] in line) for item in listed}
    assert len(rows) == 5
    assert rows[int8["digest"][:12]].startswith("  INT8 engine ")
    assert "gate: passed" in rows[int8["digest"][:12]]
    assert rows[plans["digest"][:12]].startswith("    plans ")
    assert "tensorrt 10.3.0" in " ".join(table.stdout.split())


@contextlib.contextmanager
def serving(board: Board, socket: Path) -> Iterator[dict[str, Any]]:
    """The daemon with plans of the board's; what its status says of the model."""
    process = subprocess.Popen(
        [COMMAND, "serve", "--socket", str(socket), "--token-budget", "64"],
        stderr=subprocess.DEVNULL,
        env=environment(**board.variables()),
    )
    try:
        deadline = time.monotonic() + 60
        while orin_rerank("status", "--socket", str(socket)).returncode:
            assert process.poll() is None, "the daemon ended"
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield board.json("status", "--socket", str(socket))["model"]
    finally:
        process.terminate()
        process.wait(30)


def test_int8_that_its_gate_refuses_on_this_gpu_is_not_served(board: Board, tmp_path: Path) -> None:
    """A compiler that rounds more coarsely than the graph says: the plans load, run and rank worse."""
    value = board.json("build", FAKE_TENSORRT="text: coarse")
    int8, half = value["engines"]
    assert (int8["gate"]["passed"], half["gate"]) == (False, None)
    (reason,) = int8["gate"]["reasons"]
    assert reason.startswith("margins correlate by 0.9")
    (warning,) = value["warnings"]
    assert f"the gate refuses INT8 as it was compiled for this GPU: {reason}" in warning
    listed = {item["digest"]: item for item in board.json("engines")["engines"]}
    assert [listed[one["key"]["digest"]]["gate"] for one in (int8, half)] == [reason, None]
    table = board.run("engines").stdout
    assert max(map(len, table.splitlines())) <= 80
    assert "gate: margins correlate by 0.9" in " ".join(table.split())
    with serving(board, tmp_path / "s") as model:
        assert (model["engine"], model["precision"]) == ("tensorrt", "fp16")
        assert f"the gate refuses INT8: {reason}" in model["precision_reason"]
    refused = board.run("build", "--precision", "int8")
    assert (refused.returncode, refused.stdout) == (66, "")
    assert f"{reason}; `orin-rerank build --again` compiles others" in refused.stderr
    passed = board.json("build", "--precision", "int8", "--again")["engines"][0]
    assert passed["gate"]["passed"]
    assert passed["gate"]["total"]["queries"] == 56
    assert [item["gate"] for item in board.json("engines")["engines"]] == [None, None, "passed", "passed", reason]
    with serving(board, tmp_path / "s") as model:
        assert (model["engine"], model["precision"]) == ("tensorrt", "int8-fp16")
        correlation = passed["gate"]["total"]["correlation"]
        assert model["precision_reason"].startswith("INT8 passed its gate on this GPU: ")
        assert model["precision_reason"].endswith(f"margins correlate by {correlation:.4f}")
        shown = board.run("status", "--socket", str(tmp_path / "s")).stdout
        assert "INT8 passed its gate on this GPU: " in " ".join(shown.split())
        ranked = board.json("rank", "--socket", str(tmp_path / "s"), "red", "a red house", "a fire", "a cat")
        assert len(ranked["results"]) == 3


def test_without_the_judged_set_int8_is_not_compiled(board: Board) -> None:
    """The shipped set is another one than this engine was judged by."""
    left = orin_rerank("build", "--json", **board.variables())
    assert left.returncode == 0, left.stderr
    value = json.loads(left.stdout)
    assert [engine["precision"] for engine in value["engines"]] == ["fp16"]
    assert "INT8 is not compiled, since it could not be judged" in value["warnings"][0]
    assert "is not the set that the INT8 engine was judged by" in value["warnings"][0]
    asked = orin_rerank("build", "--precision", "int8", **board.variables())
    assert (asked.returncode, asked.stdout) == (66, "")
    assert board.files("text.plan") == {"text.plan"}


def test_plans_of_what_is_gone_are_removed(board: Board, tmp_path: Path) -> None:
    other = shutil.copytree(board.bundle, tmp_path / "other")
    manifest = Bundle.open(other).manifest
    write_manifest(other, dataclasses.replace(manifest, name="other"))
    of_other = dataclasses.replace(board, bundle=other)
    gone = of_other.json("build")["bundle"]
    assert board.json("build", "--precision", "full")["removed"] == [], "it is there, though not in use"
    assert {item["made_from"] for item in board.json("engines")["engines"] if item["kind"] == "plans"} >= {gone}
    shutil.rmtree(other)
    assert board.json("build", "--precision", "full")["removed"] == [], "its drive may be unplugged"
    (removed,) = board.json("engines", "--prune")["removed"]
    assert removed["bundle"] == gone
    assert removed["bytes"] > 0
    assert removed["reason"] == f"there is no bundle in {other}"
    assert not (board.state / "plans" / gone).exists()
    assert "removed" not in board.run("engines", "--prune").stdout


def test_an_empty_machine_has_a_bundle_and_a_damaged_one_says_so(board: Board, tmp_path: Path) -> None:
    empty = dataclasses.replace(board, state=tmp_path / "none")
    assert [item["kind"] for item in empty.json("engines")["engines"]] == ["bundle"]
    assert not empty.state.exists()
    board.json("build", "--precision", "full")
    (manifest,) = (board.state / "plans").glob("*/fp16/[0-9]*/manifest.json")
    manifest.write_text(manifest.read_text().replace('"Orin"', '"Orion"'))
    plans = next(item for item in board.json("engines")["engines"] if item["kind"] == "plans")
    assert "its own SHA-256" in plans["problem"]
    rebuilt = board.json("build", "--precision", "full")
    assert "it is compiled again" in rebuilt["warnings"][0]
    assert rebuilt["engines"][0]["plans"][0]["compiled"] is not None


def test_a_failure_keeps_what_is_compiled(board: Board) -> None:
    done = board.run("build", "--precision", "full", FAKE_TENSORRT="vision: nvmap")
    assert (done.returncode, done.stdout) == (75, "")
    assert "error 12" in done.stderr
    hint = done.stderr.splitlines()[-1]
    assert hint.startswith("  hint: stop other programs that use memory, add swap")
    assert hint.endswith("What is compiled is kept")
    assert board.files("*.plan") == {"text.plan"}
    fates = "text: hangs, vision: killed-above-256-mib"
    value = board.json("build", "--precision", "full", "--workspace", "1024", FAKE_TENSORRT=fates)
    text, vision = value["engines"][0]["plans"]
    assert text["compiled"] is None
    assert (vision["compiled"]["attempts"], vision["compiled"]["workspace_bytes"]) == (3, 256 << 20)
    assert "trying again with a workspace of 256 MiB" in value["warnings"][1]


def test_what_is_not_to_be_had(board: Board, tmp_path: Path) -> None:
    refused = board.run("build", FAKE_TENSORRT="text: refused")
    assert refused.returncode == 66
    assert "text.primitive.int8-fp16.onnx: layers.0/attention/scores: tensorrt 10.3.0 does not take" in refused.stderr
    assert " at its Attention node: No importer registered for op: Attention" in refused.stderr
    assert "hint: `orin-rerank export` writes a bundle's graphs anew" in refused.stderr
    first, second = (refused.stderr.index(f"text.primitive.{name}.onnx") for name in ("int8-fp16", "fp16"))
    assert "warning: int8-fp16 is not compiled, what is left is" in refused.stderr[:first]
    assert second > first
    no_gpu = board.run("build", FAKE_GPU="none")
    assert no_gpu.returncode == 69
    assert "no CUDA-capable device" in no_gpu.stderr
    assert "hint: pycuda" in no_gpu.stderr
    full = dataclasses.replace(board, state=tmp_path / "none")
    int8 = full.run("build", "--precision", "int8")
    assert int8.returncode == 66
    assert "`orin-rerank calibrate` makes one" in int8.stderr


def test_int8_that_is_refused_is_not_compiled(board: Board) -> None:
    (weights,) = (board.state / "engines").glob("*/[0-9]*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    value = board.json("build")
    assert [engine["precision"] for engine in value["engines"]] == ["fp16"]
    assert "an INT8 engine is installed, but refused" in value["warnings"][0]
    assert board.run("build", "--precision", "int8").returncode == 66


def test_no_tensorrt(board: Board) -> None:
    hidden = "import sys; sys.modules.update(tensorrt=None, tensorrt_rtx=None)"
    code = f"{hidden}; from orin_rerank.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "build"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(**board.variables()),
    )
    assert (done.returncode, done.stdout) == (69, "")
    assert "TensorRT is not installed" in done.stderr
    assert "apt install python3-libnvinfer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("fate", ["slow", "hangs"])
def test_ctrl_c_takes_less_than_5_seconds_and_keeps_what_is_compiled(board: Board, fate: str) -> None:
    process = subprocess.Popen(
        [COMMAND, *board.arguments("build", "--precision", "full")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**board.variables(FAKE_TENSORRT=f"vision: {fate}")),
    )
    deadline = time.monotonic() + 30
    while not list((board.state / "plans").rglob("text.plan")) or not compilers(process.pid):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.5)  # for the second process to be at it
    (child,) = compilers(process.pid)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert time.monotonic() - asked < 5
    assert (process.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1] == "stopped; what is compiled is kept, and the same command goes on from there"
    assert not Path(f"/proc/{child}").exists()
    # Two builds have kept what they measured, where the second one could be asked to stop.
    cache = (board.state / "timing" / "tensorrt-10.3.0.cache").read_text()
    assert cache == "measured;" * (2 if fate == "slow" else 1)
    value = board.json("build", "--precision", "full")
    assert [plan["compiled"] is None for plan in value["engines"][0]["plans"]] == [True, False]


def test_bars_and_what_remains_in_a_terminal(board: Board) -> None:
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    variables = {**board.variables(FAKE_TENSORRT="vision: slow"), "TERM": "xterm"}
    process = subprocess.Popen(
        [COMMAND, *board.arguments("build")],
        stdin=subprocess.DEVNULL,
        stdout=end,
        stderr=end,
        env=environment(**variables),
    )
    os.close(end)
    shown, asked = "", False
    with contextlib.suppress(OSError):  # the terminal's end
        while block := os.read(terminal, 1 << 12):
            shown += block.decode(errors="replace")
            if not asked and "Timing tactics" in shown and " left" in shown:
                asked = True
                process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    os.close(terminal)
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r", "\n").splitlines()]
    bars = [line for line in lines if "%" in line]
    assert max(map(len, bars)) <= 80
    for label in ("int8-fp16 text", "int8-fp16 vision", "fp16 text", "fp16 vision", "all plans"):
        assert any(f" {label} " in bar for bar in bars), label
    assert not any(" waits " in bar for bar in bars), "what waits takes no time"
    assert any("✓ int8-fp16 text" in bar and "100%" in bar for bar in bars)
    assert any("int8-fp16 vision" in bar and "Timing tactics" in bar for bar in bars)
    assert any(" fp16 vision" in bar and " 0% waits" in bar for bar in bars)


def compilers(parent: int) -> list[str]:
    """Processes that compile."""
    found = []
    for thread in Path(f"/proc/{parent}/task").iterdir():
        found += (thread / "children").read_text().split()
    return found


@needs_compiler
def test_a_sibling_where_there_is_only_its_compiler(board: Board) -> None:
    real = os.environ.get("PYTHONPATH", "")
    variables = board.variables(PYTHONPATH=real)
    arguments = ["--token-budget", "64", "--level", "0", "--json"]
    done = subprocess.run(
        [COMMAND, *board.arguments("build", *arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment(**variables),
    )
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert (value["sibling"], value["gpu"]) == ("SM86", "SM86")
    assert "for tests, not for this machine" in value["warnings"][0]
    assert "for tests, not for this machine" in done.stderr
    assert [engine["precision"] for engine in value["engines"]] == ["int8-fp16", "fp16"]
    for engine in value["engines"]:
        assert (engine["key"]["platform"], engine["key"]["compute_capability"]) == ("none, compiled for tests", "8.6")
        assert all(plan["bytes"] > 100_000 and plan["compiled"]["layers"] > 100 for plan in engine["plans"])
    assert max(map(len, board.run("engines", PYTHONPATH=real).stdout.splitlines())) <= 80
