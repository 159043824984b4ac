"""Which engine a model is loaded on: real graphs, plans and stores; the GPU and TensorRT are fakes."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engines.tensorrt.fake_bindings import FakeGpu, FakeRuntime, Strategy, write_plan
from lifecycle.int8_bundles import add_gate, add_plan_gate, noisy_record, write_int8_bundle
from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.settings import DeviceChoice, EngineSettings, PrecisionChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.engines.tensorrt.journal import Journal
from orin_rerank.engines.tensorrt.runtime import PlanRuntime
from orin_rerank.errors import DeviceLostError, EngineError, GpuMissingError, RefusedPrecisionError
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.accelerators import Accelerators, TensorRt
from orin_rerank.lifecycle.compile_target import CompileTarget
from orin_rerank.lifecycle.model import LoadedModel
from orin_rerank.lifecycle.plan_work import engine_to_compile
from orin_rerank.lifecycle.precision import PLAN_GATE_FILE
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import RerankInput, TextPart
from orin_rerank.quantization.gate import GATE_FILE, GateSubject

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.engines.cuda_driver import DeviceInfo

SETTINGS = EngineSettings(token_budget=64)
CUDA = dataclasses.replace(SETTINGS, device=DeviceChoice.CUDA)
RELEASE = "tensorrt 10.3.0"
LOST = "Error Code 1: Cuda Runtime (an illegal memory access was encountered)"
REQUEST = RerankInput([TextPart("red fire engine")], [[TextPart("a fire truck")]])


def with_gpu(gpu: FakeGpu, release: str = RELEASE) -> Accelerators:
    """A machine with a GPU and TensorRT."""
    journal = Journal()

    def open_runtime() -> PlanRuntime:
        return PlanRuntime(FakeRuntime(gpu, journal.say), Strategy, journal)  # type: ignore[arg-type]

    return Accelerators(lambda: TensorRt(release, open_runtime), lambda: CudaThread(driver=gpu))


def install_plans(
    bundle: Bundle,
    state: Path,
    weights: Path | None = None,
    precision: Precision = Precision.FP16,
    noise: float = 0.1,
    *,
    settings: EngineSettings = SETTINGS,
    device: DeviceInfo | None = None,
) -> Path:
    """Plans of a bundle, under the key that compiling installs them under; of INT8 with a gate's record."""
    store = PlanStore(state)
    target = CompileTarget(RELEASE, device or FakeGpu().open(0))
    work = engine_to_compile(bundle, precision, settings, target, store)
    with store.staging(work.key, [plan.name for plan in work.plans]) as staged:
        for plan in work.plans:
            write_plan(staged.path(plan.name), plan.graph, plan.profiles, weights=weights)
            staged.add(plan.name, 1.0)
        installed = staged.install()
    if bundle.manifest.source is not None:
        add_plan_gate(installed, bundle.manifest.source, noise)
    return installed.folder


@pytest.fixture
def store(tmp_path: Path) -> EngineStore:
    return EngineStore(tmp_path / "state")


@pytest.fixture
def plans(bundle_folder: Path, store: EngineStore) -> Path:
    return install_plans(Bundle.open(bundle_folder), store.root)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def assert_on_processor(model: LoadedModel, why: str) -> None:
    assert (model.info.name, model.info.precision) == ("onnxruntime-cpu", "fp32")
    assert why in model.engine_reason
    model.close()


def test_plans_for_this_machine_are_served(
    bundle_folder: Path, store: EngineStore, plans: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = FakeGpu()
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(gpu))
    assert (model.info.name, model.info.precision, model.info.slots) == ("tensorrt", "fp16", 2)
    assert model.engine_reason == "plans for this machine are installed"
    assert "execute_async_v3" in gpu.calls
    processor = load_model(bundle_folder, dataclasses.replace(SETTINGS, device=DeviceChoice.CPU), store=store)
    assert processor.engine_reason == "the processor was asked for"
    expected = processor.rerank(REQUEST).margins
    assert model.rerank(REQUEST).margins == pytest.approx(expected, abs=0.02)
    model.close()
    processor.close()
    assert not gpu.memory
    assert gpu.closed == 1
    assert warnings(caplog) == []


@pytest.mark.parametrize("threads", [1, 7])
def test_threads_are_the_processors_and_a_gpu_has_its_two_slots(
    bundle_folder: Path, store: EngineStore, plans: Path, threads: int
) -> None:
    settings = dataclasses.replace(SETTINGS, threads=threads)
    model = load_model(bundle_folder, settings, store=store, accelerators=with_gpu(FakeGpu()))
    assert (model.info.name, model.info.slots) == ("tensorrt", 2)
    model.close()
    model = load_model(bundle_folder, dataclasses.replace(settings, device=DeviceChoice.CPU), store=store)
    assert (model.info.name, model.info.slots) == ("onnxruntime-cpu", threads)
    model.close()


