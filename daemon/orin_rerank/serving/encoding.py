"""From a request to encoded documents, a piece at a time.

A large request is encoded in pieces, so that the engine starts after the first one and goes on while the rest is
tokenised and decoded, so that small requests do not wait behind it for an encoder thread, and so that a thousand
decoded images are never in memory at once.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import OrinRerankError
from orin_rerank.prompt.content import ImagePart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.prompt.content import Content, RerankInput
    from orin_rerank.prompt.encoded import EncodedRequest
    from orin_rerank.serving.ports import Encoder

__all__ = ["encode_piece", "pieces"]

_DOCUMENTS: Final = 32
_COST: Final = 2**18
_IMAGE_COST: Final = 2**15
"""Bytes of text that take about as long to tokenise as an image to decode and resize."""

_DOCUMENT_ITEM: Final = re.compile(r"documents\[(\d+)\](.*)", re.DOTALL)


def pieces(request: RerankInput) -> Iterator[slice]:
    """Yields the places of the documents of each piece: at most 32 documents, fewer of images and long texts."""
    start, cost = 0, 0
    for index, document in enumerate(request.documents):
        own = _cost(document)
        if index > start and (index - start == _DOCUMENTS or cost + own > _COST):
            yield slice(start, index)
            start, cost = index, 0
        cost += own
    yield slice(start, len(request.documents))


def encode_piece(encoder: Encoder, request: RerankInput, place: slice) -> EncodedRequest:
    """Encodes some documents of a request; runs on an encoder thread.

    Raises:
        InvalidRequestError: Names the offending document by its place in the whole request.
    """
    piece = request.documents[place]
    try:
        return encoder.encode(request if len(piece) == len(request.documents) else replace(request, documents=piece))
    except OrinRerankError as error:
        match = _DOCUMENT_ITEM.fullmatch(error.item or "")
        if match is not None:
            error.item = f"documents[{int(match[1]) + place.start}]{match[2]}"
        raise


def _cost(document: Content) -> int:
    return sum(_IMAGE_COST if isinstance(part, ImagePart) else len(part.text) for part in document)
