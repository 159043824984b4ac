"""One pack through the engine: images to features, the pack into buffers, margins out and checked."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from orin_rerank.engines.lru import ArrayCache
from orin_rerank.errors import EngineError, NonFiniteScoreError
from orin_rerank.packing.arrays import Features, KeyValues, PackLayout
from orin_rerank.packing.pack import Pack, PackBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    import numpy.typing as npt

    from orin_rerank.engines.pool import PoolCounters
    from orin_rerank.engines.port import Engine, EngineInfo
    from orin_rerank.packing.rotary import RotaryTable
    from orin_rerank.prompt.encoded import EncodedImage, EncodedSegment, Float32Array

    _Claim: TypeAlias = tuple[EncodedImage, Future[Features]]

__all__ = ["PackResult", "Runner"]

_SIGN: Final = 0x8000
_EXPONENT: Final = 0x7C00
"""Bits of a float16."""


@dataclass(frozen=True, slots=True, eq=False)
class PackResult:
    """What a pack came to.

    Attributes:
        margins: float32 `[N]`, in the order of the pack's tags; all finite.
        encoded_images: Digests of the images for which the vision encoder ran.
        cached_images: Digests of the images whose features were needed and at hand; a known prefix needs none.
        tokens: Tokens that the decoder computed.
    """

    margins: Float32Array
    encoded_images: frozenset[bytes]
    cached_images: frozenset[bytes]
    tokens: int


class Runner:
    """Runs packs on an engine; safe to call from `info.slots` threads at a time.

    Args:
        engine: The engine, which the runner closes.
        rotary: The model's rotary tables.
        feature_bytes: Memory for image features that may be needed again.
        prefix_bytes: Memory for keys and values of prefixes that may be needed again.
        vision_patches: Most patches to encode in one run, unless a single image has more.
        prefix_rows: Most tokens of a prefix that is remembered, and of those that a pack keeps; None means whatever a
            pack can hold.
    """

    def __init__(
        self,
        engine: Engine,
        rotary: RotaryTable,
        *,
        feature_bytes: int,
        prefix_bytes: int,
        vision_patches: int,
        prefix_rows: int | None = None,
    ) -> None:
        self._engine = engine
        self._rotary = rotary
        self._vision_patches = vision_patches
        self._prefix_rows = prefix_rows
        self._features: ArrayCache[Features] = ArrayCache(feature_bytes)
        self._prefixes: ArrayCache[KeyValues] = ArrayCache(prefix_bytes)
        self._encoding: dict[bytes, Future[Features]] = {}
        self._encoding_lock = threading.Lock()

    @property
    def info(self) -> EngineInfo:
        """What the engine is."""
        return self._engine.info

    @property
    def pool(self) -> PoolCounters:
        """The state of the engine's buffers now."""
        return self._engine.pool

    def knows(self, prefix: EncodedSegment) -> bool:
        """Whether the keys and values of a prefix are at hand, so that it costs a pack no tokens."""
        return prefix.digest in self._prefixes

    def remembers(self, prefix: EncodedSegment) -> bool:
        """Whether a prefix is short enough for its keys and values to be at hand once a pack has computed it."""
        return self._prefix_rows is None or len(prefix) <= self._prefix_rows

    def run(self, pack: Pack) -> PackResult:
        """Scores a pack.

        Raises:
            NonFiniteScoreError: If a margin, or what it was computed from, is NaN or infinite; nothing is remembered.
            EngineError: If the engine fails.
            PoolExhaustedError: If no buffer became free in time.
        """
        known = {}
        for group in pack.groups:
            found = self._prefixes.get(group.prefix.digest)
            if found is not None:
                known[group.prefix.digest] = found
        layout = PackLayout(pack, known, self._prefix_rows)
        if not self._engine.holds(layout):
            return self._run_in_parts(pack)
        images = {image.digest: image for segment in pack.segments() for image in segment.images}
        needed = [images[digest] for digest in sorted(layout.image_digests)]
        features, encoded = self._image_features(needed)
        with self._engine.arrays(layout) as arrays:
            layout.fill(arrays, self._rotary, features)
            self._engine.run(arrays)
            margins = arrays.margin.copy()
            _check_finite(margins, "the engine gave a margin that is not a finite number")
            if self._prefixes.max_bytes:
                self._remember(layout.computed(arrays))
        return PackResult(margins, encoded, layout.image_digests - encoded, layout.tokens)

    def close(self) -> None:
        """Frees the engine."""
        self._engine.close()

    def _remember(self, computed: Mapping[bytes, KeyValues]) -> None:
        """Keeps keys and values for later packs, once it is known that these will not be spoilt by them."""
        for key_values in computed.values():
            _check_finite(key_values, "the engine gave a key or value of a prefix that is not a finite number")
        for digest, key_values in computed.items():
            self._prefixes.put(digest, key_values)

    def _run_in_parts(self, pack: Pack) -> PackResult:
        """Halves a pack that does not fit the buffers.

        It was planned around a prefix that has been forgotten since, or has more rows of known prefixes than fit.
        """
        if pack.documents == 1:
            raise EngineError(f"a document of {pack.tokens} tokens does not fit the engine's buffers")
        results = [self.run(part) for part in _halves(pack)]
        return PackResult(
            np.concatenate([result.margins for result in results]),
            frozenset().union(*(result.encoded_images for result in results)),
            frozenset().union(*(result.cached_images for result in results)),
            sum(result.tokens for result in results),
        )

    def _image_features(self, images: Iterable[EncodedImage]) -> tuple[dict[bytes, Features], frozenset[bytes]]:
        """Finds or computes the features of every image, and says which it computed.

        An image that another thread is encoding is waited for. If that fails, it is claimed again: what the other pack
        failed for is perhaps another image, and this pack must fail for its own ones alone.
        """
        features: dict[bytes, Features] = {}
        encoded: set[bytes] = set()
        left = list(images)
        while left:
            mine, waiting = self._claim(left, features)
            # Own work is finished before another's is waited for, so two threads cannot wait for each other.
            self._encode(mine)
            encoded.update(mine)
            for digest, (_, future) in mine.items():
                features[digest] = future.result()
            left = []
            for image, future in waiting:
                if future.exception() is None:
                    features[image.digest] = future.result()
                else:
                    left.append(image)
        return features, frozenset(encoded)

    def _claim(
        self, images: Iterable[EncodedImage], features: dict[bytes, Features]
    ) -> tuple[dict[bytes, _Claim], list[_Claim]]:
        """Puts what is known into `features`; the rest is this thread's to encode, or being encoded by another."""
        mine: dict[bytes, _Claim] = {}
        waiting: list[_Claim] = []
        for image in images:
            with self._encoding_lock:
                cached = self._features.get(image.digest)
                if cached is not None:
                    features[image.digest] = cached
                elif image.digest in self._encoding:
                    waiting.append((image, self._encoding[image.digest]))
                else:
                    future: Future[Features] = Future()
                    self._encoding[image.digest] = future
                    mine[image.digest] = image, future
        return mine, waiting

    def _encode(self, claimed: dict[bytes, _Claim]) -> None:
        try:
            for batch in _by_grid([image for image, _ in claimed.values()], self._vision_patches):
                for image, array in zip(batch, self._engine.encode_images(batch), strict=True):
                    _check_finite(array, "the vision encoder gave a feature that is not a finite number")
                    with self._encoding_lock:
                        self._features.put(image.digest, array)
                        del self._encoding[image.digest]
                    claimed[image.digest][1].set_result(array)
        except BaseException as error:
            for digest, (_, future) in claimed.items():
                if not future.done():
                    with self._encoding_lock:
                        self._encoding.pop(digest, None)
                    future.set_exception(error)
            raise


