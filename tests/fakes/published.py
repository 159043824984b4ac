"""The published models' dimensions and the boards' memory, under the names that tests of memory use."""

from __future__ import annotations

from typing import Final

from orin_rerank.lifecycle import published
from orin_rerank.prompt.profile import ImageProfile


def image_profile(head_dim: int) -> ImageProfile:
    return ImageProfile(16, 2, 2, 48, head_dim, 1e4, 4096, 1_843_200)


MODELS: Final = {key: model.size for key, model in published.MODELS.items()}

BF16_MIB: Final = {"vl-2b": 4058, "vl-8b": 16722, "0.6b": 1136, "4b": 7671, "8b": 15618}
"""Sizes of the published checkpoints."""

BOARDS: Final = {key: board.memory_bytes for key, board in published.BOARDS.items()}