@pytest.mark.parametrize("budget", [None, 16, 64, 1024])
def test_the_usual_plans_serve_any_smaller_budget(
    bundle_folder: Path, store: EngineStore, plans: Path, budget: int | None
) -> None:
    settings = dataclasses.replace(CUDA, token_budget=budget)
    model = load_model(bundle_folder, settings, store=store, accelerators=with_gpu(FakeGpu()))
    assert model.info.name == "tensorrt"
    assert budget is None or model.budget.for_prefix(0) == budget
    assert np.isfinite(model.rerank(REQUEST).margins).all()
    model.close()


@pytest.mark.parametrize("other", [{"token_budget": 2048}, {"max_tokens": 300}])
def test_plans_for_packs_of_other_sizes_say_how_to_get_the_right_ones(
    bundle_folder: Path, store: EngineStore, plans: Path, other: dict[str, int]
) -> None:
    settings = dataclasses.replace(CUDA, **other)
    with pytest.raises(GpuMissingError, match="compile them with the --token-budget and the --max-tokens"):
        load_model(bundle_folder, settings, store=store, accelerators=with_gpu(FakeGpu()))


def test_without_plans_it_says_how_to_get_them(
    bundle_folder: Path, store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = FakeGpu()
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(gpu))
    assert_on_processor(model, "no fp16 plans are installed for this bundle; `orin-rerank build` compiles them")
    assert warnings(caplog) == ["an engine on the GPU cannot be had"]
    assert gpu.closed == gpu.opened == 1


def test_plans_of_another_key_are_not_loaded(
    bundle_folder: Path, store: EngineStore, plans: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = FakeGpu()
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(gpu, "tensorrt 10.16.2"))
    assert_on_processor(model, "runtime: tensorrt 10.3.0, not tensorrt 10.16.2")
    assert gpu.calls == []
    assert len(warnings(caplog)) == 1


def test_damaged_plans_are_not_loaded(
    bundle_folder: Path, store: EngineStore, plans: Path, caplog: pytest.LogCaptureFixture
) -> None:
    contents = bytearray((plans / "text.plan").read_bytes())
    contents[-9] ^= 1
    (plans / "text.plan").write_bytes(contents)
    gpu = FakeGpu()
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(gpu))
    assert_on_processor(model, "does not have the contents that the manifest names")
    assert gpu.calls == []
    assert len(warnings(caplog)) == 1
    with pytest.raises(GpuMissingError, match="does not have the contents"):
        load_model(bundle_folder, CUDA, store=store, accelerators=with_gpu(FakeGpu()))


def test_plans_that_compute_something_else_do_not_pass_the_self_test(
    bundle_folder: Path, store: EngineStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the manifest vouches for can be wrong all the same; the golden pairs tell."""
    contents = bytearray((bundle_folder / WEIGHTS_FILE).read_bytes())
    contents[len(contents) // 2 :] = bytes(len(contents) - len(contents) // 2)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / WEIGHTS_FILE).write_bytes(contents)
    install_plans(Bundle.open(bundle_folder), store.root, weights=tmp_path / "weights")
    gpu = FakeGpu()
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(gpu))
    assert_on_processor(model, "where the reference gave")
    assert len(warnings(caplog)) == 1
    assert not gpu.memory
    assert gpu.closed == 1


def test_a_gpu_that_cannot_be_opened_is_said_and_gone_past(
    bundle_folder: Path, store: EngineStore, plans: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> CudaThread:
        raise EngineError("CUDA failed: no CUDA-capable device is detected")

    machine = dataclasses.replace(with_gpu(FakeGpu()), open_gpu=fail)
    assert_on_processor(
        load_model(bundle_folder, SETTINGS, store=store, accelerators=machine), "no CUDA-capable device is detected"
    )
    assert len(warnings(caplog)) == 1
    with pytest.raises(GpuMissingError, match=r"TensorRT \(fp16\).*no CUDA-capable.*ONNX Runtime \(fp16\)"):
        load_model(bundle_folder, CUDA, store=store, accelerators=machine)


def test_a_gpu_that_is_lost_while_loading_ends_it(bundle_folder: Path, store: EngineStore, plans: Path) -> None:
    gpu = FakeGpu()
    gpu.failing["execute_async_v3"] = LOST
    with pytest.raises(DeviceLostError):
        load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(gpu))


def test_int8_that_was_asked_for_is_not_replaced(bundle_folder: Path, store: EngineStore, plans: Path) -> None:
    with pytest.raises(RefusedPrecisionError, match="no INT8 engine is installed"):
        load_model(
            bundle_folder,
            dataclasses.replace(CUDA, precision=PrecisionChoice.INT8),
            store=store,
            accelerators=with_gpu(FakeGpu()),
        )


def install_int8(bundle_folder: Path, store: EngineStore) -> Bundle:
    """An INT8 engine that passed its gate on the processor."""
    bundle = Bundle.open(bundle_folder)
    requests = [RerankInput([TextPart(f"query {i}")], [[TextPart("a document")], [TextPart("more")]]) for i in range(4)]
    with store.staging(bundle.digest) as staged:
        add_gate(write_int8_bundle(bundle, staged, requests))
        return Bundle.open(store.install(bundle.digest, staged))


def _refuse(record: Path) -> str:
    record.unlink()
    return "these plans have not been judged on this machine; `orin-rerank build` does it"


def _damage(record: Path) -> str:
    record.write_text(record.read_text().replace("0.", "1.", 1))
    return "does not have the contents that its own SHA-256 names"


def _bring_another(record: Path) -> str:
    other = noisy_record(GateSubject("1" * 64, "2" * 64), 0.1)
    record.write_text(other.to_json())
    return "the gate's record is of source bundle 111111111111"


@pytest.mark.parametrize("spoil", [_refuse, _damage, _bring_another])
def test_int8_plans_without_a_verdict_of_their_own_are_not_served(
    bundle_folder: Path, store: EngineStore, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], str]
) -> None:
    """The processor's INT8 passed its gate, and that says nothing of what a compiler made of it."""
    install_plans(Bundle.open(bundle_folder), store.root)
    int8 = install_int8(bundle_folder, store)
    why = spoil(install_plans(int8, store.root, precision=Precision.INT8_FP16) / PLAN_GATE_FILE)
    gpu = FakeGpu()
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(gpu))
    model.close()
    assert (model.info.name, model.info.precision) == ("tensorrt", "fp16")
    assert model.precision_reason.startswith("an INT8 engine is installed, but not on this GPU: ")
    assert why in model.precision_reason
    assert why in model.engine_reason
    assert warnings(caplog) == ["an engine on the GPU cannot be had"]
    int8_only = dataclasses.replace(CUDA, precision=PrecisionChoice.INT8)
    with pytest.raises(GpuMissingError, match=re.escape(why)):
        load_model(bundle_folder, int8_only, store=store, accelerators=with_gpu(FakeGpu()))


