"""INT8 plans are judged on the GPU before they are installed: real graphs, sets, stores and gate; the GPU is a fake."""

from __future__ import annotations

import dataclasses
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engines.tensorrt.fake_bindings import FakeGpu
from engines.tensorrt.fake_plan import coarsened, write_plan
from lifecycle.calibrated import Made, Workplace
from lifecycle.calibration_sets import write_part
from lifecycle.int8_bundles import seal
from lifecycle.test_device_choice import LOST, RELEASE, with_gpu
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.engines.tensorrt.builder import BuildReport
from orin_rerank.engines.tensorrt.job import BuildDone, BuildJob
from orin_rerank.errors import (
    BuildCancelledError,
    BuildError,
    BuildOutOfMemoryError,
    BuildTimeoutError,
    CalibrationError,
    DatasetError,
    DeviceLostError,
    GraphRefusedError,
    RefusedPrecisionError,
)
from orin_rerank.lifecycle.compile import CompiledEngine, CompileOptions, CompileSpectator, compile_bundle
from orin_rerank.lifecycle.compile_target import CompileTarget
from orin_rerank.lifecycle.judging import REFERENCE_FILE
from orin_rerank.lifecycle.plan_judging import PlanJudge
from orin_rerank.lifecycle.precision import PLAN_GATE_FILE, find_int8
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.quantization.gate import GateRecord

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = EngineSettings(token_budget=64)
INT8 = EngineSettings(PrecisionChoice.INT8, token_budget=64)


class Compiler:
    """In place of `PlanBuilder`: writes what stands for a plan, at once.

    `coarse` gets the rounding of INT8 wrong, `fails` does not compile INT8 at all.
    """

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.coarse: float | None = None
        self.fails: BuildError | None = None

    def build(self, job: BuildJob, watch: Callable[[Any], None]) -> BuildReport:
        if self.fails is not None and "int8" in job.graph.name:
            raise self.fails
        self.compiled.append(f"{job.graph.parent.name[:2]} {job.plan.name}")
        text = job.plan.name == "text.plan" and "int8" in job.graph.name
        model = coarsened(job.graph, self.coarse) if self.coarse is not None and text else None
        write_plan(job.plan, job.graph, job.profiles, model=model)
        return BuildReport(BuildDone("fake", 1, 1, 0.1, 1, timing_cache_used=False), 1, job.workspace_bytes)


@dataclass
class Seen(CompileSpectator):
    """Remembers what it is told; `interrupt` presses Ctrl-C after so many queries."""

    warnings: list[str] = field(default_factory=list)
    judged: list[tuple[int, int]] = field(default_factory=list)
    records: list[GateRecord | None] = field(default_factory=list)
    failures: list[BuildError] = field(default_factory=list)
    interrupt: int | None = None

    def on_warning(self, warning: str) -> None:
        self.warnings.append(warning)

    def on_failure(self, engine: object, error: BuildError) -> None:
        self.failures.append(error)

    def on_judging(self, engine: object, done: int, total: int) -> None:
        self.judged.append((done, total))
        if done == self.interrupt:
            raise KeyboardInterrupt

    def on_verdict(self, engine: object, record: GateRecord | None) -> None:
        self.records.append(record)


