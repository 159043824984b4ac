"""Random segments as the prompt path would yield them, without text or pixels."""

from __future__ import annotations

import hashlib
import random

import numpy as np
from hypothesis import strategies as st

from orin_rerank.packing.pack import Pack, PackGroup
from orin_rerank.prompt.encoded import EncodedImage, EncodedSegment

MAX_POSITION = 200


def image(number: int, tokens: int) -> EncodedImage:
    """An image that is told apart by its number; nothing in packing looks at its pixels."""
    digest = hashlib.sha256(f"{number}/{tokens}".encode()).digest()
    return EncodedImage(digest, np.zeros((0, 0, 3), np.uint8), (2, 2 * tokens), tokens)


def segment(rng: random.Random, images: list[EncodedImage], start: int = 0) -> EncodedSegment:
    """Runs of text between the images, at least one token of text at the end."""
    visual: list[int] = []
    number = 0
    for picture in images:
        visual += [-1] * rng.randint(0, 3)
        visual += range(number, number + picture.tokens)
        number += picture.tokens
    visual += [-1] * rng.randint(1, 6)
    tokens = len(visual)
    return EncodedSegment(
        ids=np.array([rng.randrange(1000) for _ in visual], np.int32),
        positions=np.array([[rng.randint(start, MAX_POSITION) for _ in visual] for _ in range(3)], np.int32),
        visual_index=np.array(visual, np.int32),
        images=tuple(images),
        content_tokens=tokens,
        truncated_tokens=0,
    )


def text_segment(tokens: int, first_id: int = 0) -> EncodedSegment:
    ids = np.arange(first_id, first_id + tokens, dtype=np.int32)
    return EncodedSegment(
        ids, np.tile(np.arange(tokens, dtype=np.int32), (3, 1)), np.full(tokens, -1, np.int32), (), tokens, 0
    )


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    """Packs of one to four prefixes; images are drawn from a few, so some stand in several places."""
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    gallery = [image(n, rng.randint(1, 5)) for n in range(4)]

    def some() -> EncodedSegment:
        return segment(rng, [rng.choice(gallery) for _ in range(draw(st.integers(0, 2)))])

    groups = [
        PackGroup(some(), tuple(some() for _ in range(draw(st.integers(1, 3))))) for _ in range(draw(st.integers(1, 4)))
    ]
    documents = sum(len(group.documents) for group in groups)
    return Pack(tuple(groups), tuple(range(documents)), sum(group.tokens for group in groups))
