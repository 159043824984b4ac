"""What becomes of processes that compile, with real processes that end as real ones have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.engines.tensorrt.builder import CHILD, BuildLimits, PlanBuilder
from orin_rerank.engines.tensorrt.job import BuilderSaid, BuildJob, PhaseStarted, StepDone
from orin_rerank.engines.tensorrt.profiles import Extent, ShapeProfile
from orin_rerank.errors import (
    BuildCancelledError,
    BuildError,
    BuildOutOfMemoryError,
    BuildTimeoutError,
    EngineError,
    GraphRefusedError,
    InternalError,
    TensorRtMissingError,
)

FAKE = (sys.executable, str(Path(__file__).with_name("fake_compiler.py")))
MIB = 1 << 20


@pytest.fixture
def builder() -> PlanBuilder:
    return PlanBuilder(BuildLimits(grace_s=0.5), FAKE)


def job_of(name: str, folder: Path, workspace: int = 64 * MIB) -> BuildJob:
    profile = ShapeProfile("any", {"tokens": Extent.up_to(64)})
    return BuildJob(folder / f"{name}.onnx", folder / "text.plan", (profile,), workspace)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_plan_is_made_and_progress_is_seen(builder: PlanBuilder, tmp_path: Path) -> None:
    seen: list[object] = []
    report = builder.build(job_of("good", tmp_path), seen.append)
    assert seen == [PhaseStarted("Building engine", None, 3), StepDone("Building engine", 0)]
    assert (report.attempts, report.workspace_bytes, report.done.plan_bytes) == (1, 64 * MIB, 4)
    assert names_in(tmp_path) == {"text.plan"}


def test_half_the_workspace_until_memory_suffices(builder: PlanBuilder, tmp_path: Path) -> None:
    seen: list[object] = []
    report = builder.build(job_of("killed-above-256-mib", tmp_path, 1024 * MIB), seen.append)
    assert (report.attempts, report.workspace_bytes) == (3, 256 * MIB)
    warnings = [event.text for event in seen if isinstance(event, BuilderSaid)]
    assert ["512 MiB" in warnings[0], "256 MiB" in warnings[1], len(warnings)] == [True, True, 2]
    assert names_in(tmp_path) == {"text.plan"}


def test_attempts_are_few(builder: PlanBuilder, tmp_path: Path) -> None:
    with pytest.raises(BuildOutOfMemoryError, match="in 3 attempts, the last with a workspace of 1024 MiB"):
        builder.build(job_of("killed", tmp_path, 4096 * MIB))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("killed", "SIGKILL"),
        ("killed-over-a-line", "SIGKILL"),
        ("nvmap", "error 12"),
        ("nvmap-then-no-kernel", "error 12"),
        ("cuda", "Cuda Runtime (out of memory)"),
    ],
)
def test_memory_that_ran_out(builder: PlanBuilder, tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(BuildOutOfMemoryError) as caught:
        builder.build(job_of(name, tmp_path, 128 * MIB))
    assert says in str(caught.value)
    assert "in 2 attempts, the last with a workspace of 64 MiB" in str(caught.value)
    assert "add swap" in caught.value.advice
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        (
            "refused",
            GraphRefusedError,
            "graph.onnx: layers.0/attention/scores: No importer registered for op: Attention",
        ),
        ("no-kernel", BuildError, "Could not find any implementation"),
        ("missing", TensorRtMissingError, "no bindings"),
        ("segfault", BuildError, "segfault.onnx: the process that compiles ended by signal SIGSEGV: a last word"),
        ("says-nothing", BuildError, "ended by exit status 0"),
        ("real-time-signal", BuildError, f"ended by signal {signal.SIGRTMIN + 3}"),
        ("hangs-at-the-end", BuildError, "fell silent for good"),
        ("babbles", InternalError, "no event"),
    ],
)
def test_other_ends(builder: PlanBuilder, tmp_path: Path, name: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as caught:
        builder.build(job_of(name, tmp_path))
    assert type(caught.value) is kind
    assert says in str(caught.value)
    assert names_in(tmp_path) == set()


def test_a_process_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"good\.onnx: the process that compiles cannot be started: No such file"):
        PlanBuilder(command=(str(tmp_path / "none"),)).build(job_of("good", tmp_path))


@pytest.mark.parametrize(
    ("name", "limits", "says"),
    [
        ("silent", BuildLimits(silence_s=0.5, grace_s=0.5), "has not moved for 0.5 s"),
        ("slow", BuildLimits(total_s=0.7, silence_s=60, grace_s=0.5), "has taken longer than 0.7 s"),
    ],
)
def test_limits_of_time(tmp_path: Path, name: str, limits: BuildLimits, says: str) -> None:
    with pytest.raises(BuildTimeoutError, match=says):
        PlanBuilder(limits, FAKE).build(job_of(name, tmp_path))
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize("name", ["polite", "silent"])
def test_cancelling_takes_less_than_5_seconds(tmp_path: Path, name: str) -> None:
    cancelled = threading.Event()
    asked: list[float] = []

    def watch(event: object) -> None:
        if isinstance(event, StepDone) and not asked:
            asked.append(time.monotonic())
            cancelled.set()

    with pytest.raises(BuildCancelledError):
        PlanBuilder(BuildLimits(), FAKE).build(job_of(name, tmp_path), watch, cancelled.is_set)
    assert time.monotonic() - asked[0] < 5
    assert names_in(tmp_path) == ({"stopped"} if name == "polite" else set())


@pytest.mark.parametrize(("name", "left"), [("polite", {"stopped"}), ("silent", set())])
def test_ctrl_c_lets_a_step_end_but_does_not_wait_long(tmp_path: Path, name: str, left: set[str]) -> None:
    def watch(event: object) -> None:
        if isinstance(event, StepDone):
            raise KeyboardInterrupt

    before, begin = children(), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        PlanBuilder(BuildLimits(), FAKE).build(job_of(name, tmp_path), watch)
    assert time.monotonic() - begin < 5
    assert children() == before
    assert names_in(tmp_path) == left


def test_an_error_of_whoever_watches_leaves_no_process(tmp_path: Path, builder: PlanBuilder) -> None:
    before = children()

    def watch(_: object) -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - there is nothing to it
        builder.build(job_of("silent", tmp_path), watch)
    assert children() == before
    assert names_in(tmp_path) == set()


def test_the_real_process_says_that_there_is_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "tensorrt.py").write_text("print('noise')\nraise ImportError('libnvinfer.so.10: cannot open')\n")
    command = ("env", f"PYTHONPATH={tmp_path}", *CHILD)
    with pytest.raises(TensorRtMissingError, match=r"tensorrt: cannot be imported: libnvinfer\.so\.10"):
        PlanBuilder(command=command).build(job_of("good", tmp_path))


def test_what_lies_in_the_working_folder_is_no_module_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 imports from there, and knows no PYTHONSAFEPATH."""
    work = tmp_path / "work"
    work.mkdir()
    for name in ("tensorrt", "tensorrt_rtx", "json", "numpy", "orin_rerank", "contextlib", "traceback"):
        (work / f"{name}.py").write_text(f"open({str(tmp_path / name)!r}, 'w').close()\nraise ImportError('a trap')\n")
    monkeypatch.chdir(work)
    job = job_of("good", tmp_path / "graphs")
    (tmp_path / "graphs").mkdir()
    with pytest.raises(EngineError) as caught:  # which one depends on what is installed here; there is no such graph
        PlanBuilder(command=CHILD).build(job)
    assert type(caught.value) in {TensorRtMissingError, GraphRefusedError}, str(caught.value)
    assert "trap" not in str(caught.value)
    assert names_in(tmp_path) == {"work", "graphs"}


