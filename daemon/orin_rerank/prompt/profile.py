"""What the prompt path must know of a model; a bundle's manifest carries it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["ImageProfile", "PromptFamily", "PromptProfile"]


class PromptFamily(enum.Enum):
    """Which of the two published prompt templates a model was trained with."""

    VL = "vl"
    """Qwen3-VL-Reranker: text and images."""
    TEXT = "text"
    """Qwen3-Reranker: text only."""


@dataclass(frozen=True, slots=True)
class ImageProfile:
    """How a model takes images.

    Attributes:
        patch_size: Side of a patch in pixels.
        temporal_patch_size: Frames in a patch; a still image is repeated.
        merge_size: Side, in patches, of the square that becomes one token.
        position_grid: Side of the learned position table (48 for the published models).
        head_dim: Width of one vision attention head, for its rotary table.
        rope_theta: Base of the vision rotary frequencies.
        min_pixels: Smaller pictures are enlarged to this area.
        max_pixels: Larger pictures are reduced to this area.
    """

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    position_grid: int
    head_dim: int
    rope_theta: float
    min_pixels: int
    max_pixels: int


@dataclass(frozen=True, slots=True)
class PromptProfile:
    """What the prompt path must know of a model.

    Attributes:
        family: Which template.
        max_tokens: Longest prefix + document, in tokens, counted as the reference counts its `max_length`: in the VL
            family the suffix behind the document (5 tokens in the published models) comes on top of it. See
            `PromptEncoder.longest_pair`.
        default_instruction: Used where a request has none, or a blank one.
        image: None for a text-only model.
    """

    family: PromptFamily
    max_tokens: int
    default_instruction: str
    image: ImageProfile | None
