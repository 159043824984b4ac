"""An engine without a model: margins are sums, so what reached it, and by which way, can be read off them."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.engines.pool import BufferPool, PackCapacity, PoolCounters
from orin_rerank.engines.port import EngineInfo, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orin_rerank.packing.arrays import PackArrays, PackLayout
    from orin_rerank.prompt.encoded import EncodedImage, Float32Array

HIDDEN = 2


class FakeEngine:
    """A margin is the sum of the ids of prefix and document, and of the first feature of their image tokens.

    Of a known prefix only what `kept` once returned is at hand, so the sum is right only if that comes back.
    """

    def __init__(self, *, tokens: int = 200, slots: int = 2, product_dtype: type = np.float32) -> None:
        self.capacity = PackCapacity(
            tokens=tokens,
            documents=16,
            visual_rows=tokens,
            known_rows=100,
            keep_rows=tokens,
            hidden=HIDDEN,
            half_head=2,
            layers=1,
            kv_heads=1,
            taps=1,
            product_dtype=product_dtype,
        )
        self.buffers = BufferPool(self.capacity, slots, 0.5)
        self.info = EngineInfo("fake", "fp32", tokens, 16, slots)
        self.computed: list[int] = []  # tokens of every run
        self.encoded: list[list[bytes]] = []  # images of every run of the vision encoder
        self.before_run: Callable[[PackArrays], None] = lambda _: None
        self.before_encoding: Callable[[Sequence[EncodedImage]], None] = lambda _: None
        self.closed = False
        self._lock = threading.Lock()

    @property
    def pool(self) -> PoolCounters:
        return self.buffers.counters

    def holds(self, layout: PackLayout) -> bool:
        return self.capacity.holds(layout)

    def arrays(self, layout: PackLayout) -> AbstractContextManager[PackArrays]:
        return self.buffers.lend(layout)

    def run(self, arrays: PackArrays, probe: Probe | None = None) -> None:
        with self._lock:
            self.computed.append(len(arrays.ids))
        self.before_run(arrays)
        values = arrays.ids + arrays.visual[arrays.visual_index, 0]
        arrays.kept[0, 0, :, 0, 0] = values[arrays.keep]
        for n, last in enumerate(arrays.last):
            own = (arrays.document_id == arrays.document_id[last]) | (
                (arrays.document_id == 0) & (arrays.prefix_id == arrays.prefix_id[last])
            )
            known = arrays.known_id == arrays.prefix_id[last]
            arrays.margin[n] = values[own].sum() + arrays.known[0, 0, known, 0, 0].sum()

    def encode_images(self, images: Sequence[EncodedImage], probe: Probe | None = None) -> list[Float32Array]:
        self.before_encoding(images)
        with self._lock:
            self.encoded.append([image.digest for image in images])
        return [np.full((2, image.tokens, HIDDEN), image.digest[0], np.float32) for image in images]

    def close(self) -> None:
        self.closed = True
