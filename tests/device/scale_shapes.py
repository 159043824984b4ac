"""The shapes of `numerics.py`: the published ones, and some that a processor computes in seconds."""

from __future__ import annotations

import dataclasses

from fakes.random_models import QWEN3_06B, QWEN3_4B, QWEN3_8B, VL_2B, VL_8B
from orin_rerank.graph.architecture import Architecture, TextArchitecture, VisionArchitecture

__all__ = ["MODELS"]

_TINY = TextArchitecture(96, 160, 7, 4, 2, 32, 12400, 1e-6, 1e6, None, tied=False)
MODELS = {
    "tiny-vl": Architecture(
        dataclasses.replace(_TINY, mrope_section=(6, 5, 5), tied=True),
        VisionArchitecture(64, 96, 4, 2, 96, 3, 16, 2, 2, 64, (0, 1, 2), 1e4),
    ),
    "tiny": Architecture(_TINY, None),
    "cut-0.6b": Architecture(dataclasses.replace(QWEN3_06B.text, layers=8, vocabulary=12400), None),
    "0.6b": QWEN3_06B,
    "4b": QWEN3_4B,
    "8b": QWEN3_8B,
    "vl-2b": VL_2B,
    "vl-8b": VL_8B,
}
