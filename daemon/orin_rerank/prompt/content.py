"""What a query or a document is made of: text and images, in the caller's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Content", "ImagePart", "Limits", "RerankInput", "TextPart"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text, of any characters but lone surrogates. It stays text, even where it spells a special token."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An encoded image file (JPEG, PNG, WebP, BMP or GIF) as bytes."""

    data: bytes = field(repr=False)


Content: TypeAlias = Sequence[TextPart | ImagePart]
"""One query or one document. Parts follow each other in the prompt in this order, with nothing between them: texts that
are to be apart must bring the space or newline themselves. (The reference always puts images first.)"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a request may be used.

    Attributes:
        query_tokens: Most tokens that the query's content may take, images with their start and end included; None is
            the model's own limit.
        document_tokens: The same for each document.
        truncate: Whether content over a limit is cut (its tail first) or refused with `TooLongError`.
    """

    query_tokens: int | None = None
    document_tokens: int | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class RerankInput:
    """One request as the prompt path takes it; an `instruction` that is None or blank means the model's default."""

    query: Content
    documents: Sequence[Content]
    instruction: str | None = None
    limits: Limits = field(default_factory=Limits)