def test_int8_plans_that_their_gate_refuses_are_not_served(bundle_folder: Path, store: EngineStore) -> None:
    int8 = install_int8(bundle_folder, store)
    install_plans(int8, store.root, precision=Precision.INT8_FP16, noise=0.8)
    gpu = FakeGpu()
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(gpu))
    model.close()
    assert (model.info.name, model.info.precision) == ("onnxruntime-cpu", "int8")
    assert model.precision_reason.startswith("INT8 passed its gate: ")
    assert "the gate refuses INT8: " in model.engine_reason
    assert "`orin-rerank build --again` compiles others and has them judged" in model.engine_reason
    assert gpu.calls == [], "not one kernel of theirs has run"


def test_int8_is_served_from_its_own_plans_and_float16_without_them(bundle_folder: Path, store: EngineStore) -> None:
    bundle, int8 = Bundle.open(bundle_folder), install_int8(bundle_folder, store)
    install_plans(bundle, store.root)
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(FakeGpu()))
    model.close()
    assert (model.info.name, model.info.precision) == ("tensorrt", "fp16")
    assert model.precision_reason.startswith("an INT8 engine is installed, but not on this GPU: ")
    assert "no int8-fp16 plans are installed" in model.precision_reason
    install_plans(int8, store.root, precision=Precision.INT8_FP16)
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(FakeGpu()))
    model.close()
    assert (model.info.name, model.info.precision) == ("tensorrt", "int8-fp16")
    assert (model.digest, model.source) == (int8.digest, bundle.digest)
    assert model.precision_reason.startswith("INT8 passed its gate on this GPU: ")
    (int8.folder / GATE_FILE).write_text("{}")
    model = load_model(bundle_folder, SETTINGS, store=store, accelerators=with_gpu(FakeGpu()))
    model.close()
    assert (model.info.name, model.info.precision) == ("tensorrt", "fp16")
    assert model.precision_reason.startswith("an INT8 engine is installed, but refused: ")


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="TensorRT is installed")
def test_a_machine_without_any_of_it_says_so_and_warns_of_nothing(
    bundle_folder: Path, store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert_on_processor(load_model(bundle_folder, SETTINGS, store=store), "TensorRT is not installed")
    assert warnings(caplog) == []


def test_a_store_that_cannot_be_read_is_not_called_a_refused_engine(
    bundle_folder: Path, store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = Bundle.open(bundle_folder)
    with store.staging(bundle.digest) as staged:
        (staged.parent / "current").write_text("no link")
    model = load_model(bundle_folder, SETTINGS, store=store)
    assert model.precision_reason.startswith("INT8 engines cannot be looked for: ")
    assert "is installed" not in model.precision_reason
    model.close()
    assert warnings(caplog) == ["serving full precision"]
    with pytest.raises(RefusedPrecisionError, match="INT8 engines cannot be looked for"):
        load_model(bundle_folder, dataclasses.replace(SETTINGS, precision=PrecisionChoice.INT8), store=store)
