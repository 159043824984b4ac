"""Blocks: one interface over one memory, over mapped memory, and over two with copies in between."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engines.fake_driver import FakeDriver
from engines.test_pool import CAPACITY, IMAGES, layout
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.memory import (
    ALIGNMENT,
    Block,
    CopiedBlock,
    MappedBlock,
    PlainBlock,
    aligned_memory,
    cuda_block,
)
from orin_rerank.engines.pool import BufferPool
from orin_rerank.errors import DeviceLostError, EngineError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {
    "plain": lambda nbytes, _: PlainBlock(nbytes),
    "mapped": MappedBlock,
    "copied": CopiedBlock,
}


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def cuda(driver: FakeDriver):
    thread = CudaThread(driver=driver)
    yield thread
    with contextlib.suppress(DeviceLostError):
        thread.close()


def test_memory_is_aligned() -> None:
    for nbytes in (1, 63, 64, 1000):
        memory = aligned_memory(nbytes)
        assert memory.nbytes == nbytes
        assert memory.ctypes.data % ALIGNMENT == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_host_writes_the_engine_reads_and_back(kind: str, cuda: CudaThread) -> None:
    block: Block = KINDS[kind](4096, cuda)
    assert block.kind == kind
    stream = cuda.stream()
    source, target = block.host[256:512].view(np.int32), block.host[1024:1280].view(np.int32)
    other = block.host[512:1024]
    source[:], other[:] = np.arange(64), 7

    def trip(driver: FakeDriver, raw: object) -> None:
        block.enqueue_upload([source], driver, raw)
        if block.on_device:
            driver.copy_on_device(block.address_of(target), block.address_of(source), source.nbytes, raw)
        else:
            target[:] = source
        block.enqueue_download([target, target[:0]], driver, raw)

    cuda.run(stream, trip)
    assert np.array_equal(target, np.arange(64))
    assert (other == 7).all()
    assert block.copies == (kind == "copied")
    block.close()


@pytest.mark.parametrize("kind", KINDS)
def test_only_arrays_of_the_block_have_an_address(kind: str, cuda: CudaThread) -> None:
    block: Block = KINDS[kind](1024, cuda)
    begin = block.address_of(block.host)
    assert block.address_of(block.host[512:]) == begin + 512
    assert (begin == block.host.ctypes.data) == (kind != "copied")
    for wrong in (np.zeros(3), np.concatenate([block.host, block.host]), block.host[::2]):
        with pytest.raises(InternalError):
            block.address_of(wrong)


def test_a_gpu_that_shares_memory_gets_mapped_blocks_and_another_copied_ones() -> None:
    for integrated, kind in ((True, "mapped"), (False, "copied")):
        cuda = CudaThread(driver=FakeDriver(integrated=integrated))
        assert cuda_block(cuda)(64).kind == kind
        cuda.close()


def test_all_memory_is_given_back(cuda: CudaThread, driver: FakeDriver) -> None:
    for make in (MappedBlock, CopiedBlock):
        pool = BufferPool(CAPACITY, 2, 1.0, images=IMAGES, allocate=lambda n, make=make: make(n, cuda))
        assert len(driver.memory) == (1 if make is MappedBlock else 2)
        assert pool.counters.total_bytes == driver.memory[0].host.nbytes
        pool.close()
        assert driver.memory == []


def test_a_mirror_that_does_not_fit_leaves_no_host_memory(cuda: CudaThread, driver: FakeDriver) -> None:
    driver.out_of_memory_at = 1024
    with pytest.raises(EngineError, match="out of memory"):
        CopiedBlock(1024, cuda)
    assert driver.memory == []


def test_blocks_of_a_lost_gpu_are_left_alone(cuda: CudaThread, driver: FakeDriver) -> None:
    blocks = [MappedBlock(64, cuda), CopiedBlock(64, cuda)]
    with pytest.raises(DeviceLostError):
        cuda.run(cuda.stream(), lambda d, raw: d.copy_on_device(0xBAD, 0xBAD, 8, raw))
    for block in blocks:
        block.close()
    assert len(driver.memory) == 3


@pytest.mark.parametrize("make", [MappedBlock, CopiedBlock])
def test_many_threads_trips_through_the_pool_do_not_mix(make: Callable[..., Block], cuda: CudaThread) -> None:
    pool = BufferPool(CAPACITY, 3, 30.0, images=IMAGES, allocate=lambda n: make(n, cuda))
    streams = [cuda.stream() for _ in range(3)]
    block = pool.block

    def work(seed: int) -> int:
        wrong = 0
        for trip in range(50):
            value = seed * 1000 + trip
            with pool.lend(layout(3, 4, prefix=5)) as arrays:
                arrays.ids[:], arrays.keep[:] = value, 0

                def enqueue(driver: FakeDriver, raw: object, arrays=arrays) -> None:
                    block.enqueue_upload([arrays.ids, arrays.keep], driver, raw)
                    nbytes = arrays.keep.nbytes
                    driver.copy_on_device(block.address_of(arrays.keep), block.address_of(arrays.ids), nbytes, raw)
                    block.enqueue_download([arrays.keep], driver, raw)

                cuda.run(streams[pool.slot_of(arrays.ids)], enqueue)
                wrong += int((arrays.keep != value).any())
        return wrong

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(work, range(16))) == 0
    assert pool.counters.used == 0
    pool.close()
