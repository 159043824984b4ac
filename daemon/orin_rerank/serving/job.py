"""One admitted request on its way through the scheduler."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    import asyncio

    from orin_rerank.engines.runner import PackResult
    from orin_rerank.prompt.encoded import EncodedSegment, Float32Array

__all__ = ["Job", "Scored"]


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """What a request came to.

    Attributes:
        margins: float32 `[N]`, in the request's order.
        tokens: Of each document's content, read.
        truncated_tokens: Of each document's content, cut.
        query_tokens: Of the query's content, read.
        query_truncated_tokens: Of the query's content, cut.
        images: In the query and the documents.
        images_cached: Those that the vision encoder did not have to run for.
    """

    margins: Float32Array
    tokens: list[int]
    truncated_tokens: list[int]
    query_tokens: int
    query_truncated_tokens: int
    images: int
    images_cached: int


@dataclass(slots=True, eq=False)
class Job:
    """One admitted request. Everything but `outcome` is guarded by the scheduler's lock.

    Attributes:
        documents: How many it has in all.
        message_bytes: Size of its message.
        deadline: On the scheduler's clock; None is no deadline.
        outcome: Resolved exactly once, on the event loop.
        prefix: Its shared prefix; None until the first documents are encoded.
        waiting: Encoded documents that no pack has taken yet, with their places in the request.
        waiting_tokens: Their length, the prefix not counted.
        finish_tag: The virtual time at which it would end under equal sharing (see `fair_queue`).
        scored: How many documents have their margin.
        decoding_bytes: Most memory of the pictures that are being decoded for it now.
        document_picture_bytes: Memory of decoded pictures of documents that have no margin yet.
    """

    documents: int
    message_bytes: int
    deadline: float | None
    outcome: asyncio.Future[Scored]
    prefix: EncodedSegment | None = None
    waiting: deque[tuple[int, EncodedSegment]] = field(default_factory=deque)
    waiting_tokens: int = 0
    finish_tag: float = 0.0
    scored: int = 0
    decoding_bytes: int = 0
    document_picture_bytes: int = 0
    _picture_bytes: list[int] = field(default_factory=list)
    _tokens: list[int] = field(default_factory=list)
    _truncated_tokens: list[int] = field(default_factory=list)
    _margins: Float32Array = field(init=False)
    _images: int = 0
    _digests: set[bytes] = field(default_factory=set)
    _encoded_digests: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._margins = np.full(self.documents, np.nan, dtype=np.float32)

    @property
    def encoded(self) -> int:
        """How many documents have been encoded so far."""
        return len(self._tokens)

    @property
    def prefix_picture_bytes(self) -> int:
        """Memory of the query's decoded pictures."""
        return 0 if self.prefix is None else self.prefix.picture_bytes

    def add(self, prefix: EncodedSegment, documents: tuple[EncodedSegment, ...]) -> None:
        """Takes the next encoded documents, in the request's order."""
        if self.prefix is None:
            self.prefix = prefix
            self._note_images(prefix)
        if self.encoded + len(documents) > self.documents:
            raise InternalError("more documents were encoded than the request has")
        for document in documents:
            self.waiting.append((self.encoded, document))
            self.waiting_tokens += len(document)
            self._picture_bytes.append(document.picture_bytes)
            self.document_picture_bytes += document.picture_bytes
            self._tokens.append(document.content_tokens)
            self._truncated_tokens.append(document.truncated_tokens)
            self._note_images(document)

    def take(self) -> tuple[int, EncodedSegment]:
        """Removes and returns the next waiting document with its place in the request."""
        index, document = self.waiting.popleft()
        self.waiting_tokens -= len(document)
        return index, document

    def drop_waiting(self) -> None:
        """Forgets the documents that no pack has taken."""
        self.document_picture_bytes -= sum(self._picture_bytes[index] for index, _ in self.waiting)
        self.waiting.clear()
        self.waiting_tokens = 0

    def score(self, index: int, margin: float) -> None:
        """Records the margin of one document."""
        self._margins[index] = margin
        self.scored += 1
        self.document_picture_bytes -= self._picture_bytes[index]

    def note_pack(self, result: PackResult) -> None:
        """Notes for which of its images the vision encoder ran."""
        if self._digests:
            self._encoded_digests |= self._digests & result.encoded_images

    @property
    def complete(self) -> bool:
        """Whether every document has its margin."""
        return self.scored == self.documents

    def resolve(self, error: Exception | None) -> None:
        """Resolves the outcome, on the event loop, with an error or with what the job has come to."""
        if self.outcome.done():
            return
        if error is None:
            try:
                self.outcome.set_result(self._result())
            except InternalError as internal:
                error = internal
        if error is not None:
            self.outcome.set_exception(error)

    def _result(self) -> Scored:
        if not self.complete or self.prefix is None:
            raise InternalError("a request was finished before all of its documents were scored")
        return Scored(
            margins=self._margins,
            tokens=self._tokens,
            truncated_tokens=self._truncated_tokens,
            query_tokens=self.prefix.content_tokens,
            query_truncated_tokens=self.prefix.truncated_tokens,
            images=self._images,
            images_cached=self._images - len(self._encoded_digests),
        )

    def _note_images(self, segment: EncodedSegment) -> None:
        self._images += len(segment.images)
        self._digests.update(image.digest for image in segment.images)
