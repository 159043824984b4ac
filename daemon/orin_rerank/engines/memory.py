"""Memory that the host writes and the engine reads, in one interface whatever lies between the two.

==========  ==================================================  =======================================
block       memory                                              on its way to the engine
==========  ==================================================  =======================================
`plain`     aligned memory of the process                       nothing: the engine is the processor
`mapped`    page-locked, mapped into the device's addresses     nothing: one memory for both (Orin)
`copied`    page-locked, and a mirror of it on the device       asynchronous copies of what is used
==========  ==================================================  =======================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from orin_rerank.engines.cuda import CudaThread
    from orin_rerank.engines.cuda_driver import DeviceMemory, Driver, DriverStream, HostMemory
    from orin_rerank.prompt.encoded import UInt8Array

__all__ = ["ALIGNMENT", "Block", "CopiedBlock", "MappedBlock", "PlainBlock", "aligned_memory", "cuda_block"]

ALIGNMENT: Final = 256
"""Bytes. What `cuMemAlloc` promises and TensorRT asks of an address; more than any vector instruction needs."""


class Block(Protocol):
    """One block of memory, and where the engine finds what lies in it."""

    @property
    def kind(self) -> str:
        """`plain`, `mapped` or `copied`."""

    @property
    def host(self) -> UInt8Array:
        """The memory as the host has it, uint8 `[nbytes]`."""

    @property
    def on_device(self) -> bool:
        """Whether `address_of` gives addresses of a device."""

    @property
    def copies(self) -> bool:
        """Whether the two `enqueue` functions do anything."""

    def address_of(self, array: npt.NDArray[Any]) -> int:
        """Where the engine finds an array that is a view of `host`.

        Raises:
            InternalError: If it is none.
        """

    def enqueue_upload(self, arrays: Iterable[npt.NDArray[Any]], driver: Driver, stream: DriverStream) -> None:
        """Enqueues, in the CUDA thread, what brings the host's contents of views of `host` to the engine."""

    def enqueue_download(self, arrays: Iterable[npt.NDArray[Any]], driver: Driver, stream: DriverStream) -> None:
        """Enqueues, in the CUDA thread, what brings the engine's contents of views of `host` to the host."""

    def close(self) -> None:
        """Gives the memory back; views of `host` may not be touched afterwards."""


def aligned_memory(nbytes: int) -> UInt8Array:
    """Plain memory whose address is a multiple of `ALIGNMENT`; untouched pages cost nothing."""
    raw = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + nbytes]


class _Window:
    """A block whose host memory begins at one address and is seen by the engine at another."""

    def __init__(self, host: UInt8Array, address: int) -> None:
        self.host = host
        self._begin: int = host.ctypes.data
        self._shift = address - self._begin

    def address_of(self, array: npt.NDArray[Any]) -> int:
        begin: int = array.ctypes.data
        if not (self._begin <= begin and begin + array.nbytes <= self._begin + self.host.nbytes):
            raise InternalError("an array lies outside the block whose device address was asked for")
        if not array.flags.c_contiguous:
            raise InternalError("an array of a block is not contiguous")
        return begin + self._shift


class _OneMemory(_Window):
    """What the host and the device both see, so that nothing is copied."""

    copies = False

    def enqueue_upload(self, arrays: Iterable[npt.NDArray[Any]], driver: Driver, stream: DriverStream) -> None:
        """Nothing: there is one memory."""

    def enqueue_download(self, arrays: Iterable[npt.NDArray[Any]], driver: Driver, stream: DriverStream) -> None:
        """Nothing: there is one memory."""


class PlainBlock(_OneMemory):
    """Memory of the process, for an engine that computes on the processor."""

    kind = "plain"
    on_device = False

    def __init__(self, nbytes: int) -> None:
        memory = aligned_memory(nbytes)
        super().__init__(memory, memory.ctypes.data)

    def close(self) -> None:
        """Leaves it to the garbage collector."""


class MappedBlock(_OneMemory):
    """Page-locked memory that the device reads and writes in place.

    Raises:
        EngineError: If it is not to be had.
    """

    kind = "mapped"
    on_device = True

    def __init__(self, nbytes: int, cuda: CudaThread) -> None:
        self._cuda = cuda
        self._memory: HostMemory = cuda.call(lambda driver: driver.host_memory(nbytes, mapped=True))
        super().__init__(self._memory.host, self._memory.address)

    def close(self) -> None:
        """Unlocks and frees it."""
        if not self._cuda.lost:
            self._cuda.call(lambda _: self._memory.free())


class CopiedBlock(_Window):
    """Page-locked memory of the host with a mirror on the device.

    Raises:
        EngineError: If either is not to be had.
    """

    kind = "copied"
    on_device = True
    copies = True

    def __init__(self, nbytes: int, cuda: CudaThread) -> None:
        self._cuda = cuda

        def take(driver: Driver) -> tuple[HostMemory, DeviceMemory]:
            host = driver.host_memory(nbytes, mapped=False)
            try:
                return host, driver.device_memory(nbytes)
            except BaseException:
                host.free()
                raise

        self._memory, self._mirror = cuda.call(take)
        super().__init__(self._memory.host, self._mirror.address)

    def enqueue_upload(self, arrays: Iterable[npt.NDArray[Any]], driver: Driver, stream: DriverStream) -> None:
        """Copies to the mirror."""
        for array in arrays:
            if array.nbytes:
                driver.copy_to_device(self.address_of(array), array, stream)

    def enqueue_download(self, arrays: Iterable[npt.NDArray[Any]], driver: Driver, stream: DriverStream) -> None:
        """Copies from the mirror."""
        for array in arrays:
            if array.nbytes:
                driver.copy_to_host(array, self.address_of(array), stream)

    def close(self) -> None:
        """Frees both."""

        def free(_: Driver) -> None:
            self._mirror.free()
            self._memory.free()

        if not self._cuda.lost:
            self._cuda.call(free)


def cuda_block(cuda: CudaThread) -> Callable[[int], Block]:
    """What takes blocks that suit a GPU: zero-copy where it shares the processor's memory, copied where it does not."""
    kind = MappedBlock if cuda.info.integrated else CopiedBlock
    return lambda nbytes: kind(nbytes, cuda)
