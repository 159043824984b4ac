"""The TensorRT engine against a GPU that is a fake, and graphs that are not: it gives what ONNX Runtime gives."""

from __future__ import annotations

import dataclasses
import gc
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engines.running import (
    make_encoder,
    make_engine,
    make_runner,
    margins_of,
    noise_picture,
    pack_of,
    pairs_of,
    random_requests,
    random_split,
)
from engines.tensorrt.fake_bindings import FakeGpu, FakeRuntime, Strategy, write_plan
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.port import Probe
from orin_rerank.engines.tensorrt.journal import Journal
from orin_rerank.engines.tensorrt.load import TEXT_PLAN, VISION_PLAN, load_engine, plan_key, platform_release
from orin_rerank.engines.tensorrt.profiles import text_profiles, vision_profiles
from orin_rerank.engines.tensorrt.runtime import PlanRuntime
from orin_rerank.errors import (
    DeviceLostError,
    EngineClosedError,
    EngineError,
    InternalError,
    NonFiniteScoreError,
    PlanError,
)
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.packing.arrays import PackLayout
from orin_rerank.prompt.content import RerankInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.plans import PlanKey, PlanSet
    from orin_rerank.engines.tensorrt.engine import TensorRtEngine
    from orin_rerank.prompt.content import ImagePart
    from orin_rerank.prompt.encoded import EncodedImage
    from orin_rerank.prompt.encoder import PromptEncoder

TOKENS = 512
BATCH_PATCHES = 256
ILLEGAL = "Error Code 1: Cuda Runtime (an illegal memory access was encountered)"


def capacity_of(bundle: Bundle, precision: Precision, tokens: int = TOKENS) -> PackCapacity:
    return PackCapacity.of_model(
        bundle.manifest.architecture,
        tokens=tokens,
        documents=32,
        product_dtype=np.float16 if precision.half else np.float32,
    )


def build(bundle: Bundle, root: Path, precision: Precision = Precision.FP32, tokens: int = TOKENS) -> PlanSet:
    """Plans of a bundle's graphs, by way of the store."""
    image = bundle.manifest.prompt.image
    text = text_profiles(capacity_of(bundle, precision, tokens), 128)
    vision = () if image is None else vision_profiles(image, BATCH_PATCHES)
    key = plan_key(
        FakeGpu().open(0),
        "tensorrt 10.3.0",
        bundle=bundle.digest,
        precision=precision.value,
        precision_plan=None,
        text=text,
        vision=vision,
    )
    store = PlanStore(root)
    graph = bundle.graph(Dialect.PRIMITIVE, precision)
    with store.staging(key, [TEXT_PLAN, VISION_PLAN] if graph.vision else [TEXT_PLAN]) as staged:
        write_plan(staged.path(TEXT_PLAN), bundle.folder / graph.text, text)
        staged.add(TEXT_PLAN, 1.0)
        if graph.vision:
            write_plan(staged.path(VISION_PLAN), bundle.folder / graph.vision, vision)
            staged.add(VISION_PLAN, 1.0)
        staged.install()
    found = store.find(key)
    assert found is not None
    return found


def load(
    bundle: Bundle,
    plans: PlanSet,
    gpu: FakeGpu,
    *,
    slots: int = 2,
    precision: Precision = Precision.FP32,
    pool_timeout_s: float = 5.0,
) -> TensorRtEngine:
    journal = Journal()
    return load_engine(
        plans,
        CudaThread(driver=gpu),
        lambda: PlanRuntime(FakeRuntime(gpu, journal.say), Strategy, journal),  # type: ignore[arg-type]
        bundle.manifest.prompt.image,
        capacity_of(bundle, precision),
        slots=slots,
        pool_timeout_s=pool_timeout_s,
    )


