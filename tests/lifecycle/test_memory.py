"""What memory sets the limits of: loading, compiling and serving by one plan, and refusing before anything is taken."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engines.running import make_encoder, noise_picture
from engines.tensorrt.fake_bindings import FakeGpu
from lifecycle.conftest import write_golden
from lifecycle.test_compile import ORIN, Machine, fated
from lifecycle.test_device_choice import RELEASE, install_plans, with_gpu
from orin_rerank.engines.bundle import TOKENIZER_FILE, Bundle
from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.host_memory import HostMemory
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.settings import DeviceChoice, EngineSettings
from orin_rerank.engines.store import EngineStore
from orin_rerank.engines.tensorrt.load import load_engine
from orin_rerank.engines.tensorrt.runtime import LoadedPlan
from orin_rerank.errors import GpuMissingError, MemoryShortError, PlanError, SelfTestError
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.accelerators import Accelerators
from orin_rerank.lifecycle.compile_target import CompileTarget
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.model import LoadedModel
from orin_rerank.lifecycle.plan_work import engine_to_compile
from orin_rerank.lifecycle.self_test import GoldenPair, unchanged_pairs
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import RerankInput, TextPart
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer

GIB = 1 << 30
CPU = EngineSettings(threads=1, token_budget=64, device=DeviceChoice.CPU)
GPU = EngineSettings(token_budget=64, device=DeviceChoice.CUDA)
LARGE = HostMemory(64 * GIB, 60 * GIB, 0)
FULL = HostMemory(64 * GIB, 100 << 20, 8 * GIB)
LONG = [TextPart("fire engine " * 2000)]


@pytest.fixture
def store(tmp_path: Path) -> EngineStore:
    return EngineStore(tmp_path / "state")


@pytest.fixture
def good(bundle_folder: Path, tmp_path: Path) -> Bundle:
    return fated(bundle_folder, tmp_path / "good", "good", "good-too")


def on(host: HostMemory) -> Accelerators:
    return Accelerators(host_memory=lambda: host)


def gpu_on(gpu: FakeGpu, host: HostMemory) -> Accelerators:
    return dataclasses.replace(with_gpu(gpu), host_memory=lambda: host)


def target(total: int, *, integrated: bool = True) -> CompileTarget:
    device = dataclasses.replace(ORIN.device, total_bytes=total, integrated=integrated)
    return dataclasses.replace(ORIN, device=device)


def assert_cut_at(model: LoadedModel, tokens: int) -> None:
    assert model.profile.max_tokens == tokens
    output = model.rerank(RerankInput(LONG, [LONG, [TextPart("a")]]))
    assert len(output.request.prefix) + len(output.request.documents[0]) == model.encoder.longest_pair
    assert model.encoder.longest_pair - tokens in range(8)  # the suffix
    assert output.request.documents[0].truncated_tokens > 0
    assert np.isfinite(output.margins).all()
    model.close()


def test_a_lower_limit_cuts_pairs_and_is_told(bundle_folder: Path) -> None:
    model = load_model(bundle_folder, dataclasses.replace(CPU, max_tokens=300), accelerators=on(LARGE))
    assert model.engine_reason == (
        "the processor was asked for; a query with a document is cut at 300 tokens where the model takes 512: that is "
        "what memory holds, or what was set"
    )
    assert_cut_at(model, 300)
    model = load_model(bundle_folder, CPU, accelerators=on(LARGE))
    assert model.engine_reason == "the processor was asked for"
    assert_cut_at(model, 512)


def test_plans_for_a_lower_limit_are_served_with_it(bundle_folder: Path, store: EngineStore) -> None:
    gpu = FakeGpu()
    settings = dataclasses.replace(GPU, max_tokens=300)
    install_plans(Bundle.open(bundle_folder), store.root, settings=settings)
    model = load_model(bundle_folder, settings, store=store, accelerators=gpu_on(gpu, LARGE))
    assert model.info.name == "tensorrt"
    assert "cut at 300 tokens" in model.engine_reason
    assert_cut_at(model, 300)
    with pytest.raises(GpuMissingError, match="packs of other sizes: compile them with"):
        load_model(bundle_folder, GPU, store=store, accelerators=gpu_on(gpu, LARGE))


def test_a_machine_that_is_too_small_is_refused(bundle_folder: Path) -> None:
    with pytest.raises(MemoryShortError, match=r"this machine has 0\.2 GiB for it, of 0\.5 GiB in all: take a smaller"):
        load_model(bundle_folder, CPU, accelerators=on(HostMemory(GIB // 2, GIB // 2, 0)))


def test_a_machine_that_is_full_is_refused(bundle_folder: Path) -> None:
    with pytest.raises(MemoryShortError, match=r"fp32 needs .* to start and 0\.\d GiB are free"):
        load_model(bundle_folder, CPU, accelerators=on(dataclasses.replace(FULL, available_bytes=1 << 20)))


def test_a_full_machine_is_found_before_its_gpu_is_touched(bundle_folder: Path, store: EngineStore) -> None:
    install_plans(Bundle.open(bundle_folder), store.root)
    gpu = FakeGpu()
    with pytest.raises(GpuMissingError, match=r"fp16 needs .* to start and 0\.1 GiB are free; stop other programs"):
        load_model(bundle_folder, GPU, store=store, accelerators=gpu_on(gpu, FULL))
    assert gpu.calls == []
    assert gpu.memory == []
    assert gpu.opened == gpu.closed == 1


class OwnMemory(FakeGpu):
    """A discrete GPU of which little is free."""

    def __init__(self, free: int) -> None:
        super().__init__(integrated=False)
        self.free = free

    def free_bytes(self) -> int:
        return self.free


def test_a_gpu_with_its_own_memory_is_asked_itself(bundle_folder: Path, store: EngineStore) -> None:
    install_plans(Bundle.open(bundle_folder), store.root, device=OwnMemory(0).open(0))
    gpu = OwnMemory(1 << 20)
    with pytest.raises(GpuMissingError, match=r"to start and 0\.0 GiB are free; stop"):
        load_model(bundle_folder, GPU, store=store, accelerators=gpu_on(gpu, LARGE))
    assert gpu.memory == []
    gpu = OwnMemory(60 * GIB)
    with pytest.raises(GpuMissingError, match=r"0\.0 GiB are free beside the GPU"):
        load_model(
            bundle_folder, GPU, store=store, accelerators=gpu_on(gpu, dataclasses.replace(FULL, available_bytes=1))
        )
    assert gpu.memory == []
    model = load_model(bundle_folder, GPU, store=store, accelerators=gpu_on(gpu, LARGE))
    assert model.info.name == "tensorrt"
    model.close()


def test_prefixes_that_are_not_remembered_give_the_same_margins(bundle_folder: Path) -> None:
    remembering = load_model(bundle_folder, CPU, accelerators=on(LARGE))
    forgetful = load_model(
        bundle_folder, dataclasses.replace(CPU, prefix_cache_bytes=40 * 1024), accelerators=on(LARGE)
    )
    documents = [[TextPart(f"a red truck {i}")] for i in range(12)]
    request = RerankInput([TextPart("ladder " * 150)], documents)
    expected, given = remembering.rerank(request), forgetful.rerank(request)
    prefix = expected.request.prefix
    assert (remembering.runner.remembers(prefix), forgetful.runner.remembers(prefix)) == (True, False)
    assert (remembering.runner.knows(prefix), forgetful.runner.knows(prefix)) == (True, False)
    assert np.abs(expected.margins - given.margins).max() < 1e-5
    remembering.close()
    forgetful.close()


def test_what_is_compiled_depends_on_memory_in_all_alone(good: Bundle, store: EngineStore) -> None:
    plans = PlanStore(store.root)

    def work(total: int, settings: EngineSettings = GPU, *, integrated: bool = True):
        return engine_to_compile(good, Precision.FP16, settings, target(total, integrated=integrated), plans)

    assert work(16 * GIB).key == work(64 * GIB).key == work(16 * GIB, integrated=False).key
    assert work(16 * GIB).memory.kind is EngineKind.TENSORRT
    assert work(16 * GIB).memory.budget.shared
    assert not work(16 * GIB, integrated=False).memory.budget.shared
    shorter = work(16 * GIB, dataclasses.replace(GPU, max_tokens=300))
    assert shorter.key != work(16 * GIB).key
    assert shorter.plans[0].profiles[-1].extents["known"].most == shorter.memory.longest_pair
    # The number of threads is the processor's, and plans for usual packs serve shorter ones too.
    assert work(16 * GIB, dataclasses.replace(GPU, threads=1, token_budget=128)).key == work(16 * GIB).key
    with pytest.raises(MemoryShortError):
        work(GIB)


def test_where_memory_is_planned_already_no_tokenizer_is_read(
    bundle_folder: Path, store: EngineStore, tmp_path: Path
) -> None:
    folder = shutil.copytree(bundle_folder, tmp_path / "copy")
    bundle, plans = Bundle.open(folder), PlanStore(store.root)
    work = engine_to_compile(bundle, Precision.FP16, GPU, target(16 * GIB), plans)
    (folder / TOKENIZER_FILE).unlink()
    again = engine_to_compile(bundle, Precision.FP16, GPU, target(16 * GIB), plans, work.memory)
    assert (again.key, again.plans) == (work.key, work.plans)


def test_the_builder_gets_what_there_is_room_for(good: Bundle, store: EngineStore) -> None:
    machine = Machine(store.root)
    (made,) = machine.compile(good)
    assert {report.workspace_bytes for report in made.reports.values()} == {made.work.memory.workspace_bytes}
    assert made.work.memory.workspace_bytes > GIB
    (forced,) = machine.compile(good, workspace_bytes=512 << 20, again=True)
    assert {report.workspace_bytes for report in forced.reports.values()} == {512 << 20}


def test_a_build_that_memory_and_swap_cannot_hold_is_not_begun(good: Bundle, store: EngineStore) -> None:
    machine = Machine(store.root)
    full = HostMemory(64 * GIB, 300 << 20, 200 << 20)
    with pytest.raises(MemoryShortError, match=r"compiling fp16 takes .* at its peak and 0\.5 GiB are free"):
        machine.compile(good, host_memory=lambda: full)
    assert machine.seen.steps == []
    (made,) = machine.compile(good, host_memory=lambda: dataclasses.replace(full, swap_free_bytes=2 * GIB))
    assert set(made.reports) == {"text.plan", "vision.plan"}
    # What is compiled already needs no memory.
    machine.compile(good, host_memory=lambda: full)


def test_a_machine_that_could_not_serve_it_compiles_nothing(good: Bundle, store: EngineStore) -> None:
    machine = Machine(store.root)
    with pytest.raises(MemoryShortError, match="take a smaller model, or INT8"):
        machine.compile(good, target(GIB))
    assert machine.seen.plans == []


def test_a_decoders_plan_is_looked_at_before_anything_is_computed(bundle_folder: Path, store: EngineStore) -> None:
    bundle = Bundle.open(bundle_folder)
    install_plans(bundle, store.root)
    gpu = FakeGpu()
    machine = with_gpu(gpu)
    cuda = machine.open_gpu()
    work = engine_to_compile(bundle, Precision.FP16, GPU, CompileTarget(RELEASE, cuda.info), PlanStore(store.root))
    found = PlanStore(store.root).find(work.key)
    assert found is not None
    seen: list[tuple[int, int, int]] = []

    def check(text: LoadedPlan) -> None:
        seen.append((text.longest("ids", text.profiles - 1), text.longest("known_id", 0), len(text.scratch_by_profile)))
        raise PlanError("is not to be trusted", item=text.name)

    memory = work.memory
    with pytest.raises(PlanError, match=r"text\.plan: is not to be trusted"):
        load_engine(
            found,
            cuda,
            machine.tensorrt().open_runtime,
            memory.image,
            memory.capacity,
            slots=2,
            pool_timeout_s=1.0,
            check=check,
        )
    assert seen == [(memory.capacity.tokens, memory.capacity.known_rows, len(work.plans[0].profiles))]
    assert gpu.memory == []
    assert gpu.closed == 1
    assert "execute_async_v3" not in gpu.calls


def test_golden_pairs_that_the_limits_cut_are_not_compared(
    checkpoint: Path, margins: list[float], tmp_path: Path
) -> None:
    golden = write_golden(tmp_path / "golden", margins)
    long = {"query": [{"text": "fire"}], "document": [{"text": "engine " * 400}], "margin": 1e6}
    with (golden / "pairs.jsonl").open("a") as lines:
        lines.write(json.dumps(long) + "\n")
    export_checkpoint(checkpoint, tmp_path / "out", ExportOptions(max_tokens=512, min_pixels=1, golden=golden))
    with pytest.raises(SelfTestError, match="where the reference gave 1000000"):
        load_model(tmp_path / "out", CPU, accelerators=on(LARGE))
    load_model(tmp_path / "out", dataclasses.replace(CPU, max_tokens=300), accelerators=on(LARGE)).close()


def test_which_golden_pairs_lower_limits_leave_as_they_are(bundle_folder: Path) -> None:
    bundle = Bundle.open(bundle_folder)
    own = make_encoder(bundle)
    prompt = bundle.manifest.prompt
    assert prompt.image is not None
    image = dataclasses.replace(prompt.image, max_pixels=64 * 64)
    tokenizer = PromptTokenizer.from_file(bundle.folder / "tokenizer.json")
    limited = PromptEncoder(dataclasses.replace(prompt, max_tokens=300, image=image), tokenizer)
    text, small, large = [TextPart("red")], noise_picture(0, 64, 64), noise_picture(1, 96, 96)
    documents = (text, [TextPart("engine " * 400)], [small], [large], [small, TextPart("engine")], [small] * 20)
    pairs = [GoldenPair(text, document, None, number) for number, document in enumerate(documents)]
    assert [pair.margin for pair in unchanged_pairs(pairs, own, limited)] == [0, 2, 4]
    assert list(unchanged_pairs(pairs[:5], own, own)) == pairs[:5]
