"""Three-axis positions (time, height, width) of the tokens of a segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.prompt.encoded import Int32Array

__all__ = ["Run", "segment_positions"]

Run = int | tuple[int, int]
"""A run of text of so many tokens, or an image of so many tokens down and across."""


def segment_positions(runs: Sequence[Run], start: int) -> tuple[Int32Array, int]:
    """Positions of text and images one after another.

    Text (the tokens around an image included) advances all three axes by one. An image that starts at p takes
    time p, height p + row and width p + column; what follows it starts at p + max(rows, columns).
    Equals `Qwen3VLModel.get_rope_index` of transformers.

    Args:
        runs: The segment's text and images in order.
        start: Position of the first token: 0 for a prefix, and where its prefix ended for a document.

    Returns:
        int32 `[3, T]`, and the position that follows the segment.
    """
    parts: list[Int32Array] = []
    position = start
    for run in runs:
        if isinstance(run, int):
            text = np.arange(position, position + run, dtype=np.int32)
            parts.append(np.broadcast_to(text, (3, run)))
            position += run
        else:
            rows, columns = run
            height, width = np.indices(run, dtype=np.int32).reshape(2, rows * columns)
            parts.append(np.stack((np.zeros_like(height), height, width)) + np.int32(position))
            position += max(run)
    if not parts:
        return np.zeros((3, 0), dtype=np.int32), position
    return np.ascontiguousarray(np.concatenate(parts, axis=1)), position
