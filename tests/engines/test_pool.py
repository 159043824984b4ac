"""Buffers: lent, given back, counted, never grown."""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np
import pytest

from orin_rerank.engines.memory import ALIGNMENT, PlainBlock
from orin_rerank.engines.pool import BufferPool, ImageCapacity, PackCapacity
from orin_rerank.errors import EngineClosedError, EngineError, InternalError, PoolExhaustedError
from orin_rerank.packing.arrays import PackLayout
from orin_rerank.packing.pack import Pack, PackGroup
from packing.segments import image, segment, text_segment

CAPACITY = PackCapacity(
    tokens=100,
    documents=4,
    visual_rows=20,
    known_rows=10,
    keep_rows=30,
    hidden=8,
    half_head=4,
    layers=2,
    kv_heads=1,
    taps=2,
)

IMAGES = ImageCapacity(patches=24, patch_width=12, half_head=2, merge=4, outputs=3, hidden=8)


def layout(*documents: int, prefix: int = 5, known: bool = False) -> PackLayout:
    group = PackGroup(text_segment(prefix), tuple(text_segment(n, 100 * i) for i, n in enumerate(documents, 1)))
    values = {group.prefix.digest: np.zeros((2, 2, prefix, 1, 8), np.float32)} if known else {}
    return PackLayout(Pack((group,), tuple(range(len(documents))), group.tokens), values)


def test_arrays_have_the_layouts_shapes_and_do_not_overlap() -> None:
    pool = BufferPool(CAPACITY, 1, 1.0)
    with pool.lend(layout(7, 3)) as arrays:
        values = [v for f in dataclasses.fields(arrays) if isinstance(v := getattr(arrays, f.name), np.ndarray)]
        values += arrays.deepstack
        assert arrays.ids.shape == (15,)
        assert arrays.cos.shape == (15, 4)
        assert arrays.known.shape == (2, 2, 1, 1, 8)
        assert arrays.kept.shape == (2, 2, 5, 1, 8)
        assert arrays.visual.shape == (1, 8)
        assert arrays.margin.shape == (2,)
        for number, array in enumerate(values):
            array.reshape(-1)[:] = number
            assert array.ctypes.data % ALIGNMENT == 0
            assert array.flags.c_contiguous
        assert [int(array.reshape(-1)[0]) for array in values] == list(range(len(values)))
        assert all((array == number).all() for number, array in enumerate(values))


def test_a_text_only_models_arrays_have_no_visual_rows() -> None:
    capacity = dataclasses.replace(CAPACITY, visual_rows=0, taps=0)
    with BufferPool(capacity, 1, 1.0).lend(layout(7)) as arrays:
        assert arrays.visual.shape == (0, 8)
        assert arrays.deepstack == ()


def test_the_same_memory_is_lent_again_and_again() -> None:
    allocated: list[int] = []

    def allocate(nbytes: int) -> PlainBlock:
        allocated.append(nbytes)
        return PlainBlock(nbytes)

    pool = BufferPool(CAPACITY, 2, 1.0, images=IMAGES, allocate=allocate)
    addresses = set()
    layouts = [layout(n, prefix=1 + n % 7, known=n % 3 == 0) for n in range(1, 20)]
    for cycle in range(10_000):
        with pool.lend(layouts[cycle % len(layouts)]) as arrays:
            addresses.add(arrays.ids.ctypes.data)
        with pool.lend_for_images(1 + cycle % 3, 4) as images:
            addresses.add(images.patches.ctypes.data)
    assert len(allocated) == 1
    assert len(addresses) <= 2
    counters = pool.counters
    assert counters.total_bytes == sum(allocated)
    assert (counters.slots, counters.used, counters.high_water, counters.waits) == (2, 0, 1, 0)


def test_a_slot_comes_back_whatever_happens() -> None:
    pool = BufferPool(CAPACITY, 1, 0.05)

    def fail(error: BaseException) -> None:
        with pool.lend(layout(3)):
            raise error

    for cycle in range(1000):
        error = (EngineError("failed"), KeyboardInterrupt(), MemoryError())[cycle % 3]
        with pytest.raises(type(error)):
            fail(error)
        assert pool.counters.used == 0
    with pool.lend(layout(3)):
        assert pool.counters.used == 1


def test_a_slot_comes_back_where_the_layout_does_not_fit() -> None:
    pool = BufferPool(CAPACITY, 1, 0.05)
    too_long = layout(2000)
    assert not CAPACITY.holds(too_long)
    with pytest.raises(ValueError, match="reshape"), pool.lend(too_long):
        pass
    assert pool.counters.used == 0


def test_exhaustion_ends_at_the_deadline() -> None:
    pool = BufferPool(CAPACITY, 1, 0.1)
    with pool.lend(layout(3)):
        started = time.monotonic()
        with pytest.raises(PoolExhaustedError, match="none of 1 buffers"), pool.lend(layout(3)):
            pass
        assert 0.1 <= time.monotonic() - started < 2
    assert (pool.counters.used, pool.counters.waits) == (0, 1)


