"""What the prompt path yields: a prefix and documents as integers and patches, ready for packing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["EncodedImage", "EncodedRequest", "EncodedSegment", "Float32Array", "Int32Array", "UInt8Array"]

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedImage:
    """One image at the size at which the model sees it.

    Pixels stay bytes until the vision encoder runs: as float32 patches an image of 1,800 tokens takes 44 MB.

    Attributes:
        digest: SHA-256 over the pixels and their shape: the key of the feature cache.
        pixels: uint8 `[height, width, 3]`, resized; both sides are multiples of `patch_size * merge_size`.
        grid: Patches down and across, `(gh, gw)`.
        tokens: Tokens that it takes in the prompt, `gh * gw / merge_size**2`.
    """

    digest: bytes
    pixels: UInt8Array = field(repr=False)
    grid: tuple[int, int]
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class EncodedSegment:
    """A prefix (everything before the document) or one document with the prompt's suffix.

    Attributes:
        ids: int32 `[T]` token ids.
        positions: int32 `[3, T]` time, height and width positions. A document's start where its prefix ended.
        visual_index: int32 `[T]`: -1 for a text token, else the running number of the image token among
            all image tokens of this segment (0, 1, ... through `images` in order).
        images: The images of this segment, in order.
        content_tokens: Tokens of the caller's own content that were kept.
        truncated_tokens: Tokens of the caller's own content that were cut; extrapolated from the head where a text is
            thousands of characters longer than what fits.
        digest: SHA-256 over ids, first position and images: equal for segments that the model computes alike.
    """

    ids: Int32Array
    positions: Int32Array
    visual_index: Int32Array
    images: tuple[EncodedImage, ...]
    content_tokens: int
    truncated_tokens: int
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.ids.tobytes())
        digest.update(self.positions[:, :1].tobytes())
        for image in self.images:
            digest.update(image.digest)
        object.__setattr__(self, "digest", digest.digest())

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    @property
    def picture_bytes(self) -> int:
        """Memory that its decoded images take; one that stands in it twice counts twice."""
        return sum(image.pixels.nbytes for image in self.images)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRequest:
    """A request as packing takes it: the shared prefix and the documents in the caller's order."""

    prefix: EncodedSegment
    documents: tuple[EncodedSegment, ...]
