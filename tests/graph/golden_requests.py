"""The pairs of tests/graph/golden/, and how their contents are written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from graph.checkpoints import TEXT, VL
from orin_rerank.prompt.content import Content, ImagePart, TextPart
from prompt.pictures import file_of

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent / "golden"
CONFIGS: dict[str, dict[str, Any]] = {
    "vl": VL,
    "text": TEXT,
    "text-tied": {**TEXT, "tie_word_embeddings": True, "num_key_value_heads": 4},
}

A, B, C = [32, 48, 0], [96, 32, 5], [32, 48, 9]  # height, width, shift
CONTENTS: list[tuple[list[Any], list[list[Any]]]] = [
    (["red fire engine"], [["a fire truck"], [A], [A, "a ladder"], ["before ", B, " after"]]),
    ([A], [[A], [C], ["猫と犬"], [B, "and ", C]]),
    (["which of ", A, " and ", B, "?"], [["the first"], [B], [C, A, "both"]]),
]
TEXTS: list[tuple[list[Any], list[list[Any]]]] = [
    (["red fire engine"], [["a fire truck"], ["une maison rouge"], ["the capital of Peru is Lima " * 5]]),
    (["日本の首都"], [["東京"], ["a fire truck"], ["?"]]),
]


def picture(height: int, width: int, shift: int) -> ImagePart:
    """A picture without any two equal neighbours."""
    y, x, c = np.indices((height, width, 3))
    pixels = ((y * 7 + x * 3 + c * 50 + shift * (y // 4) + (y * x) % 11) % 256).astype(np.uint8)
    return ImagePart(file_of(Image.fromarray(pixels), "PNG"))


def content(parts: list[Any]) -> Content:
    return [TextPart(part) if isinstance(part, str) else picture(*part) for part in parts]


def golden_requests(config: str) -> Iterator[tuple[Content, list[Content]]]:
    for query, documents in CONTENTS if config == "vl" else TEXTS:
        yield content(query), [content(document) for document in documents]


def golden_margins(config: str) -> np.ndarray:
    return np.array(json.loads((GOLDEN / "margins.json").read_text())[config])