@dataclass
class Board:
    """A machine with a calibrated engine, a GPU and TensorRT."""

    at: Workplace
    gpu: FakeGpu = field(default_factory=lambda: FakeGpu(integrated=True))
    compiler: Compiler = field(default_factory=Compiler)
    seen: Seen = field(default_factory=Seen)

    def build(
        self, settings: EngineSettings = SETTINGS, evaluation: Path | None = None, **options: Any
    ) -> list[CompiledEngine]:
        self.seen = Seen(interrupt=options.pop("interrupt", None))
        self.compiler.compiled.clear()
        judged = evaluation or self.at.judged
        return compile_bundle(
            self.at.bundle,
            CompileOptions(settings, **options),
            CompileTarget(RELEASE, FakeGpu(integrated=True).open(0)),
            self.at.store,
            self.plans,
            self.compiler,  # type: ignore[arg-type]
            self.seen,
            lambda int8: PlanJudge.open(int8, judged, settings, with_gpu(self.gpu)),
        )

    @property
    def plans(self) -> PlanStore:
        return PlanStore(self.at.store.root)

    def served(self) -> tuple[str, str]:
        """What serves, and why in that precision."""
        machine = with_gpu(FakeGpu(integrated=True))
        model = load_model(self.at.bundle.folder, SETTINGS, store=self.at.store, accelerators=machine)
        model.close()
        return f"{model.info.name} {model.info.precision}", model.precision_reason


@pytest.fixture
def board(made: Made, tmp_path: Path) -> Board:
    return Board(made.elsewhere(tmp_path))


COARSE = 4.0
"""A compiler that rounds so much more coarsely than the graph says."""


def test_what_passes_is_installed_with_its_record_and_served(board: Board) -> None:
    int8, half = board.build()
    assert board.compiler.compiled == ["1- text.plan", "1- vision.plan", "bu text.plan", "bu vision.plan"]
    assert (int8.work.precision, half.work.precision, half.gate) == ("int8-fp16", "fp16", None)
    assert board.seen.judged == [(done, 56) for done in range(57)]
    (record,) = board.seen.records
    assert record == int8.gate
    assert record.to_json() == (int8.plans.folder / PLAN_GATE_FILE).read_text()
    assert record.verdict.passed
    processor = find_int8(board.at.bundle, board.at.store, lambda _: None)
    assert processor is not None
    assert (record.dataset, record.thresholds) == (processor.gate.dataset, processor.gate.thresholds)
    assert record.report.total.reference == processor.gate.report.total.reference
    assert record.report.total.correlation != processor.gate.report.total.correlation, "it is another engine"
    assert (len(record.golden or ()), processor.gate.golden) == (2, None)
    assert "execute_async_v3" in board.gpu.calls
    assert (board.gpu.memory, board.gpu.opened_by) == ([], None)
    serving, reason = board.served()
    assert serving == "tensorrt int8-fp16"
    assert reason.startswith("INT8 passed its gate on this GPU: ")
    assert f"correlate by {record.report.total.correlation:.4f}" in reason
    board.build()
    assert (board.compiler.compiled, board.seen.judged) == ([], []), "nor is it judged again"
    assert board.seen.records == [record]


def test_what_is_refused_is_installed_for_the_daemon_to_say_why(board: Board) -> None:
    board.compiler.coarse = COARSE
    int8, half = board.build()
    assert int8.gate is not None
    (reason,) = int8.gate.verdict.reasons
    assert reason.startswith("margins correlate by 0.98")
    (warning,) = board.seen.warnings
    assert f"the gate refuses INT8 as it was compiled for this GPU: {reason}; `orin-rerank build --again`" in warning
    serving, why = board.served()
    assert serving == f"tensorrt {half.work.precision}"
    assert f"the gate refuses INT8: {reason}" in why
    with pytest.raises(RefusedPrecisionError, match=r"margins correlate by 0\.98"):
        board.build(INT8)
    assert (board.compiler.compiled, board.seen.judged) == ([], []), "the verdict stands until it is compiled again"
    board.compiler.coarse = None
    board.build(again=True)
    assert board.served()[0] == "tensorrt int8-fp16"


def test_what_passed_stays_in_service_where_what_comes_after_does_not(board: Board) -> None:
    """The same graphs and the same timing cache may give another engine."""
    passed = board.build(INT8)[0].plans
    for coarse in (COARSE, 4 * COARSE, math.nan):
        board.compiler.coarse = coarse
        with pytest.raises(RefusedPrecisionError, match="the int8-fp16 plans that passed before stay in service"):
            board.build(INT8, again=True)
        assert board.compiler.compiled == ["1- text.plan", "1- vision.plan"]
        assert board.plans.find(passed.manifest.key) == passed
        assert board.served()[0] == "tensorrt int8-fp16"
        left = sorted(path.name for path in passed.folder.parent.glob(".staging-*/*"))
        assert left == [], "nothing of what was refused is used again"


