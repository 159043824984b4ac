"""Pixels to the patches that the vision encoder takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    from orin_rerank.prompt.encoded import Float32Array, UInt8Array
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["CHANNELS", "patch_width", "write_patches"]

CHANNELS: Final = 3
_HALF_RANGE: Final = np.float32(127.5)


def patch_width(profile: ImageProfile) -> int:
    """Values in one patch: channels x frames x side x side (1,536 for the published models)."""
    return CHANNELS * profile.temporal_patch_size * profile.patch_size**2


def write_patches(pixels: UInt8Array, profile: ImageProfile, out: Float32Array) -> None:
    """Normalises pixels to -1..1 (mean and deviation 0.5) and lays them out in patches.

    Patches go in merge-block order: `[gh / merge, gw / merge, merge, merge]`, so that the patches of one token follow
    each other. Within a patch the order is `[channel, frame, row, column]`; a still image repeats its one frame.
    Equals `pixel_values` of transformers' Qwen2-VL image processor within 1e-6.

    Args:
        pixels: uint8 `[height, width, 3]`; both sides are multiples of `patch_size * merge_size`.
        profile: The model's geometry.
        out: float32 `[gh * gw, patch_width]`, C-contiguous; overwritten. A caller's buffer, so that a pinned one
            can be filled without a copy in between.

    Raises:
        InternalError: If shapes do not agree.
    """
    side, merge, frames = profile.patch_size, profile.merge_size, profile.temporal_patch_size
    height, width, channels = pixels.shape
    rows, columns = height // side, width // side
    if channels != CHANNELS or height % (side * merge) or width % (side * merge):
        raise InternalError(f"an image of {pixels.shape} is not made of whole tokens")
    if out.shape != (rows * columns, patch_width(profile)) or not out.flags.c_contiguous:
        raise InternalError(f"patches of an image of {pixels.shape} do not fit into an array of {out.shape}")
    blocks = pixels.reshape(rows // merge, merge, side, columns // merge, merge, side, CHANNELS)
    blocks = blocks.transpose(0, 3, 1, 4, 6, 2, 5)  # [gh / merge, gw / merge, merge, merge, channel, row, column]
    # Moved while they are bytes: what jumps about in memory is a quarter as much.
    values = np.divide(np.ascontiguousarray(blocks), _HALF_RANGE, dtype=np.float32)
    values -= np.float32(1)
    target = out.reshape(rows * columns, CHANNELS, frames, side**2)
    target[:] = values.reshape(rows * columns, CHANNELS, 1, side**2)
