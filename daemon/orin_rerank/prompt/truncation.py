"""How much of each content is kept when not all of it fits. Counts only, no text.

The reference (`truncate_tokens_optimized` of the VL family, the tokenizer's truncation of the text family) keeps the
suffix and all special tokens, images among them, and the other tokens of a prompt first come: what is lost is the
document's tail. The same is done here whenever the query fits. Deliberate deviations:

* **A document always keeps a share.** The reference lets a query that fills the window push all of the document out,
  `<Document>:` included, and still gives a score. Here the query's tail is cut instead, so far that each document
  keeps a quarter of the text that fits, or all of its text if that is less. A quarter, because a query is what names
  the topic and documents are what is judged: at the published 10,240 tokens it is 2,500, more than most passages.
  All documents see the same query, so it is cut for the most demanding one.
* **The caller's own limits** for query and documents come first.
* **What cannot be cut is refused**: images that do not fit by themselves. The reference goes over its limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.errors import TooLongError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.prompt.content import Limits

__all__ = ["ContentSize", "KeptText", "plan_truncation"]

_DOCUMENT_SHARE = 4
"""A document keeps at least one in so many of the text tokens that fit."""


@dataclass(frozen=True, slots=True)
class ContentSize:
    """What a content takes.

    Attributes:
        text: Text tokens beyond those of the template alone, of which the last ones can be cut. Where text and template
            merge into fewer tokens than the template had alone, this can be 0 or less.
        images: Image tokens with their start and end, which cannot.
    """

    text: int
    images: int


@dataclass(frozen=True, slots=True)
class KeptText:
    """How many text tokens are kept of the query and of each document."""

    query: int
    documents: tuple[int, ...]


def plan_truncation(query: ContentSize, documents: Sequence[ContentSize], room: int, limits: Limits) -> KeptText:
    """Decides what is kept.

    Args:
        query: What the whole query would take.
        documents: The same for every document.
        room: Tokens that the template leaves for a query and a document together.
        limits: The caller's own.

    Raises:
        TooLongError: If something does not fit and cannot be cut, or may not; names `query` or `documents[i]`.
    """
    query_text = _within_limit(query, limits.query_tokens, limits, "query")
    document_texts = [
        _within_limit(document, limits.document_tokens, limits, f"documents[{i}]")
        for i, document in enumerate(documents)
    ]
    available = room - query.images
    if available < 0:
        raise TooLongError(f"its images take {query.images} tokens; {max(room, 0)} fit", item="query")
    reserved = 0
    for i, (document, text) in enumerate(zip(documents, document_texts, strict=True)):
        left = available - document.images
        if left < 0:
            raise TooLongError(f"its images take {document.images} tokens; {available} fit", item=f"documents[{i}]")
        if not limits.truncate and query_text + text > left:
            # The first one that does not fit is named, and the query if no document could.
            raise TooLongError(
                f"query and document take {query_text + query.images + document.images + text} tokens; {room} fit",
                item="query" if query_text >= left else f"documents[{i}]",
            )
        share = min(text, left, max(left // _DOCUMENT_SHARE, 1))
        _require_some(document, share, f"documents[{i}]")
        reserved = max(reserved, document.images + share)
    kept_query = min(query_text, available - reserved)
    _require_some(query, kept_query, "query")
    kept_documents = []
    for i, (document, text) in enumerate(zip(documents, document_texts, strict=True)):
        kept = min(text, available - kept_query - document.images)
        _require_some(document, kept, f"documents[{i}]")
        kept_documents.append(kept)
    return KeptText(kept_query, tuple(kept_documents))


def _within_limit(content: ContentSize, limit: int | None, limits: Limits, item: str) -> int:
    """Text tokens that the caller's limit leaves."""
    if limit is None or content.text + content.images <= limit:
        return content.text
    if content.images > limit:
        raise TooLongError(f"its images take {content.images} tokens; the request allows {limit}", item=item)
    if not limits.truncate:
        raise TooLongError(f"takes {content.text + content.images} tokens; the request allows {limit}", item=item)
    kept = limit - content.images
    _require_some(content, kept, item)
    return kept


def _require_some(content: ContentSize, kept: int, item: str) -> None:
    """Refuses a plan that leaves nothing of a content that is only text."""
    if kept < min(content.text, 0) or (kept <= 0 < content.text and content.images == 0):
        raise TooLongError("nothing of its text would fit", item=item)