def test_plans_that_give_no_numbers_are_refused(board: Board) -> None:
    board.compiler.coarse = math.nan
    with pytest.raises(RefusedPrecisionError, match="168 of 168 margins are not finite"):
        board.build(INT8)
    assert board.plans.stored()[0].plans is not None


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (GraphRefusedError, True),
        (BuildTimeoutError, True),
        (BuildOutOfMemoryError, False),
        (BuildCancelledError, False),
    ],
)
def test_a_precision_that_is_not_compiled_does_not_cost_the_other(
    board: Board, error: type[BuildError], *, goes_on: bool
) -> None:
    """Unless nobody wants it any more, or it would take more of the memory that ran out."""
    board.compiler.fails = error("no INT8 here", item="text.onnx")
    with pytest.raises(error, match="no INT8 here"):
        board.build()
    assert board.compiler.compiled == (["bu text.plan", "bu vision.plan"] if goes_on else [])
    assert [str(failure) for failure in board.seen.failures] == (["text.onnx: no INT8 here"] if goes_on else [])
    assert [stored.precision for stored in board.plans.stored()] == (["fp16"] if goes_on else [])
    if goes_on:
        assert board.served()[0] == "tensorrt fp16"


def test_ctrl_c_while_it_is_judged_costs_no_plan(board: Board) -> None:
    with pytest.raises(KeyboardInterrupt):
        board.build(INT8, interrupt=20)
    assert board.gpu.opened_by is None, "the GPU has been given back"
    assert board.plans.stored() == [], "nothing goes into service without a verdict"
    board.build(INT8)
    assert (board.compiler.compiled, len(board.seen.judged)) == ([], 57)
    assert board.served()[0] == "tensorrt int8-fp16"


def test_a_lack_of_memory_costs_no_plan(board: Board) -> None:
    board.gpu.failing["create_execution_context"] = "Error Code 1: Cuda Runtime (out of memory)"
    board.build()
    (warning,) = board.seen.warnings
    assert "could not be judged on this GPU: text.plan: no execution context could be made, since memory ran" in warning
    assert "the same command tries again, and compiles nothing again for it" in warning
    assert board.seen.records == [None]
    assert board.served()[0] == "tensorrt fp16"
    board.build()
    assert (board.compiler.compiled, board.seen.warnings) == ([], [])
    assert board.served()[0] == "tensorrt int8-fp16"


def test_a_lost_gpu_ends_it(board: Board) -> None:
    board.gpu.spared["execute_async_v3"] = 5
    board.gpu.failing["execute_async_v3"] = LOST
    with pytest.raises(DeviceLostError):
        board.build()
    board.gpu = FakeGpu(integrated=True)
    board.build(INT8)
    assert board.compiler.compiled == []


def test_plans_are_held_to_their_own_golden_margins(board: Board) -> None:
    """Those of the INT8 engine are the processor's, from which a GPU that ranks as well may be further away."""
    plans = board.build(INT8)[0].plans
    path = plans.folder / PLAN_GATE_FILE
    record = GateRecord.from_json(path.read_text())
    assert record.golden is not None
    for golden, why in (
        ([margin + 0.15 for margin in record.golden], "golden/pairs.jsonl:1: the model gives"),
        (record.golden[1:], "golden/pairs.jsonl: 2 pairs, and margins of 1"),
    ):
        path.write_text(dataclasses.replace(record, golden=tuple(golden)).to_json())
        machine = with_gpu(FakeGpu(integrated=True))
        model = load_model(board.at.bundle.folder, SETTINGS, store=board.at.store, accelerators=machine)
        model.close()
        assert model.info.name == "onnxruntime-cpu"
        assert why in model.engine_reason