@pytest.fixture(scope="session")
def plans(vl_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> PlanSet:
    return build(vl_bundle, tmp_path_factory.mktemp("plans"))


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def engine(vl_bundle: Bundle, plans: PlanSet, gpu: FakeGpu) -> Iterator[TensorRtEngine]:
    engine = load(vl_bundle, plans, gpu)
    yield engine
    engine.close()


def images_of(encoder: PromptEncoder, pictures: list[ImagePart]) -> list[EncodedImage]:
    request = encoder.encode(RerankInput(pictures[:1], [[picture] for picture in pictures]))
    return [image for document in request.documents for image in document.images]


def gone(gpu: FakeGpu) -> bool:
    """Whether nothing is left on the GPU, and everything went where and when it could."""
    gc.collect()
    left = [*gpu.memory, *gpu.contexts, *gpu.engines, *gpu.runtimes]
    return not left and gpu.closed == gpu.opened and gpu.strays == 0


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@pytest.mark.parametrize("integrated", [True, False], ids=["mapped", "copied"])
def test_margins_are_those_of_onnx_runtime(
    vl_bundle: Bundle,
    vl_encoder: PromptEncoder,
    pictures: list[ImagePart],
    tmp_path: Path,
    integrated: bool,
    precision: Precision,
) -> None:
    rng = random.Random(7)
    pairs = pairs_of(random_requests(vl_encoder, rng, 4, 5, pictures))
    reference = make_runner(vl_bundle, make_engine(vl_bundle, Dialect.PRIMITIVE, precision, tokens=TOKENS))
    gpu = FakeGpu(integrated=integrated)
    engine = load(vl_bundle, build(vl_bundle, tmp_path, precision), gpu, precision=precision)
    runner = make_runner(vl_bundle, engine)
    packs = random_split(rng, len(pairs))
    for _ in range(2):  # the second time with known prefixes, so with what `kept` gave
        margins = margins_of(runner, pairs, packs)
        assert np.array_equal(margins, margins_of(reference, pairs, packs))
        assert margins.std() > 0.05
    assert (engine.info.name, engine.info.precision, engine.info.slots) == ("tensorrt", precision.value, 2)
    assert engine.pool.used == 0
    runner.close()
    assert gone(gpu)


def test_a_text_only_model_has_one_plan(text_bundle: Bundle, tmp_path: Path, gpu: FakeGpu) -> None:
    engine = load(text_bundle, build(text_bundle, tmp_path), gpu)
    pairs = pairs_of(random_requests(make_encoder(text_bundle), random.Random(5), 2, 3, []))
    reference = make_engine(text_bundle, Dialect.PRIMITIVE)
    everything = [range(len(pairs))]
    expected = margins_of(make_runner(text_bundle, reference), pairs, everything)
    assert np.array_equal(margins_of(make_runner(text_bundle, engine), pairs, everything), expected)
    with pytest.raises(InternalError, match="text-only"):
        engine.encode_images([])
    engine.close()


def test_contexts_are_made_at_start_and_never_after(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, pictures: list[ImagePart], engine: TensorRtEngine, gpu: FakeGpu
) -> None:
    text = len(text_profiles(capacity_of(vl_bundle, Precision.FP32), 128))
    image = vl_bundle.manifest.prompt.image
    assert image is not None
    contexts = 2 * (text + len(vision_profiles(image, BATCH_PATCHES)))
    assert gpu.calls.count("create_execution_context") == contexts == len(gpu.contexts)
    # One block of buffers, and scratch memory for each of two slots.
    assert len(gpu.memory) == 3
    assert len({context.scratch for context in gpu.contexts}) == 2
    gpu.calls.clear()
    pairs = pairs_of(random_requests(vl_encoder, random.Random(1), 3, 4, pictures))
    margins_of(make_runner(vl_bundle, engine), pairs, [range(len(pairs))])
    made = {"create_execution_context", "set_device_memory", "set_optimization_profile_async"}
    assert not made & set(gpu.calls)
    assert len(gpu.memory) == 3


def test_images_encoded_together_in_parts_or_alone_are_the_same(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, engine: TensorRtEngine, gpu: FakeGpu
) -> None:
    images = images_of(vl_encoder, [noise_picture(i, 64, 64) for i in range(13)])
    each = images[0].grid[0] * images[0].grid[1]
    alone = [engine.encode_images([image])[0] for image in images]
    gpu.calls.clear()
    together = engine.encode_images(images)
    assert all(np.abs(a - b).max() < 1e-5 for a, b in zip(alone, together, strict=True))
    runs = gpu.calls.count("execute_async_v3")
    assert 1 < runs < len(images), f"{len(images)} images of {each} patches do not fit one run"
    assert not any(np.shares_memory(a, b) for a in together for b in alone)


def test_sixteen_threads_give_what_one_gives(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, pictures: list[ImagePart], plans: PlanSet
) -> None:
    pairs = pairs_of(random_requests(vl_encoder, random.Random(3), 4, 4, pictures))
    engine = load(vl_bundle, plans, FakeGpu(integrated=False, stream_s=0.002))
    runner = make_runner(vl_bundle, engine, remember=False)
    alone = margins_of(runner, pairs, [[i] for i in range(len(pairs))])

    def work(seed: int) -> float:
        packs = random_split(random.Random(seed), len(pairs))
        return float(np.abs(margins_of(runner, pairs, packs) - alone).max())

    with ThreadPoolExecutor(16) as threads:
        assert max(threads.map(work, range(16))) < 1e-5
    assert (engine.pool.used, engine.pool.high_water) == (0, 2)
    assert engine.pool.waits > 0
    engine.close()


def test_two_slots_keep_two_packs_in_flight(vl_bundle: Bundle, vl_encoder: PromptEncoder, plans: PlanSet) -> None:
    pairs = pairs_of(random_requests(vl_encoder, random.Random(9), 1, 2, []))
    pack = pack_of(pairs, range(2))
    seconds = {}
    for slots in (1, 2):
        engine = load(vl_bundle, plans, FakeGpu(stream_s=0.1), slots=slots)
        runner = make_runner(vl_bundle, engine, remember=False)
        with ThreadPoolExecutor(2) as threads:
            begin = time.monotonic()
            results = list(threads.map(runner.run, [pack] * 4))
            seconds[slots] = time.monotonic() - begin
        assert all(np.array_equal(result.margins, results[0].margins) for result in results)
        engine.close()
    assert seconds[1] > 0.4
    assert seconds[2] < 0.75 * seconds[1]


def with_doubling(graph: Path, out: Path) -> Path:
    """The graph with an input `active` and an output `doubled` of its own."""
    model = onnx.load(graph, load_external_data=False)
    model.graph.input.append(helper.make_tensor_value_info("active", TensorProto.FLOAT, [5]))
    model.graph.node.append(helper.make_node("Add", ["active", "active"], ["doubled"], name="doubled"))
    model.graph.output.append(helper.make_tensor_value_info("doubled", TensorProto.FLOAT, [5]))
    onnx.save(model, out)
    return out


@pytest.mark.parametrize("integrated", [True, False], ids=["mapped", "copied"])
def test_a_probe_brings_inputs_and_gets_outputs(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, tmp_path: Path, integrated: bool
) -> None:
    plans = build(vl_bundle, tmp_path)
    image, graph = vl_bundle.manifest.prompt.image, vl_bundle.graph(Dialect.PRIMITIVE, Precision.FP32)
    assert image is not None
    assert graph.vision is not None
    probed = with_doubling(vl_bundle.folder / graph.vision, tmp_path / "probed.onnx")
    with PlanStore(tmp_path / "probed").staging(plans.manifest.key, [TEXT_PLAN, VISION_PLAN]) as staged:
        staged.path(TEXT_PLAN).write_bytes((plans.folder / TEXT_PLAN).read_bytes())
        profiles = vision_profiles(image, BATCH_PATCHES)
        write_plan(staged.path(VISION_PLAN), probed, profiles, weights=vl_bundle.folder)
        staged.add(TEXT_PLAN, 1.0)
        staged.add(VISION_PLAN, 1.0)
        plans = staged.install()
    gpu = FakeGpu(integrated=integrated)
    engine = load(vl_bundle, plans, gpu)
    held = len(gpu.memory)
    images = images_of(vl_encoder, [noise_picture(0, 32, 32)])
    values = np.arange(5, dtype=np.float32)
    probe = Probe({"active": values}, ("doubled",))
    features = engine.encode_images(images, probe)
    plain = make_engine(vl_bundle, Dialect.PRIMITIVE).encode_images(images)
    assert np.array_equal(features[0], plain[0])
    assert probe.results["doubled"].tolist() == (2 * values).tolist()
    assert len(gpu.memory) == held, "what the probe needed is free again"
    with pytest.raises(InternalError, match="probe"):
        engine.encode_images(images_of(vl_encoder, [noise_picture(i, 96, 96) for i in range(13)]), probe)
    engine.close()
    assert gone(gpu)


def test_a_failed_run_is_an_error_and_the_engine_goes_on(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, engine: TensorRtEngine, gpu: FakeGpu
) -> None:
    pairs = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 2, []))
    runner = make_runner(vl_bundle, engine, remember=False)
    right = margins_of(runner, pairs, [[0, 1]])
    for call in ("set_input_shape", "execute_async_v3"):
        gpu.failing[call] = "Error Code 2: Internal Error (no luck)"
        with pytest.raises(EngineError, match="no luck"):
            margins_of(runner, pairs, [[0, 1]])
    assert np.array_equal(margins_of(runner, pairs, [[0, 1]]), right)
    assert engine.pool.used == 0