def test_who_waits_gets_the_slot_that_comes_back() -> None:
    pool = BufferPool(CAPACITY, 2, 10.0)
    holding, done = threading.Barrier(3), []

    def work() -> None:
        with pool.lend(layout(3)):
            holding.wait()
            time.sleep(0.05)

    def wait() -> None:
        with pool.lend(layout(3)):
            done.append(pool.counters.used)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    holding.wait()
    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    for thread in (*workers, *waiters):
        thread.join()
    assert len(done) == 3
    assert max(done) <= 2
    counters = pool.counters
    assert (counters.used, counters.high_water) == (0, 2)
    assert 1 <= counters.waits <= 3


@pytest.mark.parametrize(
    ("made", "fits"),
    [
        (layout(95), True),
        (layout(96), False),
        (layout(1, 1, 1, 1), True),
        (layout(1, 1, 1, 1, 1), False),
        (layout(1, prefix=30), True),
        (layout(1, prefix=31), False),
        (layout(90, prefix=10, known=True), True),
        (layout(1, prefix=11, known=True), False),
    ],
)
def test_capacity_is_exact(made: PackLayout, fits: bool) -> None:
    assert CAPACITY.holds(made) == fits


@pytest.mark.parametrize(("tokens", "fits"), [(19, True), (20, False)])
def test_visual_rows_are_counted(tokens: int, fits: bool) -> None:
    import random

    group = PackGroup(text_segment(1), (segment(random.Random(0), [image(0, tokens), image(0, tokens)]),))
    assert CAPACITY.holds(PackLayout(Pack((group,), (0,), group.tokens), {})) == fits


def test_images_have_the_shapes_that_the_vision_encoder_takes_and_share_a_slot_with_packs() -> None:
    pool = BufferPool(CAPACITY, 1, 0.05, images=IMAGES)
    with pool.lend_for_images(3, 8) as arrays:
        assert arrays.patches.shape == (24, 12)
        assert arrays.position_index.shape == arrays.position_weight.shape == (8, 4)
        assert arrays.cos.shape == arrays.sin.shape == (8, 2)
        assert arrays.features.shape == (3, 6, 8)
        values = [getattr(arrays, f.name) for f in dataclasses.fields(arrays)]
        for number, array in enumerate(values):
            array.reshape(-1)[:] = number
            assert array.ctypes.data % ALIGNMENT == 0
            assert array.flags.c_contiguous
        assert all((array == number).all() for number, array in enumerate(values))
        with pytest.raises(PoolExhaustedError), pool.lend(layout(3)):
            pass


def test_too_many_images_are_refused_and_the_slot_comes_back() -> None:
    pool = BufferPool(CAPACITY, 1, 0.05, images=IMAGES)
    with pytest.raises(ValueError, match="reshape"), pool.lend_for_images(4, 8):
        pass
    with (
        pytest.raises(InternalError, match="without room for images"),
        BufferPool(CAPACITY, 1, 0.05).lend_for_images(1, 4),
    ):
        pass
    assert pool.counters.used == 0


def test_a_slot_is_known_by_its_arrays() -> None:
    pool = BufferPool(CAPACITY, 3, 1.0, images=IMAGES)
    with pool.lend(layout(3)) as one, pool.lend(layout(3)) as two, pool.lend_for_images(1, 4) as three:
        slots = [pool.slot_of(array) for array in (one.ids, two.kept, three.features)]
        assert sorted(slots) == [0, 1, 2]
        assert pool.slot_of(one.kept) == slots[0]
    with pytest.raises(InternalError, match="no slot"):
        pool.slot_of(np.zeros(3))


class CountedBlock(PlainBlock):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_memory_that_is_lent_is_not_freed() -> None:
    blocks: list[CountedBlock] = []

    def allocate(nbytes: int) -> CountedBlock:
        blocks.append(CountedBlock(nbytes))
        return blocks[-1]

    pool = BufferPool(CAPACITY, 2, 0.05, allocate=allocate)
    (block,) = blocks
    with pool.lend(layout(3)), pytest.raises(EngineError, match="1 of 2 buffers are in use"):
        pool.close()
    assert block.closed == 0
    pool.close()
    pool.close()
    assert (block.closed, pool.counters.used) == (1, 0)


def test_closing_waits_for_who_has_a_slot_and_turns_away_who_wants_one() -> None:
    pool = BufferPool(CAPACITY, 1, 20.0)
    lent, give_back, log = threading.Event(), threading.Event(), []

    def borrow() -> None:
        with pool.lend(layout(3)) as arrays:
            lent.set()
            give_back.wait()
            arrays.margin[:] = 1.0
            log.append("given back")

    def want() -> None:
        try:
            with pool.lend(layout(3)):
                log.append("lent")
        except EngineClosedError:
            log.append("turned away")

    def close() -> None:
        pool.close()
        log.append("closed")

    borrower = threading.Thread(target=borrow)
    borrower.start()
    lent.wait()
    waiter = threading.Thread(target=want)
    waiter.start()
    while not pool.counters.waits:
        time.sleep(0.01)
    closer = threading.Thread(target=close)
    closer.start()
    waiter.join(10)  # long before its time is over
    want()
    assert log == ["turned away", "turned away"]
    give_back.set()
    for thread in (borrower, closer):
        thread.join(10)
    assert log[2:] == ["given back", "closed"]
    with pytest.raises(EngineClosedError), pool.lend(layout(3)):
        pass
