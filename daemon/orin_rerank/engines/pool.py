"""Buffers that are taken once at start, in one block, and lent to packs and to runs of the vision encoder.

The block is cut into slots, and a slot into a region for each array at its largest. Whoever borrows a slot gets views
of its own exact shape from the start of each region, so nothing is allocated, and nothing moves, while requests are
served. A pack's regions and those of a run of the vision encoder lie over each other: a slot is lent for one or the
other.

Memory goes back only when nobody has any of it: an engine that is closed first drains its pool. From then on nothing is
lent, who waits for a slot is told so, and who has one is waited for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from orin_rerank.engines.capacity import (
    ImageCapacity,
    PackCapacity,
    Regions,
    image_regions,
    pack_regions,
    region_bytes,
    slot_bytes,
)
from orin_rerank.engines.memory import Block, PlainBlock
from orin_rerank.errors import EngineClosedError, EngineError, InternalError, PoolExhaustedError
from orin_rerank.packing.arrays import Features, PackArrays, PackLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orin_rerank.prompt.encoded import Float32Array, Int32Array, UInt8Array

__all__ = ["BufferPool", "ImageArrays", "ImageCapacity", "PackCapacity", "PoolCounters"]


@dataclass(frozen=True, slots=True, eq=False)
class ImageArrays:
    """The vision encoder's inputs and outputs for B images of one grid of P patches.

    Attributes:
        patches: float32 `[B * P, patch_width]`.
        position_index: int32 `[P, 4]`.
        position_weight: float32 `[P, 4]`.
        cos: float32 `[P, D/2]`.
        sin: float32 `[P, D/2]`.
        features: `[1 + taps, B * P / merge, hidden]`, which the engine writes.
    """

    patches: Float32Array
    position_index: Int32Array
    position_weight: Float32Array
    cos: Float32Array
    sin: Float32Array
    features: Features


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """The pool's state.

    Attributes:
        total_bytes: Memory taken at start.
        slots: How many packs it holds at a time.
        used: Slots that are lent now.
        high_water: Most slots that were ever lent at a time.
        waits: How often a pack had to wait for a slot.
    """

    total_bytes: int
    slots: int
    used: int
    high_water: int
    waits: int


def _cut(memory: UInt8Array, regions: Regions) -> dict[str, npt.NDArray[Any]]:
    arrays = {}
    begin = 0
    for name, (dtype, count) in regions.items():
        arrays[name] = memory[begin : begin + np.dtype(dtype).itemsize * count].view(dtype)
        begin += region_bytes(dtype, count)
    return arrays


class _Slot:
    """The regions of one slot."""

    def __init__(self, memory: UInt8Array, capacity: PackCapacity, images: ImageCapacity | None) -> None:
        self._capacity = capacity
        self._images = images
        self._regions = _cut(memory, pack_regions(capacity))
        self._image_regions = {} if images is None else _cut(memory, image_regions(images))

    def arrays(self, layout: PackLayout) -> PackArrays:
        c = self._capacity
        s, n = layout.tokens, layout.pack.documents
        v = layout.visual_rows if c.visual_rows else 0
        known, keep = max(layout.known_rows, 1), max(layout.keep_rows, 1)

        def cut(name: str, *shape: int) -> npt.NDArray[Any]:
            return self._regions[name][: int(np.prod(shape))].reshape(shape)

        return PackArrays(
            ids=cut("ids", s),
            cos=cut("cos", s, c.half_head),
            sin=cut("sin", s, c.half_head),
            prefix_id=cut("prefix_id", s),
            document_id=cut("document_id", s),
            visual_index=cut("visual_index", s),
            last=cut("last", n),
            visual=cut("visual", v, c.hidden),
            deepstack=tuple(cut(f"deepstack_{tap}", v, c.hidden) for tap in range(c.taps)),
            known=cut("known", c.layers, 2, known, c.kv_heads, 2 * c.half_head),
            known_id=cut("known_id", known),
            keep=cut("keep", keep),
            margin=cut("margin", n),
            kept=cut("kept", c.layers, 2, keep, c.kv_heads, 2 * c.half_head),
        )

    def image_arrays(self, images: int, patches: int) -> ImageArrays:
        c, regions = self._images, self._image_regions
        if c is None:
            raise InternalError("buffers without room for images were asked for some")
        p, all_patches = patches, images * patches

        def cut(name: str, *shape: int) -> npt.NDArray[Any]:
            return regions[name][: int(np.prod(shape))].reshape(shape)

        return ImageArrays(
            patches=cut("patches", all_patches, c.patch_width),
            position_index=cut("position_index", p, 4),
            position_weight=cut("position_weight", p, 4),
            cos=cut("cos", p, c.half_head),
            sin=cut("sin", p, c.half_head),
            features=cut("features", c.outputs, all_patches // c.merge, c.hidden),
        )


class BufferPool:
    """Slots for packs in flight, of one block.

    Args:
        capacity: Of each slot, for packs.
        slots: How many.
        timeout_s: How long to wait for one; and, at the end, for those that are lent.
        images: Of each slot, for runs of the vision encoder; None for a text-only model.
        allocate: Where the block comes from; called once.
    """

    def __init__(
        self,
        capacity: PackCapacity,
        slots: int,
        timeout_s: float,
        *,
        images: ImageCapacity | None = None,
        allocate: Callable[[int], Block] = PlainBlock,
    ) -> None:
        self.capacity = capacity
        self.images = images
        self._slots = slots
        self._timeout_s = timeout_s
        self._slot_bytes = slot_bytes(capacity, images)
        self.block = allocate(self._slot_bytes * slots)
        pieces = self.block.host.reshape(slots, self._slot_bytes)
        self._free = [_Slot(piece, capacity, images) for piece in pieces]
        self._draining = self._closed = False
        self._used = 0
        self._high_water = 0
        self._waits = 0
        self._changed = threading.Condition()

    @property
    def counters(self) -> PoolCounters:
        """The pool's state now."""
        with self._changed:
            return PoolCounters(self.block.host.nbytes, self._slots, self._used, self._high_water, self._waits)

    @contextlib.contextmanager
    def lend(self, layout: PackLayout) -> Iterator[PackArrays]:
        """Lends a slot, cut to a layout that `capacity` holds.

        Raises:
            PoolExhaustedError: If none became free in time.
            EngineClosedError: If the pool is drained or closed.
        """
        with self._lent() as slot:
            yield slot.arrays(layout)

    @contextlib.contextmanager
    def lend_for_images(self, images: int, patches: int) -> Iterator[ImageArrays]:
        """Lends a slot for a run of the vision encoder that `images` holds.

        Args:
            images: How many images, all of one grid.
            patches: Of each.

        Raises:
            PoolExhaustedError: If none became free in time.
            EngineClosedError: If the pool is drained or closed.
        """
        with self._lent() as slot:
            yield slot.image_arrays(images, patches)

    def slot_of(self, array: npt.NDArray[Any]) -> int:
        """Number of the slot that an array lies in, from 0: each has a stream, and contexts, of its own.

        Raises:
            InternalError: If it lies in none.
        """
        offset = array.ctypes.data - self.block.host.ctypes.data
        if not 0 <= offset < self.block.host.nbytes:
            raise InternalError("an array lies in no slot of the pool")
        return int(offset // self._slot_bytes)

    def drain(self) -> None:
        """Lends nothing any more, and waits until all that is lent has come back.

        Raises:
            EngineError: If something is still lent when the time is over. What its borrower uses may not be freed; the
                pool can be drained again.
        """
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._used, self._timeout_s):
                raise EngineError(
                    f"{self._used} of {self._slots} buffers are in use after {self._timeout_s:g} s and cannot be freed"
                )

    def close(self) -> None:
        """Drains the pool and gives the memory back.

        Raises:
            EngineError: If something is still lent, as `drain` says; nothing is given back then.
        """
        self.drain()
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._free.clear()
        self.block.close()

    @contextlib.contextmanager
    def _lent(self) -> Iterator[_Slot]:
        slot = self._take()
        try:
            yield slot
        finally:
            with self._changed:
                self._free.append(slot)
                self._used -= 1
                self._changed.notify_all()

    def _take(self) -> _Slot:
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            if not self._free and not self._draining:
                self._waits += 1
            while not self._draining and not self._free:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PoolExhaustedError(f"none of {self._slots} buffers became free in {self._timeout_s:g} s")
                self._changed.wait(left)
            if self._draining:
                raise EngineClosedError("the engine has been closed")
            slot = self._free.pop()
            self._used += 1
            self._high_water = max(self._high_water, self._used)
            return slot
