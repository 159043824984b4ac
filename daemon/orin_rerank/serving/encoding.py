"""From a request to encoded documents, a piece at a time.

A large request is encoded in pieces, so that the engine starts after the first one and goes on while the rest is
tokenised and decoded, so that small requests do not wait behind it for an encoder thread, and so that a thousand
decoded images are never in memory at once.

The prompt path cuts a very long query by what the most demanding document needs, for which it must see all documents.
Requests where that could happen are encoded as a whole; with a query below a quarter of the window it cannot
(`prompt.truncation` leaves a document a quarter of the text that fits).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.errors import InternalError, OrinRerankError
from orin_rerank.prompt.content import ImagePart
from orin_rerank.prompt.encoded import EncodedRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orin_rerank.prompt.content import Content, RerankInput
    from orin_rerank.prompt.encoded import EncodedImage, EncodedSegment
    from orin_rerank.prompt.profile import PromptProfile
    from orin_rerank.serving.ports import Encoder

__all__ = ["PiecewiseEncoder"]

_DOCUMENTS: Final = 32
_COST: Final = 2**18
_IMAGE_COST: Final = 2**15
"""Bytes of text that take about as long to tokenise as an image to decode and resize."""

_SAFE_SHARE: Final = 4
"""Query, and images of a document, below one in so many tokens of the window never make the prompt path cut a query."""

_DOCUMENT_ITEM: Final = re.compile(r"documents\[(\d+)\](.*)", re.DOTALL)


class PiecewiseEncoder:
    """Encodes one request; `next_piece` is called from one thread at a time, any of the encoders'."""

    def __init__(self, encoder: Encoder, profile: PromptProfile, request: RerankInput) -> None:
        self._encoder = encoder
        self._window = profile.max_tokens
        self._request = request
        self._prefix: EncodedSegment | None = None
        self._query_images: dict[bytes, EncodedImage] = {}
        whole = slice(0, len(request.documents))
        self._places = list(_pieces(request.documents)) if _divisible(request, profile) else [whole]

    @property
    def done(self) -> bool:
        """Whether every document is encoded."""
        return not self._places

    def next_piece(self) -> EncodedRequest:
        """Encodes the next documents; all pieces have one and the same prefix object.

        Raises:
            InvalidRequestError: Names the offending document by its place in the whole request.
        """
        encoded = self._encode(self._places.pop(0))
        if self._prefix is None:
            if self._places and len(encoded.prefix) * _SAFE_SHARE > self._window:
                self._places.clear()
                encoded = self._encode(slice(0, len(self._request.documents)))
            self._prefix = encoded.prefix
        elif not np.array_equal(self._prefix.ids, encoded.prefix.ids):
            raise InternalError("two pieces of one request were encoded behind different prefixes")
        return EncodedRequest(self._prefix, encoded.documents)

    def _encode(self, place: slice) -> EncodedRequest:
        try:
            piece = replace(self._request, documents=self._request.documents[place])
            return self._encoder.encode(piece, self._query_images)
        except OrinRerankError as error:
            match = _DOCUMENT_ITEM.fullmatch(error.item or "")
            if match is not None:
                error.item = f"documents[{int(match[1]) + place.start}]{match[2]}"
            raise


def _divisible(request: RerankInput, profile: PromptProfile) -> bool:
    if profile.image is None:
        return True
    image_tokens = profile.image.max_pixels // (profile.image.patch_size * profile.image.merge_size) ** 2 + 2
    most = max(sum(isinstance(part, ImagePart) for part in document) for document in request.documents)
    return most * image_tokens * _SAFE_SHARE <= profile.max_tokens


def _pieces(documents: Sequence[Content]) -> Iterator[slice]:
    """The places of the documents of each piece: at most 32 documents, fewer of images and long texts."""
    start, cost = 0, 0
    for index, document in enumerate(documents):
        own = sum(_IMAGE_COST if isinstance(part, ImagePart) else len(part.text) for part in document)
        if index > start and (index - start == _DOCUMENTS or cost + own > _COST):
            yield slice(start, index)
            start, cost = index, 0
        cost += own
    yield slice(start, len(documents))
