"""pycuda's driver on an Orin that is none; FAKE_GPU=none has no GPU.

Memory, streams and what is enqueued on them are those of `engines.fake_driver`, as strict as there.
"""

from __future__ import annotations

import enum
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[3]))

from engines.fake_driver import CudaError

if TYPE_CHECKING:
    from engines.fake_driver import FakeMemory, FakeStream
    from engines.tensorrt.fake_bindings import FakeGpu

Error = CudaError


class device_attribute:  # noqa: N801
    MULTIPROCESSOR_COUNT = 16
    INTEGRATED = 18


class host_alloc_flags(enum.IntFlag):  # noqa: N801
    PORTABLE = 1
    DEVICEMAP = 2


class event_flags(enum.IntFlag):  # noqa: N801
    DISABLE_TIMING = 2


class Context:
    @staticmethod
    def pop() -> None:
        if _board.gpu is not None:
            _board.gpu.close()

    @staticmethod
    def synchronize() -> None:
        opened_gpu().synchronize()

    def push(self) -> None:
        _board.thread = threading.get_ident()

    def detach(self) -> None:
        pass


class _Board:
    """The GPU, made when something is done with it, and in which thread its context is current."""

    gpu: FakeGpu | None = None
    thread = 0


_board = _Board()


def opened_gpu() -> FakeGpu:
    """The GPU, in the thread whose context is current."""
    from engines.tensorrt.fake_bindings import FakeGpu

    gpu = _board.gpu = _board.gpu or FakeGpu(integrated=True)
    if gpu.opened_by is None:
        assert threading.get_ident() == _board.thread, "a call from a thread without the context"
        gpu.open(0)
    return gpu


class Device:
    def __init__(self, ordinal: int) -> None:
        assert ordinal == 0

    def retain_primary_context(self) -> Context:
        return Context()

    def name(self) -> str:
        return "Orin"

    def compute_capability(self) -> tuple[int, int]:
        return 8, 7

    def get_attribute(self, attribute: int) -> int:
        return {device_attribute.INTEGRATED: 1, device_attribute.MULTIPROCESSOR_COUNT: 8}[attribute]

    def total_memory(self) -> int:
        return 64 << 30


class _Allocation:
    """What pycuda's arrays of page-locked memory have as their base."""

    def __init__(self, memory: FakeMemory) -> None:
        self._memory = memory
        self.__array_interface__ = memory.host.__array_interface__

    def get_device_pointer(self) -> int:
        return self._memory.address

    def free(self) -> None:
        self._memory.free()


class _DeviceAllocation:
    def __init__(self, memory: FakeMemory) -> None:
        self._memory = memory

    def __int__(self) -> int:
        return self._memory.address

    def free(self) -> None:
        self._memory.free()


class Stream:
    def __init__(self, flags: int) -> None:
        assert flags == 1, "it must not wait for the null stream"
        self.fake: FakeStream = opened_gpu().stream()
        self.handle = self.fake.handle


class Event:
    def __init__(self, flags: event_flags) -> None:
        assert flags is event_flags.DISABLE_TIMING
        self._stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self._stream = stream
        stream.fake.record()

    def query(self) -> bool:
        assert self._stream is not None
        return self._stream.fake.done()


def pagelocked_empty(nbytes: int, dtype: type[np.uint8], mem_flags: host_alloc_flags) -> np.ndarray[Any, Any]:
    assert dtype is np.uint8
    return np.asarray(
        _Allocation(opened_gpu().host_memory(nbytes, mapped=bool(mem_flags & host_alloc_flags.DEVICEMAP)))
    )


def mem_alloc(nbytes: int) -> _DeviceAllocation:
    return _DeviceAllocation(opened_gpu().device_memory(nbytes))


def memcpy_htod_async(target: int, source: np.ndarray[Any, Any], stream: Stream) -> None:
    opened_gpu().copy_to_device(target, source, stream.fake)


def memcpy_dtoh_async(target: np.ndarray[Any, Any], source: int, stream: Stream) -> None:
    opened_gpu().copy_to_host(target, source, stream.fake)


def memcpy_dtod_async(target: int, source: int, nbytes: int, stream: Stream) -> None:
    opened_gpu().copy_on_device(target, source, nbytes, stream.fake)


def mem_get_info() -> tuple[int, int]:
    return opened_gpu().free_bytes(), 64 << 30


def init() -> None:
    if os.environ.get("FAKE_GPU") == "none":
        raise Error("cuInit failed: no CUDA-capable device is detected")


def get_driver_version() -> int:
    return 12060