@pytest.mark.parametrize("how", ["TensorRT", "driver"])
def test_a_lost_gpu_is_never_used_again(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, plans: PlanSet, gpu: FakeGpu, how: str
) -> None:
    engine = load(vl_bundle, plans, gpu)
    pairs = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 2, []))
    runner = make_runner(vl_bundle, engine, remember=False)
    margins_of(runner, pairs, [[0, 1]])
    if how == "TensorRT":
        gpu.failing["execute_async_v3"] = ILLEGAL
    else:
        gpu.broken = "cuEventQuery failed: an illegal memory access was encountered"
    with pytest.raises(DeviceLostError):
        margins_of(runner, pairs, [[0, 1]])
    gpu.calls.clear()
    with pytest.raises(DeviceLostError):
        margins_of(runner, pairs, [[0, 1]])
    assert gpu.calls == []
    with pytest.raises(DeviceLostError):  # whoever closes it learns of it, if nobody else did
        runner.close()
    assert gpu.calls == []


@pytest.mark.parametrize("integrated", [True, False], ids=["mapped", "copied"])
def test_a_run_that_wrote_nothing_leaves_no_results_of_the_one_before(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, plans: PlanSet, integrated: bool
) -> None:
    gpu = FakeGpu(integrated=integrated)
    engine = load(vl_bundle, plans, gpu, slots=1)
    texts = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 2, []))
    pictures = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 1, [noise_picture(0, 32, 32)]))
    runner = make_runner(vl_bundle, engine, remember=False)
    for pairs in (texts, pictures):
        margins_of(runner, pairs, [range(len(pairs))])
    gpu.computes_nothing = True
    for pairs in (texts, pictures):
        with pytest.raises(NonFiniteScoreError):
            margins_of(runner, pairs, [range(len(pairs))])
    assert engine.pool.used == 0
    engine.close()


