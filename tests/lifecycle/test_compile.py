"""Plans of a bundle, compiled by processes that end as real ones have; what remains of each on disk."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest

from lifecycle.int8_bundles import seal
from orin_rerank.engines.bundle import Bundle, GraphEntry
from orin_rerank.engines.cuda_driver import DeviceInfo
from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.engines.tensorrt.builder import BuildLimits, PlanBuilder
from orin_rerank.engines.tensorrt.job import StepDone
from orin_rerank.errors import BuildOutOfMemoryError, BundleError, RefusedPrecisionError, SettingsError, StoreBusyError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.lifecycle.compile import CompileOptions, CompileSpectator, compile_bundle, engine_to_compile
from orin_rerank.lifecycle.compile_target import CompileTarget

FAKE = Path(__file__).parents[1] / "engines" / "tensorrt" / "fake_compiler.py"
ORIN = CompileTarget("tensorrt 10.3.0", DeviceInfo("Orin", (8, 7), True, 64 << 30, 12060))


class Seen(CompileSpectator):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.earlier: list[float | None] = []
        self.steps: list[str] = []
        self.plans: list[tuple[str, bool]] = []

    def on_warning(self, warning):
        self.warnings.append(warning)

    def on_work(self, work):
        self.earlier = [plan.earlier_s for engine in work for plan in engine.plans]

    def on_event(self, engine, plan, event):
        if isinstance(event, StepDone):
            self.steps.append(plan.name)

    def on_plan(self, engine, plan, entry, report):
        self.plans.append((plan.name, report is not None))


@dataclasses.dataclass
class Machine:
    """Where engines and plans are, and what compiles."""

    state: Path
    seen: Seen = dataclasses.field(default_factory=Seen)

    @property
    def plans(self) -> PlanStore:
        return PlanStore(self.state)

    def compile(self, bundle: Bundle, target: CompileTarget = ORIN, **options):
        self.seen = Seen()
        builder = PlanBuilder(BuildLimits(grace_s=0.5), (sys.executable, str(FAKE)))
        host_memory = options.pop("host_memory", read_host_memory)
        made = CompileOptions(**options)
        return compile_bundle(
            bundle, made, target, EngineStore(self.state), self.plans, builder, self.seen, host_memory=host_memory
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "state")


def fated(bundle_folder: Path, out: Path, text: str, vision: str) -> Bundle:
    """The tiny bundle, its graphs named after what shall become of them."""
    shutil.copytree(bundle_folder, out, ignore=shutil.ignore_patterns("*.fused.*", "*.fp32.*", "golden-source"))
    manifest = Bundle.open(out).manifest
    for name, fate in ((f"{kind}.primitive.fp16.onnx", fate) for kind, fate in (("text", text), ("vision", vision))):
        (out / name).rename(out / f"{fate}.onnx")
    graphs = (GraphEntry(Dialect.PRIMITIVE, Precision.FP16, f"{text}.onnx", f"{vision}.onnx"),)
    names = [name for name in (*manifest.files, f"{text}.onnx", f"{vision}.onnx") if (out / name).exists()]
    return seal(out, dataclasses.replace(manifest, graphs=graphs), names)


@pytest.fixture
def good(bundle_folder: Path, tmp_path: Path) -> Bundle:
    return fated(bundle_folder, tmp_path / "good", "good", "killed-above-256-mib")


def test_a_set_is_installed_and_found_by_what_will_serve_it(machine: Machine, good: Bundle) -> None:
    (made,) = machine.compile(good, workspace_bytes=512 << 20)
    work = engine_to_compile(good, Precision.FP16, EngineSettings(), ORIN, machine.plans)
    assert machine.plans.find(work.key) == made.plans
    assert made.reports["vision.plan"].attempts == 2
    assert machine.seen.plans == [("text.plan", True), ("vision.plan", True)]
    assert machine.seen.steps == ["text.plan", "vision.plan", "vision.plan"]
    assert [plan.earlier_s for plan in work.plans] == [0.1, 0.1]
    assert work.plans[0].effort == 6 * (good.folder / "good.onnx").stat().st_size
    machine.compile(good)
    assert machine.seen.plans == [("text.plan", False), ("vision.plan", False)]
    assert machine.seen.steps == []


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (dataclasses.replace(ORIN, runtime="tensorrt 10.16.2"), {}),
        (ORIN, {"settings": EngineSettings(token_budget=2048)}),
        (CompileTarget("tensorrt_rtx 1.7.1.116", DeviceInfo("SM86", (8, 6), False, 0, 0), "SM86"), {}),
    ],
)
def test_another_key_is_compiled_for_itself(
    machine: Machine, good: Bundle, target: CompileTarget, options: dict[str, object]
) -> None:
    (first,) = machine.compile(good, workspace_bytes=256 << 20)
    (second,) = machine.compile(good, target, workspace_bytes=256 << 20, **options)
    assert second.work.key != first.work.key
    assert machine.seen.plans == [("text.plan", True), ("vision.plan", True)]
    assert machine.seen.earlier == [0.1, 0.1]
    assert machine.plans.find(first.work.key) == first.plans


def test_a_damaged_plan_is_compiled_again(machine: Machine, good: Bundle) -> None:
    (first,) = machine.compile(good, workspace_bytes=256 << 20)
    (first.plans.folder / "vision.plan").write_bytes(b"plam")
    (second,) = machine.compile(good, workspace_bytes=256 << 20)
    assert "it is compiled again" in machine.seen.warnings[0]
    assert second.plans.folder != first.plans.folder
    second.plans.verify("vision.plan")


def test_what_is_compiled_outlives_a_failure(machine: Machine, bundle_folder: Path, tmp_path: Path) -> None:
    bundle = fated(bundle_folder, tmp_path / "bundle", "good", "nvmap")
    with pytest.raises(BuildOutOfMemoryError, match="error 12"):
        machine.compile(bundle, workspace_bytes=64 << 20)
    assert machine.plans.stored() == []
    with pytest.raises(BuildOutOfMemoryError):
        machine.compile(bundle, workspace_bytes=64 << 20)
    assert machine.seen.plans == [("text.plan", False)]


def test_one_at_a_time(machine: Machine, good: Bundle) -> None:
    key = engine_to_compile(good, Precision.FP16, EngineSettings(), ORIN, machine.plans).key
    with machine.plans.staging(key, ["text.plan"]), pytest.raises(StoreBusyError):
        machine.compile(good)


def test_bundles_that_cannot_be_compiled(machine: Machine, good: Bundle) -> None:
    with pytest.raises(RefusedPrecisionError, match="no INT8 engine is installed"):
        machine.compile(good, settings=EngineSettings(precision=PrecisionChoice.INT8))
    derived = dataclasses.replace(good, manifest=dataclasses.replace(good.manifest, source="1" * 64))
    with pytest.raises(BundleError, match="is an INT8 engine"):
        machine.compile(derived)
    graphs = (dataclasses.replace(good.manifest.graphs[0], dialect=Dialect.FUSED),)
    with pytest.raises(BundleError, match="has no primitive graph in fp16"):
        machine.compile(dataclasses.replace(good, manifest=dataclasses.replace(good.manifest, graphs=graphs)))
    (good.folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(BundleError, match=r"model\.safetensors"):
        machine.compile(good)


@pytest.mark.parametrize(("name", "value"), [("workspace_bytes", 1 << 20), ("level", 6), ("level", -1)])
def test_options_are_checked(name: str, value: int) -> None:
    with pytest.raises(SettingsError) as caught:
        CompileOptions(**{name: value})
    assert caught.value.item == name.partition("_")[0]
