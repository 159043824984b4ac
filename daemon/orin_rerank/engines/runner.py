"""One pack through the engine: images to features, the pack into buffers, margins out and checked."""

from __future__ import annotations

from dataclasses import dataclass

from orin_rerank.prompt.encoded import Float32Array

__all__ = ["PackResult"]


@dataclass(frozen=True, slots=True, eq=False)
class PackResult:
    """What a pack came to.

    Attributes:
        margins: float32 `[N]`, in the order of the pack's tags; all finite.
        encoded_images: Digests of the images for which the vision encoder ran.
        cached_images: Digests of the images whose features were cached.
    """

    margins: Float32Array
    encoded_images: frozenset[bytes]
    cached_images: frozenset[bytes]