def test_closing_waits_for_a_run_and_turns_others_away(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, plans: PlanSet
) -> None:
    gpu = FakeGpu(stream_s=0.3)
    engine = load(vl_bundle, plans, gpu)
    runner = make_runner(vl_bundle, engine, remember=False)
    pairs = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 2, []))
    right = margins_of(runner, pairs, [[0, 1]])
    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(margins_of, runner, pairs, [[0, 1]])
        while not engine.pool.used:
            time.sleep(0.005)
        closing = [threads.submit(engine.close) for _ in range(2)]
        assert np.array_equal(running.result(10), right)
        for future in closing:
            future.result(10)
    assert gone(gpu)
    with pytest.raises(EngineClosedError):
        margins_of(runner, pairs, [[0, 1]])
    engine.close()


def test_what_is_lent_for_too_long_is_not_freed_and_can_be_closed_later(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, plans: PlanSet, gpu: FakeGpu
) -> None:
    engine = load(vl_bundle, plans, gpu, pool_timeout_s=0.1)
    runner = make_runner(vl_bundle, engine, remember=False)
    pairs = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 1, []))
    right = margins_of(runner, pairs, [[0]])
    layout = PackLayout(pack_of(pairs, [0]), {})
    with engine.arrays(layout) as arrays:
        with pytest.raises(EngineError, match="1 of 2 buffers are in use"):
            engine.close()
        layout.fill(arrays, runner._rotary, {})
        engine.run(arrays)
        assert np.array_equal(arrays.margin, right)
    engine.close()
    assert gone(gpu)


