"""What a runner remembers, shares between threads, and does when something fails."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engines.fake_engine import FakeEngine
from orin_rerank.engines.runner import Runner
from orin_rerank.errors import EngineError, NonFiniteScoreError, PoolExhaustedError
from orin_rerank.packing.pack import Pack, PackGroup
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.prompt.encoded import EncodedSegment
from packing.segments import MAX_POSITION, image, segment, text_segment

if TYPE_CHECKING:
    from orin_rerank.packing.arrays import PackArrays

A, B, C = image(1, 3), image(2, 3), image(3, 5)
RNG = random.Random(0)


def make(
    engine: FakeEngine,
    *,
    features: int = 1 << 20,
    prefixes: int = 1 << 20,
    patches: int = 1 << 20,
    rows: int | None = None,
) -> Runner:
    rotary = RotaryTable(4, 1e4, (1, 1, 0), MAX_POSITION)
    return Runner(
        engine, rotary, feature_bytes=features, prefix_bytes=prefixes, vision_patches=patches, prefix_rows=rows
    )


def pack(*groups: tuple[EncodedSegment, list[EncodedSegment]]) -> Pack:
    made = tuple(PackGroup(prefix, tuple(documents)) for prefix, documents in groups)
    documents = sum(len(group.documents) for group in made)
    return Pack(made, tuple(range(documents)), sum(group.tokens for group in made))


def expected(made: Pack) -> list[float]:
    def value(part: EncodedSegment) -> float:
        return float(part.ids.sum()) + sum(picture.tokens * picture.digest[0] for picture in part.images)

    return [value(group.prefix) + value(document) for group in made.groups for document in group.documents]


def some(*images, length: int | None = None) -> EncodedSegment:
    return segment(RNG, list(images)) if length is None else text_segment(length, RNG.randrange(10_000))


def test_a_known_prefix_is_not_computed_again() -> None:
    engine = FakeEngine()
    runner = make(engine)
    prefix, other = some(A), some(B)
    first = pack((prefix, [some(), some()]))
    assert not runner.knows(prefix)
    assert runner.run(first).margins.tolist() == expected(first)
    assert runner.knows(prefix)
    second = pack((other, [some()]), (prefix, [some(), some(C)]))
    result = runner.run(second)
    assert result.margins.tolist() == expected(second)
    assert result.tokens == engine.computed[-1] == second.tokens - len(prefix)
    assert runner.knows(other)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf])
def test_keys_and_values_that_are_no_numbers_are_never_remembered(dtype: type, spoilt: float) -> None:
    """The margins may be finite all the same: minus infinity as a key is a token that nobody looks at."""
    engine = FakeEngine(product_dtype=dtype)
    runner = make(engine)
    prefixes = [some(length=20), some(length=20)]
    made = pack(*((prefix, [some(length=5)]) for prefix in prefixes))

    def spoil(arrays: PackArrays) -> None:
        arrays.kept[...] = 0
        arrays.kept[0, 1, -1, 0, 3] = spoilt  # of the second prefix, and not what the fake writes

    engine.before_run = spoil
    with pytest.raises(NonFiniteScoreError, match="key or value"):
        runner.run(made)
    assert not any(map(runner.knows, prefixes))
    engine.before_run = lambda arrays: arrays.kept.fill(np.finfo(dtype).max)
    assert runner.run(made).margins == pytest.approx(expected(made), rel=0.01)
    assert all(map(runner.knows, prefixes))


def test_without_memory_every_prefix_is_computed() -> None:
    engine = FakeEngine()
    runner = make(engine, prefixes=0)
    prefix = some()
    for _ in range(2):
        made = pack((prefix, [some()]))
        assert runner.run(made).margins.tolist() == expected(made)
        assert engine.computed[-1] == made.tokens
        assert not runner.knows(prefix)


def test_a_prefix_longer_than_there_are_rows_for_is_not_remembered() -> None:
    engine = FakeEngine()
    runner = make(engine, rows=30)
    long, short, other = some(length=31), some(length=20), some(length=11)
    assert [runner.remembers(prefix) for prefix in (long, short, other)] == [False, True, True]
    for _ in range(2):
        made = pack((long, [some(length=5), some(length=6)]))
        assert runner.run(made).margins.tolist() == expected(made)
        assert engine.computed[-1] == made.tokens
        assert not runner.knows(long)
    # Only the first of two that do not fit together is kept of one pack; the other of the next one.
    both = pack((short, [some(length=5)]), (other, [some(length=5)]))
    assert runner.run(both).margins.tolist() == expected(both)
    assert (runner.knows(short), runner.knows(other)) == (True, False)
    assert runner.run(both).margins.tolist() == expected(both)
    assert engine.computed[-1] == both.tokens - len(short)
    assert runner.knows(other)
    assert runner.run(both).tokens == 10


def test_images_are_encoded_once() -> None:
    engine = FakeEngine()
    runner = make(engine)
    first = runner.run(pack((some(A), [some(A, A), some(B)])))
    assert sorted(digest for run in engine.encoded for digest in run) == sorted((A.digest, B.digest))
    assert (first.encoded_images, first.cached_images) == ({A.digest, B.digest}, set())
    made = pack((some(), [some(B), some(C)]))
    second = runner.run(made)
    assert (second.encoded_images, second.cached_images) == ({C.digest}, {B.digest})
    assert second.margins.tolist() == expected(made)


def test_the_images_of_a_known_prefix_are_not_needed() -> None:
    engine = FakeEngine()
    runner = make(engine, features=0)
    prefix = some(A)
    runner.run(pack((prefix, [some()])))
    again = pack((prefix, [some()]))
    result = runner.run(again)
    assert result.margins.tolist() == expected(again)
    assert len(engine.encoded) == 1
    assert (result.encoded_images, result.cached_images) == (set(), set()), "a cache that nobody asked has no hits"


def test_images_of_one_grid_are_encoded_together_up_to_the_limit() -> None:
    engine = FakeEngine()
    each = A.grid[0] * A.grid[1]
    runner = make(engine, patches=2 * each)
    same = [image(n, A.tokens) for n in range(5)]
    large = image(9, 50)  # more than the limit by itself
    made = pack((some(), [some(*same, large)]))
    assert runner.run(made).margins.tolist() == expected(made)
    assert sorted(len(run) for run in engine.encoded) == [1, 1, 2, 2]


def test_two_threads_that_need_one_image_encode_it_once() -> None:
    engine = FakeEngine()
    runner = make(engine)
    encoding, go_on = threading.Event(), threading.Event()

    def hold(images) -> None:
        encoding.set()
        assert go_on.wait(5)

    engine.before_encoding = hold
    packs = [pack((some(), [some(A)])) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(runner.run, packs[0])
        assert encoding.wait(5)
        second = threads.submit(runner.run, packs[1])
        assert not second.done()
        go_on.set()
        results = [first.result(5), second.result(5)]
    assert engine.encoded == [[A.digest]]
    assert [result.margins.tolist() for result in results] == [expected(made) for made in packs]
    assert [result.encoded_images for result in results] == [{A.digest}, set()]


def test_threads_that_wait_for_each_others_images_both_finish() -> None:
    engine = FakeEngine()
    runner = make(engine, patches=1)
    other, rounds = image(7, 2), 50
    with ThreadPoolExecutor(2) as threads:
        for _ in range(rounds):
            runner = make(engine, patches=1)
            packs = [pack((some(), [some(*order)])) for order in ((A, C, other), (other, C, A))]
            results = [future.result(10) for future in [threads.submit(runner.run, made) for made in packs]]
            assert [result.margins.tolist() for result in results] == [expected(made) for made in packs]
    assert sum(len(run) for run in engine.encoded) == 3 * rounds


def test_a_failed_encoding_is_tried_again_by_those_who_waited() -> None:
    engine = FakeEngine()
    runner = make(engine)
    encoding, go_on = threading.Event(), threading.Event()

    def fail_on_b(images) -> None:
        if B.digest in {one.digest for one in images}:
            encoding.set()
            assert go_on.wait(5)
            raise EngineError("the encoder failed")

    engine.before_encoding = fail_on_b
    innocent = pack((some(), [some(A)]))
    with ThreadPoolExecutor(2) as threads:
        # A and B have one grid, so that A is lost with B, which another pack does not even have.
        guilty = threads.submit(runner.run, pack((some(), [some(A, B)])))
        assert encoding.wait(5)
        waiting = threads.submit(runner.run, innocent)
        go_on.set()
        with pytest.raises(EngineError, match="the encoder failed"):
            guilty.result(5)
        result = waiting.result(5)
    assert result.margins.tolist() == expected(innocent)
    assert result.encoded_images == {A.digest}


def test_an_encoding_that_fails_for_all_fails_all_and_leaves_nothing_behind() -> None:
    engine = FakeEngine()
    runner = make(engine)
    encoding, go_on = threading.Event(), threading.Event()

    def fail(images) -> None:
        encoding.set()
        assert go_on.wait(5)
        raise EngineError("the encoder failed")

    engine.before_encoding = fail
    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(runner.run, pack((some(), [some(A)])))]
        assert encoding.wait(5)
        futures.append(threads.submit(runner.run, pack((some(), [some(A)]))))
        go_on.set()
        errors = [future.exception(5) for future in futures]
    assert [str(error) for error in errors] == ["the encoder failed"] * 2
    assert errors[0] is not errors[1], "two requests would write into one error"
    engine.before_encoding = lambda _: None
    made = pack((some(), [some(A)]))
    assert runner.run(made).margins.tolist() == expected(made)


def test_what_was_encoded_before_a_failure_is_kept() -> None:
    engine = FakeEngine()
    runner = make(engine)

    def fail_on_c(images) -> None:
        if images[0].digest == C.digest:
            raise EngineError("no")

    engine.before_encoding = fail_on_c
    for _ in range(2):
        with pytest.raises(EngineError):
            runner.run(pack((some(), [some(A, C)])))
    engine.before_encoding = lambda _: None
    assert runner.run(pack((some(), [some(A, C)]))).cached_images == {A.digest}


def test_an_error_of_the_engine_leaves_nothing_behind() -> None:
    engine = FakeEngine()
    runner = make(engine)

    def fail(arrays) -> None:
        arrays.kept[:] = 12345
        raise EngineError("failed")

    engine.before_run = fail
    prefix = some()
    with pytest.raises(EngineError, match="failed"):
        runner.run(pack((prefix, [some()])))
    assert not runner.knows(prefix)
    assert runner.pool == engine.buffers.counters
    assert runner.pool.used == 0
    engine.before_run = lambda _: None
    made = pack((prefix, [some()]))
    assert runner.run(made).margins.tolist() == expected(made)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_margin_that_is_no_finite_number_is_an_error_and_its_prefix_forgotten(value: float) -> None:
    engine = FakeEngine()
    runner = make(engine)
    prefix = some(A)
    engine.before_encoding = lambda _: None
    poisoned = pack((prefix, [some(), some()]))

    def poison(arrays) -> None:
        arrays.visual[1:] = value

    engine.before_run = poison
    with pytest.raises(NonFiniteScoreError, match="margin"):
        runner.run(poisoned)
    assert not runner.knows(prefix)


def test_a_feature_that_is_no_finite_number_is_an_error_and_not_kept() -> None:
    class Broken(FakeEngine):
        def encode_images(self, images):
            return [array * np.nan for array in super().encode_images(images)]

    engine = Broken()
    runner = make(engine)
    for runs in (1, 2):
        with pytest.raises(NonFiniteScoreError, match="feature"):
            runner.run(pack((some(), [some(A)])))
        assert len(engine.encoded) == runs
    assert engine.computed == []


def test_a_pack_that_grew_by_a_forgotten_prefix_is_run_in_halves() -> None:
    engine = FakeEngine(tokens=100)
    runner = make(engine)
    prefix = some(length=60)
    runner.run(pack((prefix, [some(length=1)])))
    made = pack((prefix, [some(length=19) for _ in range(5)]))
    assert runner.run(made).tokens == 95  # the prefix is known, so the pack fits
    forgetful = make(FakeEngine(tokens=100))
    result = forgetful.run(made)
    assert result.margins.tolist() == expected(made)
    assert result.tokens > 95


def test_halves_keep_order_across_groups() -> None:
    engine = FakeEngine(tokens=60)
    runner = make(engine, prefixes=0)
    made = pack(
        (some(length=20), [some(length=10), some(A), some(length=8)]),
        (some(length=25), [some(length=9), some(B, A)]),
        (some(length=5), [some(length=30)]),
    )
    result = runner.run(made)
    assert result.margins.tolist() == expected(made)
    assert result.encoded_images == {A.digest, B.digest}
    assert len(engine.computed) > 1


def test_more_documents_than_the_engine_takes_are_run_in_halves() -> None:
    runner = make(FakeEngine())
    made = pack((some(length=2), [some(length=1) for _ in range(40)]))
    assert runner.run(made).margins.tolist() == expected(made)


def test_a_document_that_cannot_fit_is_an_error() -> None:
    with pytest.raises(EngineError, match="does not fit"):
        make(FakeEngine(tokens=50)).run(pack((some(length=2), [some(length=60)])))


def test_no_buffer_in_time_is_an_error_and_nothing_is_poisoned() -> None:
    engine = FakeEngine(slots=1)
    runner = make(engine)
    running, go_on = threading.Event(), threading.Event()

    def hold(arrays) -> None:
        running.set()
        assert go_on.wait(5)

    engine.before_run = hold
    made = pack((some(), [some(A)]))
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(runner.run, made)
        assert running.wait(5)
        with pytest.raises(PoolExhaustedError):
            runner.run(pack((some(), [some(A)])))
        go_on.set()
        assert first.result(5).margins.tolist() == expected(made)


def test_closes_its_engine() -> None:
    engine = FakeEngine()
    make(engine).close()
    assert engine.closed