def test_a_bug_in_the_real_process_is_told_by_its_last_line() -> None:
    done = subprocess.run(CHILD, input=b"no job\n", capture_output=True, check=False, timeout=60)
    assert done.returncode == ExitCode.INTERNAL
    assert b"JSONDecodeError" in done.stderr.splitlines()[-1]


def test_a_job_travels_whole(tmp_path: Path) -> None:
    profiles = (ShapeProfile("64 tokens", {"tokens": Extent(1, 64, 64), "known": Extent(1, 8, 512)}),)
    job = BuildJob(tmp_path / "a b.onnx", tmp_path / "ä.plan", profiles, 5, tmp_path, None, 1, "SM86")
    assert BuildJob.from_line(job.to_line()) == job
    assert "\n" not in job.to_line()


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_a_service_manager_that_ends_every_process_is_no_failure_of_the_compiler(tmp_path: Path) -> None:
    """systemd asks the compiler to end, too; that is the daemon's to say, which may just be about to."""
    process = subprocess.Popen(CHILD, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    status = Path(f"/proc/{process.pid}/status")
    ignores = 1 << (signal.SIGTERM - 1)
    while not int(status.read_text().split("SigIgn:")[1].split()[0], 16) & ignores:
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.communicate(timeout=30)
    gone = tmp_path / "gone"

    def is_cancelled() -> bool:
        """The daemon hears of the end no sooner than its child is gone."""
        heard.append(gone.exists())
        return heard[-1]

    heard: list[bool] = []
    command = [sys.executable, "-c", f"open({str(tmp_path / 'gone')!r}, 'w')"]
    with pytest.raises(BuildCancelledError):
        PlanBuilder(BuildLimits(), command).build(job_of("good", tmp_path), is_cancelled=is_cancelled)
