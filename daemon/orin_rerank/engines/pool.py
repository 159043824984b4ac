"""Buffers that are taken once at start and lent to packs.

A slot is one block of memory, cut into a region for each array of a pack at its largest. A pack gets views of its own
exact shape from the start of each region, so nothing is allocated, and nothing moves, while requests are served.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import PoolExhaustedError
from orin_rerank.packing.arrays import PackArrays, PackLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.prompt.encoded import UInt8Array

__all__ = ["BufferPool", "PackCapacity", "PoolCounters", "aligned_memory"]

ALIGNMENT: Final = 64
"""Bytes; a cache line, and enough for every vector instruction."""


@dataclass(frozen=True, slots=True)
class PackCapacity:
    """How large the arrays of a pack can become, and the model's dimensions that their shapes need."""

    tokens: int
    documents: int
    visual_rows: int
    known_rows: int
    keep_rows: int
    hidden: int
    half_head: int
    layers: int
    kv_heads: int
    taps: int
    key_value_dtype: npt.DTypeLike = np.float32

    @classmethod
    def of_model(
        cls, architecture: Architecture, *, tokens: int, documents: int, key_value_dtype: npt.DTypeLike = np.float32
    ) -> PackCapacity:
        """Room for packs of `tokens` tokens, whatever share of them is images, prefixes or neither.

        As many rows of known prefixes come on top.
        """
        text, vision = architecture.text, architecture.vision
        return cls(
            tokens=tokens,
            documents=documents,
            visual_rows=0 if vision is None else tokens + 1,
            known_rows=tokens,
            keep_rows=tokens,
            hidden=text.hidden,
            half_head=text.head_dim // 2,
            layers=text.layers,
            kv_heads=text.kv_heads,
            taps=0 if vision is None else len(vision.deepstack_layers),
            key_value_dtype=key_value_dtype,
        )

    def holds(self, layout: PackLayout) -> bool:
        """Whether a pack laid out so fits."""
        return (
            layout.tokens <= self.tokens
            and layout.pack.documents <= self.documents
            and layout.visual_rows <= max(self.visual_rows, 1)
            and layout.known_rows <= self.known_rows
            and layout.keep_rows <= self.keep_rows
        )


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


def aligned_memory(nbytes: int) -> UInt8Array:
    """Plain memory whose address is a multiple of `ALIGNMENT`; untouched pages cost nothing."""
    raw = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + nbytes]


class _Slot:
    """The regions of one block."""

    def __init__(self, capacity: PackCapacity, allocate: Callable[[int], UInt8Array]) -> None:
        c = capacity
        width = 2 * c.half_head * c.kv_heads * 2 * c.layers
        visual = c.visual_rows * c.hidden
        regions: dict[str, tuple[npt.DTypeLike, int]] = {
            "ids": (np.int32, c.tokens),
            "cos": (np.float32, c.tokens * c.half_head),
            "sin": (np.float32, c.tokens * c.half_head),
            "prefix_id": (np.int32, c.tokens),
            "document_id": (np.int32, c.tokens),
            "visual_index": (np.int32, c.tokens),
            "last": (np.int32, c.documents),
            "visual": (np.float32, visual),
            **{f"deepstack_{tap}": (np.float32, visual) for tap in range(c.taps)},
            "known": (c.key_value_dtype, c.known_rows * width),
            "known_id": (np.int32, c.known_rows),
            "keep": (np.int32, c.keep_rows),
            "margin": (np.float32, c.documents),
            "kept": (c.key_value_dtype, c.keep_rows * width),
        }
        sizes = {name: np.dtype(dtype).itemsize * count for name, (dtype, count) in regions.items()}
        self.block = allocate(sum(size + -size % ALIGNMENT for size in sizes.values()))
        self._capacity = capacity
        self._regions: dict[str, npt.NDArray[Any]] = {}
        begin = 0
        for name, (dtype, _) in regions.items():
            self._regions[name] = self.block[begin : begin + sizes[name]].view(dtype)
            begin += sizes[name] + -sizes[name] % ALIGNMENT

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


class BufferPool:
    """Slots for packs in flight.

    Args:
        capacity: Of each slot.
        slots: How many.
        timeout_s: How long to wait for one.
        allocate: Where the memory comes from.
    """

    def __init__(
        self,
        capacity: PackCapacity,
        slots: int,
        timeout_s: float,
        allocate: Callable[[int], UInt8Array] = aligned_memory,
    ) -> None:
        self.capacity = capacity
        self._free = [_Slot(capacity, allocate) for _ in range(slots)]
        self._slots = slots
        self._timeout_s = timeout_s
        self._total_bytes = sum(slot.block.nbytes for slot in self._free)
        self._high_water = 0
        self._waits = 0
        self._changed = threading.Condition()

    @property
    def counters(self) -> PoolCounters:
        """The pool's state now."""
        with self._changed:
            used = self._slots - len(self._free)
            return PoolCounters(self._total_bytes, self._slots, used, self._high_water, self._waits)

    @contextlib.contextmanager
    def lend(self, layout: PackLayout) -> Iterator[PackArrays]:
        """Lends a slot, cut to a layout that `capacity` holds.

        Raises:
            PoolExhaustedError: If none became free in time.
        """
        slot = self._take()
        try:
            yield slot.arrays(layout)
        finally:
            with self._changed:
                self._free.append(slot)
                self._changed.notify()

    def _take(self) -> _Slot:
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            if not self._free:
                self._waits += 1
            while not self._free:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PoolExhaustedError(f"none of {self._slots} buffers became free in {self._timeout_s:g} s")
                self._changed.wait(left)
            slot = self._free.pop()
            self._high_water = max(self._high_water, self._slots - len(self._free))
            return slot
