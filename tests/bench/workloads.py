"""What is ranked: made from a seed, different in every round so that no cache carries over."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from orin_rerank.prompt.content import Content, ImagePart, RerankInput, TextPart

WORDS = [
    "the",
    "red",
    "engine",
    "house",
    "river",
    "of",
    "small",
    "green",
    "light",
    "market",
    "water",
    "a",
    "cat",
    "and",
    "morning",
    "music",
    "table",
    "stone",
    "over",
    "winter",
    "bridge",
    "paper",
    "quick",
    "under",
    "story",
    "glass",
    "window",
    "field",
    "cold",
    "long",
    "night",
    "walks",
    "between",
    "old",
    "trees",
]

Side = Callable[[np.random.Generator, int, int], Content]


def text(rng: np.random.Generator, low: int, high: int) -> str:
    """A text of about `low` to `high` tokens: these words are one token each."""
    return " ".join(rng.choice(WORDS, int(rng.integers(low, high + 1))))


def picture(rng: np.random.Generator) -> ImagePart:
    """A soft random picture of 128 pixels a side."""
    noise = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    out = io.BytesIO()
    noise.resize((128, 128)).filter(ImageFilter.GaussianBlur(1)).save(out, "PNG")
    return ImagePart(out.getvalue())


def _text_side(rng: np.random.Generator, low: int, high: int) -> Content:
    return [TextPart(text(rng, low, high))]


def _image_side(rng: np.random.Generator, low: int, high: int) -> Content:
    return [picture(rng)]


def _mixed_side(rng: np.random.Generator, low: int, high: int) -> Content:
    return [picture(rng), TextPart(text(rng, low, high))]


@dataclass(frozen=True)
class Workload:
    """A kind of request."""

    name: str
    documents: int
    query: Side
    query_tokens: tuple[int, int]
    document: Side
    document_tokens: tuple[int, int]

    def request(self, seed: int) -> RerankInput:
        """The request of a round."""
        rng = np.random.default_rng(seed)
        return RerankInput(
            self.query(rng, *self.query_tokens),
            [self.document(rng, *self.document_tokens) for _ in range(self.documents)],
        )


WORKLOADS = (
    Workload("50 texts", 50, _text_side, (5, 5), _text_side, (40, 250)),
    Workload("50 texts, image in query", 50, _mixed_side, (5, 5), _text_side, (40, 250)),
    Workload("50 images", 50, _text_side, (5, 5), _image_side, (0, 0)),
    Workload("50 image + text", 50, _text_side, (5, 5), _mixed_side, (10, 60)),
    Workload("50 short texts", 50, _text_side, (5, 5), _text_side, (5, 15)),
    Workload("8 long texts", 8, _text_side, (5, 5), _text_side, (900, 1200)),
    Workload("50 texts, long query", 50, _text_side, (400, 400), _text_side, (40, 250)),
    Workload("1 text", 1, _text_side, (5, 5), _text_side, (140, 140)),
    Workload("1 image, image in query", 1, _mixed_side, (5, 5), _image_side, (0, 0)),
)
