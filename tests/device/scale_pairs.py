"""Pairs of text, pictures and both, as long as real ones: the judged set's texts and pictures, joined and enlarged."""

from __future__ import annotations

import io
import itertools
import random
from typing import TYPE_CHECKING

from PIL import Image

from orin_rerank.evaluation.dataset import read_dataset
from orin_rerank.lifecycle.export_profile import image_profile
from orin_rerank.prompt.content import Content, ImagePart, RerankInput, TextPart
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.profile import PromptFamily, PromptProfile
from orin_rerank.prompt.templates import template_for

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.prompt.encoded import EncodedRequest
    from orin_rerank.prompt.tokenizer import PromptTokenizer

__all__ = ["prompt_profile", "scale_requests"]

_KINDS = ("text", "image", "image text")


def prompt_profile(architecture: Architecture) -> PromptProfile:
    """What the published model of an architecture has."""
    vision = architecture.vision
    if vision is None:
        family = PromptFamily.TEXT
        return PromptProfile(family, 8192, template_for(family).default_instruction, None)
    image = image_profile(vision, 4096, 1_843_200)
    family = PromptFamily.VL
    return PromptProfile(family, 10240, template_for(family).default_instruction, image)


def scale_requests(
    profile: PromptProfile,
    tokenizer: PromptTokenizer,
    dataset: Path,
    *,
    requests: int,
    documents: int,
    sides: tuple[int, int],
) -> list[EncodedRequest]:
    """Requests whose documents have 40 to 250 tokens of text, a picture, or both; always the same ones.

    Args:
        profile: The model's.
        tokenizer: Any tokenizer that has the prompts' tokens.
        dataset: The judged set.
        requests: How many.
        documents: Of each.
        sides: Shortest and longest side of a picture, in pixels.
    """
    rng = random.Random(17)
    encoder = PromptEncoder(profile, tokenizer)
    contents = [
        content
        for query in read_dataset(dataset)
        for content in (query.query, *(document.content for document in query.documents))
    ]
    parts = list(itertools.chain.from_iterable(contents))
    rng.shuffle(parts)
    texts = itertools.cycle([part.text for part in parts if isinstance(part, TextPart)])
    pictures = itertools.cycle([part.data for part in parts if isinstance(part, ImagePart)])

    def text(tokens: int) -> TextPart:
        joined = next(texts)
        while len(joined) < 3 * tokens:
            joined += ". " + next(texts)
        return TextPart(joined)

    def picture() -> ImagePart:
        size = (rng.randint(*sides), rng.randint(*sides))
        enlarged = Image.open(io.BytesIO(next(pictures))).convert("RGB").resize(size, Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        enlarged.save(buffer, "BMP")
        return ImagePart(buffer.getvalue())

    def content(kind: str, tokens: int) -> Content:
        return [text(tokens) if part == "text" else picture() for part in kind.split()]

    kinds = _KINDS if profile.image is not None else ("text",)
    return [
        encoder.encode(
            RerankInput(
                content(kinds[i % len(kinds)], rng.randint(8, 40)),
                [content(kinds[j % len(kinds)], rng.randint(40, 250)) for j in range(documents)],
            )
        )
        for i in range(requests)
    ]
