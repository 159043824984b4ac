"""CUDA's driver as the daemon uses it: the few calls, as a port, and pycuda behind it.

None of these objects is safe to touch from another thread than the one that opened the driver: pycuda's contexts, and
all that is made in one, belong to a thread. `engines.cuda.CudaThread` is that thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from orin_rerank.errors import EngineError

if TYPE_CHECKING:
    import numpy.typing as npt

    from orin_rerank.prompt.encoded import UInt8Array

__all__ = ["DeviceInfo", "DeviceMemory", "Driver", "DriverStream", "HostMemory", "PyCudaDriver"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a GPU is.

    Attributes:
        name: As its driver calls it.
        compute_capability: Such as `(8, 7)` for Orin.
        integrated: Whether it shares the processor's memory.
        total_bytes: Memory that it has or shares.
        driver_version: CUDA version of the driver, such as 12060 for 12.6.
        multiprocessors: How many it has, of those that the power mode leaves on; 0 where there is only a compiler.
    """

    name: str
    compute_capability: tuple[int, int]
    integrated: bool
    total_bytes: int
    driver_version: int
    multiprocessors: int = 0


class HostMemory(Protocol):
    """Page-locked memory of the host."""

    @property
    def host(self) -> UInt8Array:
        """The memory, uint8 `[nbytes]`."""

    @property
    def address(self) -> int:
        """Where the device sees its first byte; 0 if it was not mapped."""

    def free(self) -> None:
        """Gives it back; arrays over it dangle from then on."""


class DeviceMemory(Protocol):
    """Memory of the device."""

    @property
    def address(self) -> int:
        """Of its first byte."""

    def free(self) -> None:
        """Gives it back."""


class DriverStream(Protocol):
    """A stream of work, with one event that says whether all of it is done."""

    @property
    def handle(self) -> int:
        """The driver's `CUstream`."""

    def record(self) -> None:
        """Marks the end of what has been enqueued."""

    def done(self) -> bool:
        """Whether the device has come to the mark."""


class Driver(Protocol):
    """The driver; one object opens one device once."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What its calls raise."""

    def open(self, ordinal: int) -> DeviceInfo:
        """Retains a device's primary context and pushes it to the calling thread."""

    def close(self) -> None:
        """Pops the primary context and releases it; nothing where it was not opened.

        A lost context is popped too, and the release fails with the error that it was lost by.
        """

    def host_memory(self, nbytes: int, *, mapped: bool) -> HostMemory:
        """Takes page-locked memory, which the device sees too if it is mapped."""

    def device_memory(self, nbytes: int) -> DeviceMemory:
        """Takes memory of the device."""

    def stream(self) -> DriverStream:
        """Makes a stream that does not wait for others."""

    def copy_to_device(self, address: int, source: npt.NDArray[Any], stream: DriverStream) -> None:
        """Enqueues a copy of a contiguous array of page-locked memory."""

    def copy_to_host(self, target: npt.NDArray[Any], address: int, stream: DriverStream) -> None:
        """Enqueues a copy into a contiguous array of page-locked memory."""

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: DriverStream) -> None:
        """Enqueues a copy from one address of the device to another."""

    def free_bytes(self) -> int:
        """Memory of the device that nobody has taken."""

    def synchronize(self) -> None:
        """Waits for all that anybody has enqueued in the context, other libraries too."""


_NON_BLOCKING: Final = 1
"""`CU_STREAM_NON_BLOCKING`, which pycuda has no name for: does not wait for the null stream, nor it for this one."""


class _PageLocked:
    """`cuMemHostAlloc` memory."""

    def __init__(self, cuda: Any, nbytes: int, *, mapped: bool) -> None:
        flags = cuda.host_alloc_flags.PORTABLE | (cuda.host_alloc_flags.DEVICEMAP if mapped else 0)
        self.host: UInt8Array = cuda.pagelocked_empty(nbytes, np.uint8, mem_flags=flags)
        self._allocation: Any = self.host.base
        self.address = int(self._allocation.get_device_pointer()) if mapped else 0

    def free(self) -> None:
        self._allocation.free()