@pytest.mark.parametrize("call", ["set_input_shape", "infer_shapes", "execute_async_v3"])
def test_an_error_that_is_kept_keeps_nothing_of_the_gpu(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, plans: PlanSet, gpu: FakeGpu, call: str
) -> None:
    engine = load(vl_bundle, plans, gpu)
    pairs = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 2, []))
    gpu.failing[call] = "Error Code 2: Internal Error (no luck)"
    with pytest.raises(EngineError) as kept:
        margins_of(make_runner(vl_bundle, engine, remember=False), pairs, [[0, 1]])
    engine.close()
    assert gone(gpu)
    assert "no luck" in str(kept.value)


def test_every_context_of_cuda_gets_a_tensorrt_of_its_own(vl_bundle: Bundle, plans: PlanSet, gpu: FakeGpu) -> None:
    """The device is reset when the first engine goes, and with it what a runtime holds."""
    for engines in range(1, 4):
        engine = load(vl_bundle, plans, gpu)
        assert len(gpu.runtimes) == 1
        engine.close()
        assert gone(gpu)
        assert gpu.opened == engines


def test_an_engine_that_nobody_closes_goes_in_order_with_the_process(
    vl_bundle: Bundle, plans: PlanSet, gpu: FakeGpu
) -> None:
    engine = load(vl_bundle, plans, gpu)
    engine._cuda._close_at_exit()
    gc.collect()
    assert (len(gpu.contexts), len(gpu.engines), len(gpu.runtimes), gpu.strays) == (0, 0, 0, 0)


def test_a_margin_that_is_no_number_is_an_error(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, engine: TensorRtEngine
) -> None:
    pairs = pairs_of(random_requests(vl_encoder, random.Random(6), 1, 1, []))
    runner = make_runner(vl_bundle, engine, remember=False)
    rotary = runner._rotary
    layout = PackLayout(pack_of(pairs, [0]), {})
    with engine.arrays(layout) as arrays:
        layout.fill(arrays, rotary, {})
        arrays.cos[...] = np.nan
        engine.run(arrays)
        assert not np.isfinite(arrays.margin).all(), "it comes through, for the runner to find"
    rotary._cos[...] = np.nan
    with pytest.raises(NonFiniteScoreError):
        margins_of(runner, pairs, [[0]])


