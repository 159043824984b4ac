"""Between the wire and the prompt path: messages to `RerankInput`, margins to a response.

A message is let go once it is converted: a request that waits holds its pictures' files as the prompt path takes them,
and what `Asked` has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.errors import (
    EmptyDocumentError,
    EmptyQueryError,
    ImageFormatError,
    InvalidRequestError,
    NoDocumentsError,
    TooManyDocumentsError,
)
from orin_rerank.prompt.content import ImagePart, Limits, RerankInput, TextPart
from orin_rerank.v1 import rerank_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from orin_rerank.prompt.content import Content
    from orin_rerank.prompt.encoded import Float32Array
    from orin_rerank.serving.job import Scored

__all__ = ["Asked", "sigmoid", "to_input", "to_response", "wire_item"]

_TRUNCATE: Final = {
    pb.TRUNCATION_UNSPECIFIED: True,
    pb.TRUNCATION_TAIL: True,
    pb.TRUNCATION_NONE: False,
}

_CONTENT_ITEM: Final = re.compile(
    r"(?P<owner>query|documents\[(?P<document>\d+)\])\.content\[(?P<part>\d+)\](?P<rest>.*)"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a request its response goes by.

    Attributes:
        query_in_parts: Whether the query was given as parts, rather than as text and image.
        documents_in_parts: The same of each document.
        top_n: Only so many of the best are asked for; None is all.
        documents: What is to come back with the results; None where that was not asked for.
    """

    query_in_parts: bool
    documents_in_parts: tuple[bool, ...]
    top_n: int | None
    documents: Sequence[pb.Content] | None

    @classmethod
    def by(cls, request: pb.RerankRequest) -> Asked:
        """Takes it from a request."""
        return cls(
            bool(request.query.parts),
            tuple(bool(document.parts) for document in request.documents),
            request.top_n if request.HasField("top_n") else None,
            request.documents if request.return_documents else None,
        )


def to_input(request: pb.RerankRequest, *, max_documents: int) -> RerankInput:
    """Checks a request's shape and returns what the prompt path takes.

    Raises:
        InvalidRequestError: Names the offending field, such as `documents[3].parts[0]`. Contents (is this an image,
            does the text fit) are the prompt path's to judge.
    """
    query = _content(request.query, "query")
    if not query:
        raise EmptyQueryError("holds neither text nor image", item="query")
    if not request.documents:
        raise NoDocumentsError("the request has none", item="documents")
    if len(request.documents) > max_documents:
        raise TooManyDocumentsError(
            f"the request has {len(request.documents)}; at most {max_documents} are taken in one call", item="documents"
        )
    if request.truncation not in _TRUNCATE:
        raise InvalidRequestError(f"{request.truncation} is no value of Truncation", item="truncation")
    documents = []
    for index, message in enumerate(request.documents):
        document = _content(message, f"documents[{index}]")
        if not document:
            raise EmptyDocumentError("holds neither text nor image", item=f"documents[{index}]")
        documents.append(document)
    _positive(request, "top_n")
    return RerankInput(
        query=query,
        documents=documents,
        instruction=request.instruction or None,
        limits=Limits(
            query_tokens=_positive(request, "max_query_tokens"),
            document_tokens=_positive(request, "max_document_tokens"),
            truncate=_TRUNCATE[request.truncation],
        ),
    )


def _positive(request: pb.RerankRequest, name: str) -> int | None:
    if not request.HasField(name):  # type: ignore[arg-type]  # the stub wants a literal
        return None
    value: int = getattr(request, name)
    if value == 0:
        raise InvalidRequestError("must be at least 1; leave it unset for no limit", item=name)
    return value


def _content(message: pb.Content, item: str) -> tuple[TextPart | ImagePart, ...]:
    """One query or document; empty where it holds no text and no image."""
    if message.parts:
        if message.text or message.image:
            raise InvalidRequestError("gives both `parts` and `text` or `image`; give one form", item=item)
        parts = tuple(_part(part, f"{item}.parts[{index}]") for index, part in enumerate(message.parts))
        return parts if any(isinstance(part, ImagePart) or part.text for part in parts) else ()
    image = (ImagePart(message.image),) if message.image else ()
    text = (TextPart(message.text),) if message.text else ()
    return image + text


def _part(message: pb.Part, item: str) -> TextPart | ImagePart:
    form = message.WhichOneof("part")
    if form == "text":
        return TextPart(message.text)
    if form is None:
        raise InvalidRequestError("holds neither text nor image", item=item)
    if not message.image:
        raise ImageFormatError("holds no bytes", item=f"{item}.image")
    return ImagePart(message.image)


def wire_item(item: str | None, asked: Asked, converted: RerankInput) -> str | None:
    """Names an offending part as the caller wrote it.

    The prompt path counts parts (`documents[3].content[0]`); the caller sent `documents[3].image`, or
    `documents[3].parts[0]`.
    """
    match = _CONTENT_ITEM.fullmatch(item) if item else None
    if match is None:
        return item
    part = int(match["part"])
    content: Content = converted.query
    in_parts = asked.query_in_parts
    if match["document"] is not None:
        index = int(match["document"])
        content, in_parts = converted.documents[index], asked.documents_in_parts[index]
    alone = "image" if isinstance(content[part], ImagePart) else "text"
    return f"{match['owner']}.{f'parts[{part}]' if in_parts else alone}{match['rest']}"


def sigmoid(margins: Float32Array) -> npt.NDArray[np.float64]:
    """1 / (1 + exp(-margin)) in float64, without overflow at either end."""
    wide = margins.astype(np.float64)
    small = np.exp(-np.abs(wide))
    scores: npt.NDArray[np.float64] = np.where(wide >= 0, 1.0, small) / (1.0 + small)
    return scores


def to_response(asked: Asked, scored: Scored, *, model: str, precision: str) -> pb.RerankResponse:
    """Builds the response: best first by margin, equal margins in the request's order."""
    order = np.argsort(-scored.margins, kind="stable")
    if asked.top_n is not None:
        order = order[: asked.top_n]
    scores = sigmoid(scored.margins)
    results = [
        pb.RerankResult(
            index=index,
            score=float(scores[index]),
            margin=float(scored.margins[index]),
            tokens=scored.tokens[index],
            truncated_tokens=scored.truncated_tokens[index],
            truncated=scored.truncated_tokens[index] > 0,
            document=None if asked.documents is None else asked.documents[index],
        )
        for index in order.tolist()
    ]
    return pb.RerankResponse(
        results=results,
        model=model,
        precision=precision,
        usage=pb.Usage(
            query_tokens=scored.query_tokens,
            query_truncated_tokens=scored.query_truncated_tokens,
            document_tokens=sum(scored.tokens),
            images=scored.images,
            images_cached=scored.images_cached,
        ),
    )