def _check_finite(values: npt.NDArray[Any], message: str) -> None:
    if values.dtype == np.float16:
        # In NaN and infinity all bits of the exponent are set, and no other bits of either sign are a larger number.
        # NumPy's isfinite takes 30 times as long for float16.
        finite = all(
            part.view(np.int16).max(initial=0) < _EXPONENT and part.view(np.uint16).max(initial=0) < _SIGN | _EXPONENT
            for part in values  # small enough to be read from a cache the second time
        )
    else:
        finite = bool(np.isfinite(values).all())
    if not finite:
        raise NonFiniteScoreError(message)


def _by_grid(images: Iterable[EncodedImage], max_patches: int) -> list[list[EncodedImage]]:
    """Batches of images of one grid that have at most `max_patches` patches, or one image."""
    by_grid: dict[tuple[int, int], list[EncodedImage]] = {}
    for image in images:
        by_grid.setdefault(image.grid, []).append(image)
    batches = []
    for (down, across), same in by_grid.items():
        size = max(1, max_patches // (down * across))
        batches += [same[i : i + size] for i in range(0, len(same), size)]
    return batches


def _halves(pack: Pack) -> list[Pack]:
    half = pack.documents // 2
    parts = [PackBuilder(half), PackBuilder(pack.documents - half)]
    number = 0
    for group in pack.groups:
        for document in group.documents:
            parts[number >= half].add(group.prefix, document, pack.tags[number])
            number += 1
    return [part.build() for part in parts]
