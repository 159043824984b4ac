"""The size at which a model sees an image."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import ImageAspectRatioError

if TYPE_CHECKING:
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["MAX_ASPECT_RATIO", "most_patches", "most_picture_bytes", "smart_resize"]

MAX_ASPECT_RATIO: Final = 200

_RGB: Final = 3


def smart_resize(height: int, width: int, profile: ImageProfile) -> tuple[int, int]:
    """Rounds a size to whole tokens, within the model's area limits, with the aspect ratio nearly kept.

    Equals `smart_resize` of qwen-vl-utils 0.0.14 (banker's rounding included) but for one case: a picture so thin
    that its shorter side would vanish keeps one token, as in transformers, where qwen-vl-utils fails.

    Args:
        height: Of the decoded picture, in pixels, at least 1.
        width: Likewise.
        profile: Gives the factor `patch_size * merge_size` and the area limits.

    Returns:
        Height and width in pixels, both multiples of the factor.

    Raises:
        ImageAspectRatioError: If the longer side is over 200 times the shorter one.
    """
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise ImageAspectRatioError(f"one side is over {MAX_ASPECT_RATIO} times the other: {height} x {width} pixels")
    factor = profile.patch_size * profile.merge_size
    # Python's round() goes to even at a half, like the reference's.
    rows = max(factor, round(height / factor) * factor)
    columns = max(factor, round(width / factor) * factor)
    if rows * columns > profile.max_pixels:
        shrink = math.sqrt((height * width) / profile.max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif rows * columns < profile.min_pixels:
        grow = math.sqrt(profile.min_pixels / (height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns


def most_patches(profile: ImageProfile) -> int:
    """More patches no image can have, whatever its size: what buffers must hold.

    `max_pixels` is kept but for two kinds of pictures: thin ones, whose shorter side may not vanish, and small ones,
    whose sides are rounded up when they are enlarged to `min_pixels`.
    """
    factor = profile.patch_size * profile.merge_size
    # The longer side is at most MAX_ASPECT_RATIO times the shorter one before both are rounded.
    thin = factor * math.sqrt(MAX_ASPECT_RATIO * profile.max_pixels)
    longer = math.sqrt(MAX_ASPECT_RATIO * profile.min_pixels)
    shorter = profile.min_pixels / longer if longer else 0.0
    enlarged = (longer + factor) * (shorter + factor)
    # Between the extremes both sides are longer than `shorter`, and for one area the roundings add most to the longest.
    pixels = max(profile.max_pixels, factor**2, thin, enlarged)
    tokens = math.floor(pixels / factor**2)
    return tokens * profile.merge_size**2


def most_picture_bytes(profile: ImageProfile) -> int:
    """Most memory that one image takes at the size at which the model sees it, as bytes of RGB."""
    return most_patches(profile) * profile.patch_size**2 * _RGB