@pytest.mark.parametrize("which", ["smaller packs", "another model", "damaged", "no vision plan"])
def test_plans_that_do_not_fit_are_refused_and_leave_nothing(
    vl_bundle: Bundle, text_bundle: Bundle, tmp_path: Path, gpu: FakeGpu, which: str
) -> None:
    if which == "smaller packs":
        plans = build(vl_bundle, tmp_path, tokens=TOKENS // 2)
    elif which == "another model":
        plans = build(text_bundle, tmp_path)
        vision = build(vl_bundle, tmp_path / "vl").folder / VISION_PLAN
        with PlanStore(tmp_path / "mixed").staging(plans.manifest.key, [TEXT_PLAN, VISION_PLAN]) as staged:
            staged.path(TEXT_PLAN).write_bytes((plans.folder / TEXT_PLAN).read_bytes())
            staged.path(VISION_PLAN).write_bytes(vision.read_bytes())
            staged.add(TEXT_PLAN, 1.0)
            staged.add(VISION_PLAN, 1.0)
            plans = staged.install()
    elif which == "damaged":
        plans = build(vl_bundle, tmp_path)
        path = plans.folder / VISION_PLAN
        path.write_bytes(path.read_bytes()[:-1] + b" ")
    else:
        plans = build(text_bundle, tmp_path)
    with pytest.raises(PlanError):
        load(vl_bundle, plans, gpu)
    assert gone(gpu)


@pytest.mark.parametrize(
    ("call", "spared"),
    [
        ("deserialize_cuda_engine", 0),
        ("deserialize_cuda_engine", 1),
        *(("create_execution_context", spared) for spared in (0, 1, 6, 12)),
        ("set_optimization_profile_async", 3),
    ],
)
def test_memory_that_runs_out_while_loading_leaves_nothing(
    vl_bundle: Bundle, plans: PlanSet, gpu: FakeGpu, call: str, spared: int
) -> None:
    gpu.spared[call] = spared
    gpu.failing[call] = "Error Code 1: Cuda Runtime (out of memory)"
    with pytest.raises(EngineError, match="memory ran out"):
        load(vl_bundle, plans, gpu)
    assert gone(gpu)


def test_buffers_that_do_not_fit_leave_nothing(vl_bundle: Bundle, plans: PlanSet) -> None:
    gpu = FakeGpu(integrated=False)
    gpu.out_of_memory_at = 1 << 16
    with pytest.raises(EngineError, match="out of memory"):
        load(vl_bundle, plans, gpu)
    assert gone(gpu)


def test_buffers_of_another_precision_are_a_bug(vl_bundle: Bundle, tmp_path: Path, gpu: FakeGpu) -> None:
    with pytest.raises(InternalError, match="float16"):
        load(vl_bundle, build(vl_bundle, tmp_path, Precision.FP16), gpu, precision=Precision.FP32)
    assert gone(gpu)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64\nTARGET=oot\n", "L4T 36.4.7"),
        ("# R39 (release), REVISION: 2.1, GCID: 1\n", "L4T 39.2.1"),
        ("nonsense", "CUDA driver 12.6"),
        (None, "CUDA driver 12.6"),
    ],
)
def test_what_lies_beneath_cuda_is_told(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "nv_tegra_release").write_text(text)
    assert platform_release(FakeGpu().open(0), tmp_path / "nv_tegra_release") == expected


def test_a_key_names_everything_that_a_plan_depends_on(vl_bundle: Bundle, tmp_path: Path) -> None:
    def key(budget: int = 128, runtime: str = "tensorrt 10.3.0", multiprocessors: int = 16) -> PlanKey:
        return plan_key(
            dataclasses.replace(FakeGpu().open(0), name="Orin", multiprocessors=multiprocessors),
            runtime,
            bundle="5" * 64,
            precision="fp16",
            precision_plan=None,
            text=text_profiles(capacity_of(vl_bundle, Precision.FP16), budget),
            release=tmp_path / "none",
        )

    first = key()
    assert first == key()
    assert first != key(256)
    assert first != key(runtime="tensorrt 10.16.2")
    assert first.differences(key(multiprocessors=8)) == ["multiprocessors: 8, not 16"]
    assert (first.gpu, first.compute_capability, first.platform) == ("Orin", "8.7", "CUDA driver 12.6")
