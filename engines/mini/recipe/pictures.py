"""Reads a picture as the reranker's preprocessor does: on white, resized within the pixel limits."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

FACTOR = 32
# The model was trained on grids of 48 to 64 patches; see the model card.
MIN_PIXELS, MAX_PIXELS = 12_288, 16_384


def smart_size(height: int, width: int, low: int = MIN_PIXELS, high: int = MAX_PIXELS) -> tuple[int, int]:
    """Sides that are multiples of 32 and whose product lies within the limits where it can."""
    tall = max(FACTOR, round(height / FACTOR) * FACTOR)
    wide = max(FACTOR, round(width / FACTOR) * FACTOR)
    if tall * wide > high:
        beta = math.sqrt(height * width / high)
        tall = max(FACTOR, math.floor(height / beta / FACTOR) * FACTOR)
        wide = max(FACTOR, math.floor(width / beta / FACTOR) * FACTOR)
    elif tall * wide < low:
        beta = math.sqrt(low / (height * width))
        tall = math.ceil(height * beta / FACTOR) * FACTOR
        wide = math.ceil(width * beta / FACTOR) * FACTOR
    return tall, wide


def read_picture(path: Path) -> np.ndarray:
    """uint8 [H, W, 3] of a picture file."""
    with Image.open(path) as opened:
        picture = opened.convert("RGBA")
    page = Image.new("RGBA", picture.size, "white")
    page.alpha_composite(picture)
    height, width = smart_size(picture.height, picture.width)
    return np.asarray(page.convert("RGB").resize((width, height), Image.Resampling.BICUBIC))