def test_plans_that_do_not_load_are_thrown_away(board: Board) -> None:
    board.gpu.failing["deserialize_cuda_engine"] = "Error Code 1: Serialization (magicTag == kEXPECTED_MAGIC_TAG)"
    with pytest.raises(RefusedPrecisionError, match=r"do not load on the GPU .* for: text\.plan: "):
        board.build(INT8)
    board.build(INT8)
    assert board.compiler.compiled == ["1- text.plan", "1- vision.plan"], "again, and from the beginning"
    assert board.served()[0] == "tensorrt int8-fp16"


@pytest.mark.parametrize("text", [None, "{}"])
def test_plans_that_are_installed_without_a_record_are_judged_where_they_lie(board: Board, text: str | None) -> None:
    plans = board.build(INT8)[0].plans
    (plans.folder / PLAN_GATE_FILE).unlink()
    if text is not None:
        (plans.folder / PLAN_GATE_FILE).write_text(text)
    assert board.served()[0] == "onnxruntime-cpu int8"
    (again,) = board.build(INT8)
    assert (again.plans, board.compiler.compiled, len(board.seen.judged)) == (plans, [], 57)
    assert board.served()[0] == "tensorrt int8-fp16"


def test_without_what_it_was_judged_by_int8_is_not_compiled(board: Board, tmp_path: Path) -> None:
    """Said before hours go into compiling it."""
    other = write_part(tmp_path / "other", board.at.judged, 1)
    shutil.copyfile(other / "dataset.jsonl", tmp_path / "lines")
    lines = (tmp_path / "lines").read_text().splitlines(keepends=True)
    (other / "dataset.jsonl").write_text("".join(reversed(lines)))
    (made,) = board.build(evaluation=other)
    assert made.work.precision == "fp16"
    assert "INT8 is not compiled, since it could not be judged: " in board.seen.warnings[0]
    assert "is not the set that the INT8 engine was judged by" in board.seen.warnings[0]
    with pytest.raises(DatasetError, match="name that one, or calibrate with this one"):
        board.build(INT8, evaluation=other)
    int8 = find_int8(board.at.bundle, board.at.store, lambda _: None)
    assert int8 is not None
    with pytest.raises(DatasetError, match="there is no judged set"):
        PlanJudge.open(int8, None, INT8, with_gpu(board.gpu))
    names = [name for name in int8.bundle.manifest.files if name != REFERENCE_FILE]
    shutil.copytree(int8.bundle.folder, tmp_path / "bare")
    bare = dataclasses.replace(int8, bundle=seal(tmp_path / "bare", int8.bundle.manifest, names))
    with pytest.raises(CalibrationError, match="`orin-rerank calibrate --reuse` with this folder"):
        PlanJudge.open(bare, board.at.judged, INT8, with_gpu(board.gpu))


def test_plans_for_another_gpu_are_not_judged(board: Board) -> None:
    def judge(_: object) -> PlanJudge:
        raise AssertionError("there is nothing to run them on")

    target = CompileTarget("tensorrt_rtx 1.7.1.116", FakeGpu().open(0), "SM86")
    compiler: Any = Compiler()
    made = compile_bundle(
        board.at.bundle, CompileOptions(INT8), target, board.at.store, board.plans, compiler, None, judge
    )
    assert [one.gate for one in made] == [None]


def test_the_bundle_that_was_compiled_is_known_by_its_folder(board: Board) -> None:
    int8, half = board.build()
    origins = board.plans.bundles()
    assert origins[half.work.bundle.digest] == board.at.bundle.folder
    where = origins[int8.work.bundle.digest]
    assert where is not None
    assert Bundle.open(where).digest == int8.work.bundle.digest
