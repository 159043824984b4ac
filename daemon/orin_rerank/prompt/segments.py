"""Builds a prefix or a document from runs of text ids and images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.prompt.encoded import EncodedImage, EncodedSegment
from orin_rerank.prompt.positions import Run, segment_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ImageTokens", "SegmentBuilder"]

ImageTokens = tuple[int, int, int]
"""Ids of `<|vision_start|>`, `<|image_pad|>` and `<|vision_end|>`."""


class SegmentBuilder:
    """Collects what a segment is made of, in order.

    Args:
        image_tokens: What stands for images in the prompt; None for a text-only model.
    """

    def __init__(self, image_tokens: ImageTokens | None) -> None:
        self._image_tokens = image_tokens
        self._ids: list[int] = []
        self._visual: list[tuple[int, int]] = []
        self._images: list[EncodedImage] = []
        self._runs: list[Run] = []

    def add_text(self, ids: Sequence[int]) -> None:
        """Adds ids of text or of the template."""
        self._ids.extend(ids)
        self._runs.append(len(ids))

    def add_image(self, image: EncodedImage, merge_size: int) -> None:
        """Adds an image between its start and end tokens."""
        assert self._image_tokens is not None, "a text-only model met an image"
        start, pad, end = self._image_tokens
        self._visual.append((len(self._ids) + 1, image.tokens))
        self._ids.extend((start, *[pad] * image.tokens, end))
        self._runs.extend((1, (image.grid[0] // merge_size, image.grid[1] // merge_size), 1))
        self._images.append(image)

    def build(self, start: int, *, content_tokens: int, truncated_tokens: int) -> tuple[EncodedSegment, int]:
        """Returns the segment, its first token at position `start`, and the position that follows it."""
        positions, end = segment_positions(self._runs, start)
        visual_index = np.full(len(self._ids), -1, dtype=np.int32)
        number = 0
        for first, tokens in self._visual:
            visual_index[first : first + tokens] = np.arange(number, number + tokens)
            number += tokens
        segment = EncodedSegment(
            ids=np.array(self._ids, dtype=np.int32),
            positions=positions,
            visual_index=visual_index,
            images=tuple(self._images),
            content_tokens=content_tokens,
            truncated_tokens=truncated_tokens,
        )
        return segment, end
