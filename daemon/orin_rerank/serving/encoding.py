"""From a request to encoded documents, a piece at a time.

A large request is encoded in pieces, so that the engine starts after the first one and goes on while the rest is
tokenised and decoded, so that small requests do not wait behind it for an encoder thread, and so that a thousand
decoded images are never in memory at once.

The prompt path cuts a very long query by what the most demanding document needs, for which all documents must have been
seen. Where that could happen the pieces are encoded twice: first only to learn how much of the query each one leaves,
then behind the least of that. It is rare (query and pictures of a document have to fill most of the window), and the
result is that of the request as a whole.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.errors import InternalError, OrinRerankError
from orin_rerank.prompt.content import ImagePart
from orin_rerank.prompt.encoded import EncodedRequest
from orin_rerank.prompt.resize import most_patches, most_picture_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orin_rerank.prompt.content import Content, RerankInput
    from orin_rerank.prompt.encoded import EncodedImage, EncodedSegment
    from orin_rerank.prompt.profile import ImageProfile, PromptProfile
    from orin_rerank.serving.ports import Encoder

__all__ = ["PiecewiseEncoder"]

_DOCUMENTS: Final = 32
_COST: Final = 2**18
_IMAGE_COST: Final = 120_000
"""An image counts as so many characters, which take as long to tokenise as it takes to decode a large one. Two, with
some text, are a piece, of 11 MB."""

_LETTERS: Final = 4
"""In a token, about."""

_DOCUMENT_FRAME: Final = 64
"""More tokens than any template has around a document."""

_DOCUMENT_ITEM: Final = re.compile(r"documents\[(\d+)\](.*)", re.DOTALL)


class PiecewiseEncoder:
    """Encodes one request; `next_piece` is called from one thread at a time, any of the encoders'.

    Args:
        encoder: The model's prompt path.
        profile: The model's.
        request: What is encoded.
    """

    def __init__(self, encoder: Encoder, profile: PromptProfile, request: RerankInput) -> None:
        self._encoder = encoder
        self._profile = profile
        self._request = request
        self._places = list(_pieces(request.documents))
        self._rough_tokens: int | None = None
        self._next = 0
        self._prefix: EncodedSegment | None = None
        self._query_images: dict[bytes, EncodedImage] = {}
        self._kept: list[int] = []  # tokens of the query that each piece leaves, while that is being learnt
        self._settled = False

    @property
    def done(self) -> bool:
        """Whether every document is encoded."""
        return self._next == len(self._places)

    @property
    def picture_bytes(self) -> int:
        """Most memory that the pictures of the next piece take, those of the query with the first."""
        if self.done:
            return 0
        contents: list[Content] = list(self._request.documents[self._places[self._next]])
        if self._prefix is None:
            contents.append(self._request.query)
        return sum(self._most_bytes(content) for content in contents)

    @property
    def rough_tokens(self) -> int:
        """About what all documents will take: four letters a token, and pictures the most that they can."""
        if self._rough_tokens is None:
            image = 0 if self._profile.image is None else _most_tokens(self._profile.image)
            self._rough_tokens = sum(
                image if isinstance(part, ImagePart) else len(part.text) // _LETTERS
                for document in self._request.documents
                for part in document
            )
        return self._rough_tokens

    def next_piece(self) -> EncodedRequest | None:
        """Encodes the next documents; all pieces have one and the same prefix object.

        Returns:
            The piece; None where it was encoded only to learn how much of the query is kept.

        Raises:
            InvalidRequestError: Names the offending document by its place in the whole request.
        """
        encoded = self._encode(self._places[self._next])
        self._next += 1
        if self._kept or (self._prefix is None and self._may_be_cut_later(encoded.prefix)):
            self._learn(encoded.prefix)
            return None
        if self._prefix is None:
            self._prefix = encoded.prefix
        elif not np.array_equal(self._prefix.ids, encoded.prefix.ids):
            raise InternalError("two pieces of one request were encoded behind different prefixes")
        return EncodedRequest(self._prefix, encoded.documents)

    def _most_bytes(self, content: Content) -> int:
        """Of a content's pictures. The prompt path decodes no more than the window holds, and one that is too much."""
        profile = self._profile.image
        if profile is None:
            return 0
        one = most_picture_bytes(profile)
        token = one // _most_tokens(profile)
        return min(_images(content) * one, self._profile.max_tokens * token + one)

    def _may_be_cut_later(self, prefix: EncodedSegment) -> bool:
        """Whether a later document may leave the query less than the first ones have.

        A document never takes more than its pictures and a quarter of what is left (`prompt.truncation`).
        """
        if self.done or self._settled:
            return False
        query = prefix.content_tokens + prefix.truncated_tokens
        if self._request.limits.query_tokens is not None:
            query = min(query, self._request.limits.query_tokens)
        whole = len(prefix) - prefix.content_tokens + query
        left = self._profile.max_tokens - whole - _DOCUMENT_FRAME - self._most_image_tokens()
        return query > 3 * left

    def _most_image_tokens(self) -> int:
        """Of the documents' pictures, of those of one document."""
        profile = self._profile.image
        if profile is None:
            return 0
        return max(_images(document) for document in self._request.documents) * (_most_tokens(profile) + 2)

    def _learn(self, prefix: EncodedSegment) -> None:
        """Notes how much of the query a piece leaves; after the last one all begins again, with the least of that.

        Nothing else is kept of the piece, decoded pictures of the query included: nobody accounts for those.
        """
        self._kept.append(prefix.content_tokens)
        self._query_images.clear()
        if self.done:
            limits = replace(self._request.limits, query_tokens=min(self._kept))
            self._request = replace(self._request, limits=limits)
            self._kept.clear()
            self._settled = True
            self._next = 0

    def _encode(self, place: slice) -> EncodedRequest:
        try:
            piece = replace(self._request, documents=self._request.documents[place])
            return self._encoder.encode(piece, self._query_images)
        except OrinRerankError as error:
            match = _DOCUMENT_ITEM.fullmatch(error.item or "")
            if match is not None:
                error.item = f"documents[{int(match[1]) + place.start}]{match[2]}"
            raise


def _images(content: Content) -> int:
    return sum(isinstance(part, ImagePart) for part in content)


def _most_tokens(profile: ImageProfile) -> int:
    """That one image takes."""
    return most_patches(profile) // profile.merge_size**2


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