class _OnDevice:
    """`cuMemAlloc` memory."""

    def __init__(self, cuda: Any, nbytes: int) -> None:
        self._allocation: Any = cuda.mem_alloc(nbytes)
        self.address = int(self._allocation)

    def free(self) -> None:
        self._allocation.free()


class _Stream:
    """A `CUstream` with its `CUevent`."""

    def __init__(self, cuda: Any) -> None:
        self.raw: Any = cuda.Stream(_NON_BLOCKING)
        self._event: Any = cuda.Event(cuda.event_flags.DISABLE_TIMING)
        self.handle = int(self.raw.handle)

    def record(self) -> None:
        self._event.record(self.raw)

    def done(self) -> bool:
        return bool(self._event.query())


class PyCudaDriver:
    """The driver, by pycuda.

    Raises:
        EngineError: If pycuda is not installed.
    """

    def __init__(self) -> None:
        try:
            import pycuda.driver  # noqa: PLC0415 - optional, and only machines with an NVIDIA GPU have it
        except ImportError as error:
            raise EngineError(f"pycuda is needed to compute on a GPU: {error}", item="pycuda") from error
        self._cuda: Any = pycuda.driver
        self._context: Any = None

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What pycuda raises."""
        return (self._cuda.Error,)

    def open(self, ordinal: int) -> DeviceInfo:
        """Retains a device's primary context and pushes it to the calling thread."""
        cuda = self._cuda
        cuda.init()
        device = cuda.Device(ordinal)
        self._context = device.retain_primary_context()
        self._context.push()
        return DeviceInfo(
            name=device.name(),
            compute_capability=device.compute_capability(),
            integrated=bool(device.get_attribute(cuda.device_attribute.INTEGRATED)),
            total_bytes=device.total_memory(),
            driver_version=cuda.get_driver_version(),
            multiprocessors=device.get_attribute(cuda.device_attribute.MULTIPROCESSOR_COUNT),
        )

    def close(self) -> None:
        """Pops the primary context and releases it."""
        context, self._context = self._context, None
        if context is not None:
            # Released while it is current, pycuda would push whatever lies beneath it in place of popping.
            self._cuda.Context.pop()
            context.detach()

    def host_memory(self, nbytes: int, *, mapped: bool) -> HostMemory:
        """Takes page-locked memory; portable, since ONNX Runtime and TensorRT come with threads of their own."""
        return _PageLocked(self._cuda, nbytes, mapped=mapped)

    def device_memory(self, nbytes: int) -> DeviceMemory:
        """Takes memory of the device."""
        return _OnDevice(self._cuda, nbytes)

    def stream(self) -> DriverStream:
        """Makes a stream."""
        return _Stream(self._cuda)

    def copy_to_device(self, address: int, source: npt.NDArray[Any], stream: DriverStream) -> None:
        """Enqueues a copy to the device."""
        assert isinstance(stream, _Stream)
        self._cuda.memcpy_htod_async(address, source, stream.raw)

    def copy_to_host(self, target: npt.NDArray[Any], address: int, stream: DriverStream) -> None:
        """Enqueues a copy to the host."""
        assert isinstance(stream, _Stream)
        self._cuda.memcpy_dtoh_async(target, address, stream.raw)

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: DriverStream) -> None:
        """Enqueues a copy within the device."""
        assert isinstance(stream, _Stream)
        self._cuda.memcpy_dtod_async(target, source, nbytes, stream.raw)

    def free_bytes(self) -> int:
        """Memory of the device that nobody has taken."""
        return int(self._cuda.mem_get_info()[0])

    def synchronize(self) -> None:
        """Waits for all work in the context."""
        self._cuda.Context.synchronize()
