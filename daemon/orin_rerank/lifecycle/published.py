"""The published models and the boards that they are for, as data: to plan before anything is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orin_rerank.board.module import MODULES, ModuleKind
from orin_rerank.engines.memory_plan import ModelSize
from orin_rerank.engines.roofline import ChipLimits, RequestShape
from orin_rerank.graph.architecture import Architecture, TextArchitecture, VisionArchitecture
from orin_rerank.prompt.profile import ImageProfile, PromptFamily

__all__ = ["BOARDS", "MODELS", "REQUESTS", "BoardSpec", "PublishedModel"]


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A published checkpoint.

    Attributes:
        key: Short name, such as `vl-8b`.
        name: Its own name.
        family: Which prompt it was trained with.
        size: Its dimensions and limits.
        download_bytes: Of its weights as they are published, in bfloat16.
        quality: MTEB-R, or for models that take images MMTEB-R: retrieval as published, comparable within a family.
    """

    key: str
    name: str
    family: PromptFamily
    size: ModelSize
    download_bytes: int
    quality: float


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """A board as it is known without having one.

    Attributes:
        kind: The module.
        memory_bytes: What the system has of its memory, roughly: MemTotal under L4T 36.
        modes: Power modes whose limits are known, the fastest first.
    """

    kind: ModuleKind
    memory_bytes: int
    modes: tuple[ChipLimits, ...]


def _text_model(
    key: str, parameters: int, quality: float, decoder: tuple[int, int, int, int], *, tied: bool
) -> PublishedModel:
    hidden, intermediate, layers, heads = decoder
    text = TextArchitecture(hidden, intermediate, layers, heads, 8, 128, 151_669, 1e-6, 1e6, None, tied)
    size = ModelSize(Architecture(text, None), None, 8192)
    name = f"Qwen3-Reranker-{key.upper()}"
    return PublishedModel(key, name, PromptFamily.TEXT, size, 2 * parameters, quality)


def _vl_model(
    key: str,
    parameters: int,
    quality: float,
    decoder: tuple[int, int, int, int],
    vision: tuple[int, int, int, tuple[int, ...]],
    *,
    tied: bool,
) -> PublishedModel:
    hidden, intermediate, layers, heads = decoder
    text = TextArchitecture(hidden, intermediate, layers, heads, 8, 128, 151_936, 1e-6, 5e6, (24, 20, 20), tied)
    width, feed_forward, blocks, taps = vision
    encoder = VisionArchitecture(width, feed_forward, blocks, 16, hidden, 3, 16, 2, 2, 2304, taps, 1e4)
    image = ImageProfile(16, 2, 2, 48, encoder.head_dim, 1e4, 4096, 1_843_200)
    size = ModelSize(Architecture(text, encoder), image, 10_240, 5)
    name = f"Qwen3-VL-Reranker-{key.removeprefix('vl-').upper()}"
    return PublishedModel(key, name, PromptFamily.VL, size, 2 * parameters, quality)


_PUBLISHED: Final = (
    _vl_model("vl-2b", 2_127_532_032, 70.0, (2048, 6144, 28, 16), (1024, 4096, 24, (5, 11, 17)), tied=True),
    _vl_model("vl-8b", 8_767_123_696, 74.9, (4096, 12288, 36, 32), (1152, 4304, 27, (8, 16, 24)), tied=False),
    _text_model("0.6b", 595_776_512, 65.80, (1024, 3072, 28, 16), tied=True),
    _text_model("4b", 4_021_784_576, 69.76, (2560, 9728, 36, 32), tied=True),
    _text_model("8b", 8_188_548_096, 69.02, (4096, 12288, 36, 32), tied=False),
)
MODELS: Final = {model.key: model for model in _PUBLISHED}
"""By their short names."""

_CLUSTER_OPERATIONS: Final = 2 * 4096
"""Dense INT8 operations that a texture processing cluster of Orin's does in a clock: two multiprocessors of 4,096. With
the clocks below this gives what NVIDIA's data sheets state, dense or half of what they state for sparse products."""


def _mode(name: str, clusters: int, mhz: float, memory_gbs: float) -> ChipLimits:
    return ChipLimits(name, _CLUSTER_OPERATIONS * clusters * mhz * 1e6, memory_gbs * 1e9)


_MEMORY_MIB: Final = {
    "agx-orin-64": 62_841,
    "agx-orin-32": 30_697,
    "orin-nx-16": 15_656,
    "orin-nx-8": 7_620,
    "orin-nano-8": 7_620,
    "orin-nano-4": 3_450,
}
_MODES: Final = {
    "agx-orin-64": (_mode("MAXN", 8, 1300.5, 204.8), _mode("50W", 8, 828.75, 204.8), _mode("30W", 4, 624.75, 204.8)),
    "agx-orin-32": (_mode("MAXN", 7, 930.75, 204.8),),
    "orin-nx-16": (_mode("MAXN_SUPER", 4, 1173, 102.4), _mode("MAXN", 4, 918, 102.4)),
    "orin-nx-8": (_mode("MAXN_SUPER", 4, 1173, 102.4), _mode("MAXN", 4, 765, 102.4)),
    "orin-nano-8": (_mode("MAXN_SUPER", 4, 1020, 102.4), _mode("15W", 4, 624.75, 68.3)),
    "orin-nano-4": (_mode("MAXN_SUPER", 2, 1020, 51.2), _mode("10W", 2, 624.75, 34.1)),
}
BOARDS: Final = {
    kind.key: BoardSpec(kind, _MEMORY_MIB[kind.key] << 20, _MODES[kind.key]) for kind in dict.fromkeys(MODULES.values())
}
"""By the modules' short names."""

REQUESTS: Final = (
    RequestShape("50 texts", 50, 145, 62),
    RequestShape("50 texts, image in query", 50, 145, 62 + 514, query_image_tokens=512),
    RequestShape("50 images", 50, 514, 62, document_image_tokens=512),
)
"""A top-50 request: texts of 40 to 250 tokens, 145 on average, behind a prefix of 62, as elsewhere; pictures of 512
tokens, such as 1024 x 512 pixels. The second and third are for models that take images."""
