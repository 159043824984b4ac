"""Plans for the published models on the boards, what is refused, and the pool that a plan comes to."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from fakes.published import BOARDS, MODELS, image_profile
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.footprint import EngineKind, overhead_bytes
from orin_rerank.engines.host_memory import HostMemory
from orin_rerank.engines.memory import PlainBlock
from orin_rerank.engines.memory_plan import MemoryBudget, MemoryPlan, ModelSize
from orin_rerank.engines.memory_planner import (
    PREFIX_ROWS,
    TOKEN_BUDGET,
    PolicyPlan,
    Residency,
    plan_memory,
    plan_policies,
)
from orin_rerank.engines.pool import BufferPool
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.engines.tensorrt.profiles import text_profiles, vision_profiles
from orin_rerank.errors import MemoryShortError
from orin_rerank.graph.builder import Precision
from orin_rerank.prompt.resize import most_patches

GIB = 1 << 30
INT8, FP16 = Precision.INT8_FP16, Precision.FP16
PLENTY = MemoryBudget.of_machine(512 * GIB)
NOTHING_SET = EngineSettings()
GPUS = (EngineKind.TENSORRT, EngineKind.ONNXRUNTIME_CUDA)


def plan(
    name: str = "vl-8b",
    precision: Precision = INT8,
    budget: MemoryBudget = PLENTY,
    settings: EngineSettings = NOTHING_SET,
    kind: EngineKind = EngineKind.TENSORRT,
) -> MemoryPlan:
    return plan_memory(MODELS[name], precision, kind, budget, settings)


def attempt(name: str, precision: Precision, budget: MemoryBudget) -> MemoryPlan | MemoryShortError:
    try:
        return plan(name, precision, budget)
    except MemoryShortError as error:
        return error


def board(name: str) -> MemoryBudget:
    return MemoryBudget.of_machine(BOARDS[name])


def policies(model: str, where: str) -> dict[Residency, PolicyPlan]:
    found = plan_policies(MODELS[model], EngineKind.TENSORRT, board(where), NOTHING_SET)
    return {policy.residency: policy for policy in found}


@pytest.mark.parametrize("kind", list(EngineKind))
@pytest.mark.parametrize("name", MODELS)
def test_with_plenty_of_memory_nothing_is_cut(name: str, kind: EngineKind) -> None:
    made = plan(name, FP16, kind=kind, settings=EngineSettings(threads=2))
    assert not made.shortened
    assert made.limits == ""
    assert (made.max_tokens, made.slots) == (MODELS[name].max_tokens, 2)
    assert made.token_budget == (2 * TOKEN_BUDGET if kind is EngineKind.ONNXRUNTIME_CUDA else TOKEN_BUDGET)
    assert made.longest_pair == MODELS[name].max_tokens + MODELS[name].suffix_tokens
    assert made.image == MODELS[name].image
    assert made.prefix_rows == PREFIX_ROWS


@pytest.mark.parametrize(("where", "name", "precision"), list(itertools.product(BOARDS, MODELS, (INT8, FP16))))
def test_every_model_on_every_board_fits_or_is_refused_with_the_numbers(
    where: str, name: str, precision: Precision
) -> None:
    budget = board(where)
    made = attempt(name, precision, budget)
    if isinstance(made, MemoryShortError):
        assert made.needed_bytes > made.available_bytes == budget.usable_bytes
        assert "take a smaller model" in str(made)
        assert ("INT8" in str(made).split(": take")[1]) == (precision is FP16)
        return
    assert made.needed_bytes <= budget.usable_bytes < BOARDS[where]
    assert made == plan(name, precision, budget)  # and again the same
    assert made.needed_bytes == sum(dataclasses.astuple(made.needs))
    assert 1024 <= made.max_tokens <= MODELS[name].max_tokens
    assert made.slots in {1, 2}
    # A pair at the limit, and a pack within the budget whose prefix has been forgotten, fit.
    assert made.capacity.tokens >= max(made.longest_pair, made.token_budget + made.capacity.known_rows)
    # Whatever the builder chooses within its limit, it fits in all slots.
    spare = made.slots * (made.workspace_bytes - made.needs.scratch // made.slots)
    assert spare >= 0
    assert made.needed_bytes + spare <= budget.usable_bytes


def test_which_models_a_board_serves() -> None:
    def served(where: str, precision: Precision) -> set[str]:
        return {name for name in MODELS if isinstance(attempt(name, precision, board(where)), MemoryPlan)}

    assert served("agx-orin-64", FP16) == served("agx-orin-64", INT8) == set(MODELS)
    assert served("agx-orin-32", FP16) == served("agx-orin-32", INT8) == set(MODELS)
    assert served("orin-nx-16", INT8) == set(MODELS)
    assert served("orin-nx-16", FP16) == {"vl-2b", "0.6b", "4b"}
    assert served("orin-nano-8", INT8) == {"vl-2b", "0.6b"}
    assert served("orin-nano-8", FP16) == {"0.6b"}
    assert served("orin-nano-4", INT8) == set()


def test_two_precisions_at_a_time_take_the_large_board() -> None:
    """As users of other servers report of the 8B: float16 and INT8 stay resident on 64 GB only."""
    large, small = policies("vl-8b", "agx-orin-64"), policies("vl-8b", "orin-nx-16")
    assert [policy.fits for policy in large.values()] == [True, True, True]
    both = large[Residency.BOTH]
    int8, fp16 = both.plans
    assert (int8.max_tokens, int8.slots) == (fp16.max_tokens, fp16.slots)
    shared = overhead_bytes(EngineKind.TENSORRT) + int8.needs.process + min(int8.needs.caches, fp16.needs.caches)
    assert both.needed_bytes == int8.needs.total + fp16.needs.total - shared
    assert both.needed_bytes <= board("agx-orin-64").usable_bytes
    assert large[Residency.SWAPPED].needed_bytes == large[Residency.SWAPPED].plans[1].needed_bytes
    assert [policy.fits for policy in small.values()] == [False, False, True]
    assert small[Residency.ONE].needed_bytes <= board("orin-nx-16").usable_bytes
    for residency in (Residency.BOTH, Residency.SWAPPED):
        assert small[residency].plans == ()
        assert small[residency].needed_bytes > board("orin-nx-16").usable_bytes
        assert small[residency].build_bytes == 0


def test_engines_that_are_swapped_have_one_limit() -> None:
    budget = MemoryBudget.of_machine(25 * GIB // 2)
    alone = [plan("4b", precision, budget).max_tokens for precision in (INT8, FP16)]
    assert alone[1] < alone[0]
    _, swapped, _ = plan_policies(MODELS["4b"], EngineKind.TENSORRT, budget, NOTHING_SET)
    assert {made.max_tokens for made in swapped.plans} == {alone[1]}
    assert swapped.build_bytes == swapped.plans[1].build_bytes > swapped.plans[0].build_bytes


@pytest.mark.parametrize("kind", list(EngineKind))
@pytest.mark.parametrize("name", ["vl-8b", "4b"])
def test_less_memory_cuts_pairs_down_to_4096_then_slots_then_pairs_again(name: str, kind: EngineKind) -> None:
    found: list[tuple[int, int]] = []
    settings = EngineSettings(threads=2)
    total = 400 * GIB
    while True:
        budget = MemoryBudget(total, 0)
        try:
            made = plan(name, FP16, budget, settings, kind)
        except MemoryShortError:
            break
        if not found or found[-1] != (made.slots, made.max_tokens):
            found.append((made.slots, made.max_tokens))
        total = total * 99 // 100
    own = MODELS[name].max_tokens
    long = [limit for limit in (own, 8192, 6144, 4096) if limit <= own]
    long = sorted(set(long), reverse=True)
    order = [*((2, n) for n in long), *((1, n) for n in long), *((1, n) for n in (3072, 2048, 1536, 1024))]
    assert found[0] == order[0]
    assert found[-1] == order[-1]
    places = [order.index(one) for one in found]
    assert places == sorted(places)


def test_a_pool_takes_what_is_planned() -> None:
    for name, kind in itertools.product(("vl-2b", "0.6b"), GPUS):
        made = plan(name, FP16, kind=kind, settings=EngineSettings(max_tokens=1024))
        taken: list[int] = []

        def allocate(nbytes: int, taken: list[int] = taken) -> PlainBlock:
            taken.append(nbytes)
            return PlainBlock(nbytes)

        pool = BufferPool(made.capacity, made.slots, 1.0, images=made.images, allocate=allocate)
        assert taken == [made.needs.buffers] == [pool.counters.total_bytes]
        pool.close()


@pytest.mark.parametrize("name", MODELS)
def test_profiles_hold_every_pack_and_picture_that_the_buffers_do(name: str) -> None:
    made = plan(name, INT8, board("orin-nx-16"))
    capacity = made.capacity
    top = text_profiles(capacity, made.token_budget)[-1]
    largest = {
        "tokens": capacity.tokens,
        "documents": capacity.documents,
        "known": capacity.known_rows,
        "keep": capacity.keep_rows,
    }
    if made.image is not None and made.images is not None:
        largest["visual"] = capacity.visual_rows
        patches = most_patches(made.image)
        assert made.images.patches >= patches
        assert vision_profiles(made.image, 1024)[-1].holds({"grid": patches, "patches": patches})
    assert top.holds(largest)


def test_decoded_pictures_have_a_share_of_the_memory() -> None:
    plenty, text = plan(), plan("0.6b")
    assert plenty.picture_bytes == 512 << 20
    assert plan(budget=board("orin-nx-16")).picture_bytes == board("orin-nx-16").total_bytes // 128
    assert text.picture_bytes == 0
    decoding = plenty.needs.process - plenty.picture_bytes - text.needs.process
    assert decoding == 304 << 20, "a picture of 50 million pixels, of which one is decoded at a time, and a usual one"
    little = plan(settings=EngineSettings(picture_bytes=5))
    assert (little.picture_bytes, little.needs.process) == (5, text.needs.process + decoding + 5)


def test_what_is_set_counts() -> None:
    made = plan(settings=EngineSettings(max_tokens=3000, token_budget=2000))
    assert (made.max_tokens, made.token_budget, made.shortened) == (3000, 2000, True)
    assert made.longest_pair == 3005
    assert made.capacity.tokens == 2000 + PREFIX_ROWS
    assert "3,000" in made.limits
    assert "10,240" in made.limits
    assert plan(settings=EngineSettings(max_tokens=65536)).max_tokens == 10240
    caches = plan(settings=EngineSettings(feature_cache_bytes=7, prefix_cache_bytes=9))
    assert (caches.feature_cache_bytes, caches.prefix_cache_bytes, caches.needs.caches) == (7, 9, 16)
    assert caches.prefix_rows == 0
    little = EngineSettings(memory_bytes=13 * GIB)
    assert plan(settings=little).needed_bytes <= 13 * GIB < plan().needed_bytes
    with pytest.raises(MemoryShortError, match=r"has 9\.0 GiB for it, of 512\.0 GiB in all"):
        plan(settings=EngineSettings(memory_bytes=9 * GIB))


@pytest.mark.parametrize("kind", GPUS)
def test_on_a_gpu_the_number_of_threads_has_no_say(kind: EngineKind) -> None:
    """Plans are compiled without knowing it, and more packs in flight are slower there."""
    usual = plan("vl-2b", kind=kind)
    assert usual.slots == 2
    for threads in (1, 2, 64):
        assert plan("vl-2b", kind=kind, settings=EngineSettings(threads=threads)) == usual


def test_plans_for_usual_packs_serve_shorter_ones_too() -> None:
    assert plan(settings=EngineSettings(token_budget=64)) == plan()
    assert plan(settings=EngineSettings(token_budget=2048)).token_budget == 2048
    processor = plan("0.6b", Precision.FP32, settings=EngineSettings(token_budget=64), kind=EngineKind.PROCESSOR)
    assert processor.token_budget == 64


def test_a_processor_has_a_slot_for_each_thread_while_they_fit() -> None:
    def slots(total: int) -> int:
        settings = EngineSettings(threads=12)
        return plan("0.6b", Precision.FP32, MemoryBudget(total, 0), settings, EngineKind.PROCESSOR).slots

    assert slots(400 * GIB) == 12
    assert {slots(total * GIB) for total in range(5, 80)} == {12, 6, 3, 1}


def test_a_long_pack_that_was_asked_for_is_named_where_it_does_not_fit() -> None:
    with pytest.raises(MemoryShortError, match="or packs of 1024 tokens"):
        plan("vl-8b", INT8, board("orin-nx-16"), EngineSettings(token_budget=32768))


def test_a_picture_leaves_a_short_pair_room_for_text() -> None:
    made = plan(settings=EngineSettings(max_tokens=1024))
    assert made.image == dataclasses.replace(image_profile(72), max_pixels=512 * 32 * 32)
    assert made.images is not None
    assert made.images.patches == most_patches(made.image)
    assert plan(settings=EngineSettings(max_tokens=4096)).image == image_profile(72)


def test_memory_in_all_may_vary_a_little_from_boot_to_boot() -> None:
    for total in BOARDS.values():
        low = total // (256 << 20) * (256 << 20)
        assert MemoryBudget.of_machine(low) == MemoryBudget.of_machine(low + (200 << 20))
        assert MemoryBudget.of_gpu(low) == MemoryBudget.of_gpu(low + (200 << 20))
        assert MemoryBudget.of_processor(low) == MemoryBudget.of_processor(low + (200 << 20))
    assert MemoryBudget.of_machine(GIB).usable_bytes == 0


def test_the_mini_is_served_on_small_machines() -> None:
    """As it was before there was a plan: on every core of a machine with a little over half a gibibyte for each."""
    manifest = Bundle.open(Path(__file__).parents[2] / "engines" / "mini").manifest
    size = ModelSize(manifest.architecture, manifest.prompt.image, manifest.prompt.max_tokens, 5)
    for gibibytes, threads in ((2, 2), (3, 4), (9, 16), (64, 128)):
        budget, settings = MemoryBudget.of_processor(gibibytes * GIB), EngineSettings(threads=threads)
        made = plan_memory(size, Precision.FP32, EngineKind.PROCESSOR, budget, settings)
        assert (made.slots, made.shortened) == (threads, False)
        assert made.feature_cache_bytes == made.prefix_cache_bytes == 64 << 20
        assert made.start_bytes < GIB // 2


def test_a_gpu_with_its_own_memory_holds_no_caches() -> None:
    made = plan("4b", FP16, MemoryBudget.of_gpu(24 * GIB), kind=EngineKind.ONNXRUNTIME_CUDA)
    needs = made.needs
    assert made.needed_bytes == needs.device == needs.total - needs.caches - needs.process
    assert needs.host == needs.buffers + needs.caches + needs.process
    assert made.workspace_bytes == made.build_bytes == 0
    made.check_free(needs.device, needs.buffers)
    with pytest.raises(MemoryShortError, match="are free;"):
        made.check_free(needs.device - 1, needs.buffers)
    with pytest.raises(MemoryShortError, match="are free beside the GPU"):
        made.check_free(needs.device, needs.buffers - 1)


def test_what_is_free_is_compared_with_what_starting_takes() -> None:
    made = plan("vl-2b", INT8, board("orin-nx-16"))
    made.check_free(made.start_bytes)
    assert made.needs.weights < made.start_bytes < made.needed_bytes
    with pytest.raises(MemoryShortError, match=r"int8-fp16 needs .* to start and 1\.0 GiB are free; stop") as caught:
        made.check_free(GIB)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (made.start_bytes, GIB)
    processor = plan("0.6b", Precision.FP32, settings=EngineSettings(threads=8), kind=EngineKind.PROCESSOR)
    assert processor.start_bytes < processor.needs.weights + processor.needs.buffers + processor.needs.scratch


def test_a_build_may_use_swap() -> None:
    made = plan("vl-8b", INT8, board("orin-nx-16"))
    assert made.build_bytes > board("orin-nx-16").total_bytes
    made.check_build(HostMemory(16 * GIB, 12 * GIB, made.build_bytes - 12 * GIB))
    with pytest.raises(MemoryShortError, match=r"add 2\.0 GiB of swap for the build"):
        made.check_build(HostMemory(16 * GIB, 12 * GIB, made.build_bytes - 14 * GIB))


def test_the_weight_file_at_hand_counts_where_it_is_larger() -> None:
    size = MODELS["vl-2b"]
    assert isinstance(size, ModelSize)
    larger = dataclasses.replace(size, stored_bytes={INT8: 3 * GIB})
    made = plan_memory(larger, INT8, EngineKind.TENSORRT, PLENTY, NOTHING_SET)
    assert made.needs.weights > 3 * GIB > plan("vl-2b").needs.weights
    assert plan_memory(larger, FP16, EngineKind.TENSORRT, PLENTY, NOTHING_SET).needs == plan("vl-2b", FP16).needs
