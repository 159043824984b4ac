"""CUDA's driver without a GPU: memory is numpy's, a stream is a list of what is left to do.

It is as strict as the driver is: every call must come from the thread that opened it, while it is open; a copy must
lie within what was taken; nothing enqueued has happened before its stream was asked; and after an illegal address every
call fails with that error.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from orin_rerank.engines.cuda_driver import DeviceInfo
from orin_rerank.engines.memory import aligned_memory

if TYPE_CHECKING:
    from collections.abc import Callable

ILLEGAL = "cuMemcpyHtoDAsync failed: an illegal memory access was encountered"


class CudaError(Exception):
    pass


class FakeMemory:
    """Memory of either side; on the device its address is one that the host does not have."""

    def __init__(self, driver: FakeDriver, nbytes: int, address: int | None) -> None:
        self._driver = driver
        self.host = aligned_memory(nbytes)
        self.address = self.host.ctypes.data if address is None else address
        driver.memory.append(self)

    def free(self) -> None:
        self._driver.enter()
        self._driver.memory.remove(self)


class FakeStream:
    def __init__(self, driver: FakeDriver, handle: int) -> None:
        self._driver = driver
        self.handle = handle
        self.left: list[Callable[[], None]] = []
        self._due: float | None = None

    def record(self) -> None:
        self._driver.enter()
        self._due = time.monotonic() + self._driver.stream_s

    def done(self) -> bool:
        self._driver.enter()
        assert self._due is not None, "an event was queried before it was recorded"
        if time.monotonic() < self._due:
            return False
        left, self.left = self.left, []
        for work in left:
            work()
        return True


class FakeDriver:
    """A GPU.

    Args:
        integrated: Whether it shares the host's memory.
        stream_s: How long a stream takes for whatever is enqueued.
        fails: What opening it raises.
    """

    errors = (CudaError,)

    def __init__(self, *, integrated: bool = False, stream_s: float = 0.0, fails: Exception | None = None) -> None:
        self.integrated = integrated
        self.stream_s = stream_s
        self.fails = fails
        self.opened_by: int | None = None
        self.opened = self.closed = 0
        self.memory: list[FakeMemory] = []
        self.broken: str | None = None
        self.out_of_memory_at: int | None = None
        self._streams: list[FakeStream] = []
        self._next_address = 1 << 44

    def enter(self) -> None:
        assert self.opened_by == threading.get_ident(), "a call from a thread without the context"
        if self.broken:
            raise CudaError(self.broken)

    def open(self, ordinal: int) -> DeviceInfo:
        if self.fails:
            raise self.fails
        self.opened_by = threading.get_ident()
        self.opened += 1
        return DeviceInfo(f"fake {ordinal}", (8, 7), self.integrated, 64 << 30, 12060, multiprocessors=16)

    def close(self) -> None:
        self.closed += 1
        if self.opened_by is not None:
            assert self.opened_by == threading.get_ident(), "popped in a thread without the context"
            self.opened_by = None
            if self.broken:
                raise CudaError(self.broken)

    def host_memory(self, nbytes: int, *, mapped: bool) -> FakeMemory:
        self.enter()
        return FakeMemory(self, nbytes, None if mapped else 0)

    def device_memory(self, nbytes: int) -> FakeMemory:
        self.enter()
        if self.out_of_memory_at is not None and nbytes >= self.out_of_memory_at:
            raise CudaError("cuMemAlloc failed: out of memory")
        address, self._next_address = self._next_address, self._next_address + nbytes + (1 << 20)
        return FakeMemory(self, nbytes, address)

    def stream(self) -> FakeStream:
        self.enter()
        self._streams.append(FakeStream(self, 0x1001 + len(self._streams)))
        return self._streams[-1]

    def copy_to_device(self, address: int, source: np.ndarray, stream: FakeStream) -> None:
        self.enter()
        assert self._is_host(source), "a copy from memory that is not page-locked"
        stream.left.append(lambda: np.copyto(self._at(address, source.nbytes), source.reshape(-1).view(np.uint8)))

    def copy_to_host(self, target: np.ndarray, address: int, stream: FakeStream) -> None:
        self.enter()
        assert self._is_host(target), "a copy to memory that is not page-locked"
        stream.left.append(lambda: np.copyto(target.reshape(-1).view(np.uint8), self._at(address, target.nbytes)))

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: FakeStream) -> None:
        self.enter()
        stream.left.append(lambda: np.copyto(self._at(target, nbytes), self._at(source, nbytes)))

    def free_bytes(self) -> int:
        self.enter()
        return (64 << 30) - sum(memory.host.nbytes for memory in self.memory)

    def synchronize(self) -> None:
        self.enter()
        for stream in self._streams:
            left, stream.left = stream.left, []
            for work in left:
                work()

    def _at(self, address: int, nbytes: int) -> np.ndarray:
        for memory in self.memory:
            begin = address - memory.address
            if memory.address and begin >= 0 and begin + nbytes <= memory.host.nbytes:
                return memory.host[begin : begin + nbytes]
        self.broken = ILLEGAL
        raise CudaError(ILLEGAL)

    def _is_host(self, array: np.ndarray[Any, Any]) -> bool:
        return any(np.shares_memory(array, memory.host) for memory in self.memory if memory.address < 1 << 44)
