"""The published models' dimensions, and the boards' memory, as /proc/meminfo gives it there."""

from __future__ import annotations

from typing import Final

from fakes.random_models import VL_2B, VL_8B
from orin_rerank.engines.memory_plan import ModelSize
from orin_rerank.graph.architecture import Architecture, TextArchitecture
from orin_rerank.prompt.profile import ImageProfile


def _text(hidden: int, intermediate: int, layers: int, heads: int, *, tied: bool) -> Architecture:
    return Architecture(
        TextArchitecture(hidden, intermediate, layers, heads, 8, 128, 151669, 1e-6, 1e6, None, tied), None
    )


def image_profile(head_dim: int) -> ImageProfile:
    return ImageProfile(16, 2, 2, 48, head_dim, 1e4, 4096, 1_843_200)


MODELS: Final = {
    "vl-2b": ModelSize(VL_2B, image_profile(64), 10240, 5),
    "vl-8b": ModelSize(VL_8B, image_profile(72), 10240, 5),
    "0.6b": ModelSize(_text(1024, 3072, 28, 16, tied=True), None, 8192),
    "4b": ModelSize(_text(2560, 9728, 36, 32, tied=True), None, 8192),
    "8b": ModelSize(_text(4096, 12288, 36, 32, tied=False), None, 8192),
}
"""By name: what plans are made from. The suffix of 5 tokens is the VL family's."""

BF16_MIB: Final = {"vl-2b": 4058, "vl-8b": 16722, "0.6b": 1136, "4b": 7671, "8b": 15618}
"""Sizes of the published checkpoints."""

BOARDS: Final = {
    "agx-orin-64": 62841 << 20,
    "agx-orin-32": 30697 << 20,
    "orin-nx-16": 15656 << 20,
    "orin-nano-8": 7620 << 20,
    "orin-nano-4": 3450 << 20,
}
"""By name: MemTotal, roughly, of L4T 36."""
