"""From a request to integers and pixels: the whole prompt path in order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.errors import (
    EmptyDocumentError,
    EmptyQueryError,
    ImageError,
    InvalidRequestError,
    NoDocumentsError,
    TooLongError,
)
from orin_rerank.prompt.content import Content, RerankInput, TextPart
from orin_rerank.prompt.encoded import EncodedImage, EncodedRequest, EncodedSegment
from orin_rerank.prompt.images import ImageSettings, encode_image
from orin_rerank.prompt.segments import ImageTokens, SegmentBuilder
from orin_rerank.prompt.templates import IMAGE_PAD, VISION_END, VISION_START, template_for
from orin_rerank.prompt.tokenizer import BoundedIds, PromptTokenizer, require_unicode
from orin_rerank.prompt.truncation import ContentSize, plan_truncation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.prompt.profile import PromptProfile

__all__ = ["PromptEncoder"]


@dataclass(frozen=True, slots=True)
class _Material:
    """A content with its texts joined and its images decoded: text, image, text, ..., image, text."""

    texts: tuple[str, ...]
    images: tuple[EncodedImage, ...]


@dataclass(frozen=True, slots=True)
class _Tokenized:
    """A content with the template around it, tokenised as one.

    Attributes:
        texts: Heads of the ids, one more than images; the first starts with the template's lead, the last ends with
            the template's tail.
        images: Between them.
        lead: Tokens that the lead takes alone; what the content adds to them counts as the content's.
        tail: Ids of the tail alone.
    """

    texts: tuple[BoundedIds, ...]
    images: tuple[EncodedImage, ...]
    lead: int
    tail: tuple[int, ...]

    @property
    def size(self) -> ContentSize:
        """What the content takes beyond lead and tail."""
        return ContentSize(
            text=sum(text.total for text in self.texts) - self.lead - len(self.tail),
            images=sum(image.tokens + 2 for image in self.images),
        )

    def kept_ids(self, kept: int) -> list[list[int]]:
        """The ids of each text when `kept` text tokens of the content are kept, first come."""
        if kept >= self.size.text:
            return [text.ids for text in self.texts]
        ids = []
        left = self.lead + kept
        for i, text in enumerate(self.texts):
            last = i == len(self.texts) - 1
            # Of the last text only what is content competes; the tail follows in any case.
            taken = max(0, min(left, text.total - len(self.tail) if last else text.total))
            ids.append([*text.ids[:taken], *self.tail] if last else text.ids[:taken])
            left -= taken
        return ids


class PromptEncoder:
    """Encodes requests for one model. Holds no state between requests; safe to use from several threads.

    Args:
        profile: The model's.
        tokenizer: The model's.
        image_settings: What is decoded.

    Raises:
        BundleError: If the tokenizer lacks a token that the family's template needs.
    """

    def __init__(
        self, profile: PromptProfile, tokenizer: PromptTokenizer, image_settings: ImageSettings | None = None
    ) -> None:
        self._profile = profile
        self._tokenizer = tokenizer
        self._image_settings = image_settings or ImageSettings()
        self._template = template_for(profile.family)
        self._system = tokenizer.encode_pieces(self._template.system)
        self._suffix = tokenizer.encode_pieces(self._template.suffix)
        self._query_tail = tuple(tokenizer.encode(self._template.after_query))
        self._document_lead = len(tokenizer.encode(_standing_alone(self._template.before_document)))
        self._image_tokens: ImageTokens | None = None
        if profile.image is not None:
            self._image_tokens = (
                tokenizer.special_id(VISION_START),
                tokenizer.special_id(IMAGE_PAD),
                tokenizer.special_id(VISION_END),
            )

    @property
    def longest_pair(self) -> int:
        """Most tokens of a prefix and one of its documents together: what an engine must be able to hold."""
        return self._profile.max_tokens + (len(self._suffix) if self._template.suffix_is_extra else 0)

    def encode(self, request: RerankInput, query_images: dict[bytes, EncodedImage] | None = None) -> EncodedRequest:
        """Encodes a request: its shared prefix once, and every document.

        Prefix and document put together are the ids that the reference's tokenizer gives for the whole prompt (but
        for special tokens written out in text, which stay text here). An instruction that is None or blank means the
        default; content of white space alone counts as empty.

        Args:
            request: What to encode.
            query_images: Images of the query that an earlier call has decoded; those of this one are put there. For a
                caller who encodes a request's documents a piece at a time.

        Raises:
            InvalidRequestError: Or a class below it, naming `query`, `instruction`, `documents[i]` or, where one part
                is to blame, `query.content[j]` or `documents[i].content[j]`.
        """
        if not request.documents:
            raise NoDocumentsError("a request needs at least one document", item="documents")
        query_images = {} if query_images is None else query_images
        query = self._gather(request.query, "query", EmptyQueryError, query_images)
        decoded = dict(query_images)
        documents = [
            self._gather(content, f"documents[{i}]", EmptyDocumentError, decoded)
            for i, content in enumerate(request.documents)
        ]
        lead_text = self._lead_text(request.instruction)
        tokenized_query = self._tokenize_query(query, lead_text, request.limits.query_tokens)
        tokenized_documents = self._tokenize_documents(documents, request.limits.document_tokens)
        room = self._room(tokenized_query.lead)
        kept = plan_truncation(
            tokenized_query.size, [document.size for document in tokenized_documents], room, request.limits
        )
        prefix, end = self._segment(self._system, tokenized_query, kept.query, [], 0)
        segments = tuple(
            self._segment([], document, text, self._suffix, end)[0]
            for document, text in zip(tokenized_documents, kept.documents, strict=True)
        )
        return EncodedRequest(prefix=prefix, documents=segments)

    def _gather(
        self,
        content: Content,
        item: str,
        empty: type[EmptyQueryError | EmptyDocumentError],
        decoded: dict[bytes, EncodedImage],
    ) -> _Material:
        """Joins texts that follow each other and decodes images, each distinct file once.

        No more are decoded than could fit: small files can become large images, and a message holds thousands.
        """
        texts: list[list[str]] = [[]]
        images: list[EncodedImage] = []
        tokens = 0
        for i, part in enumerate(content):
            part_item = f"{item}.content[{i}]"
            if isinstance(part, TextPart):
                require_unicode(part.text, part_item)
                texts[-1].append(part.text)
            else:
                image = self._image(part.data, part_item, decoded)
                tokens += image.tokens
                if tokens > self._profile.max_tokens:
                    raise TooLongError(
                        f"its images take over {tokens} tokens; query and document have {self._profile.max_tokens}",
                        item=item,
                    )
                images.append(image)
                texts.append([])
        if not images and not any(text.strip() for text in texts[0]):
            raise empty("holds neither text nor image", item=item)
        return _Material(tuple("".join(text) for text in texts), tuple(images))

    def _image(self, data: bytes, item: str, decoded: dict[bytes, EncodedImage]) -> EncodedImage:
        if self._profile.image is None:
            raise InvalidRequestError("this model takes text only", item=item)
        key = hashlib.sha256(data).digest()
        if key not in decoded:
            try:
                decoded[key] = encode_image(data, self._profile.image, self._image_settings)
            except ImageError as error:
                raise error.within(item) from error.__cause__
        return decoded[key]

    def _lead_text(self, instruction: str | None) -> str:
        """The user's turn up to where the query begins."""
        if instruction is None or not instruction.strip():
            instruction = self._profile.default_instruction
        require_unicode(instruction, "instruction")
        return self._template.before_instruction + instruction + self._template.before_query

    def _room(self, lead: int) -> int:
        """Tokens that are left for a query and a document, the reference's limit less the template."""
        template = len(self._system) + lead + len(self._query_tail) + self._document_lead
        if not self._template.suffix_is_extra:
            template += len(self._suffix)
        return self._profile.max_tokens - template

    def _tokenize_query(self, query: _Material, lead_text: str, limit: int | None) -> _Tokenized:
        most = self._profile.max_tokens
        (lead,) = self._tokenizer.encode_bounded([_standing_alone(lead_text)], most)
        if self._room(lead.total) < 2:
            raise TooLongError(f"leaves no room in {most} tokens for query and document", item="instruction")
        content = most if limit is None else min(limit, most)
        texts = [*query.texts[:-1], query.texts[-1] + self._template.after_query]
        texts[0] = lead_text + texts[0]
        bounded = self._tokenizer.encode_bounded(texts, lead.total + content + len(self._query_tail))
        return _Tokenized(tuple(bounded), query.images, lead.total, self._query_tail)

    def _tokenize_documents(self, documents: Sequence[_Material], limit: int | None) -> list[_Tokenized]:
        """Tokenises the texts of all documents in one batch."""
        most = self._profile.max_tokens if limit is None else min(limit, self._profile.max_tokens)
        texts = []
        for document in documents:
            texts.append(self._template.before_document + document.texts[0])
            texts.extend(document.texts[1:])
        bounded = iter(self._tokenizer.encode_bounded(texts, self._document_lead + most))
        return [
            _Tokenized(tuple(next(bounded) for _ in document.texts), document.images, self._document_lead, ())
            for document in documents
        ]

    def _segment(
        self, before: list[int], content: _Tokenized, kept: int, after: list[int], start: int
    ) -> tuple[EncodedSegment, int]:
        builder = SegmentBuilder(self._image_tokens)
        builder.add_text(before)
        texts = content.kept_ids(kept)
        builder.add_text(texts[0])
        for image, ids in zip(content.images, texts[1:], strict=True):
            assert self._profile.image is not None, "a text-only model met an image"
            builder.add_image(image, self._profile.image.merge_size)
            builder.add_text(ids)
        builder.add_text(after)
        size = content.size
        return builder.build(
            start,
            content_tokens=max(0, kept + size.images),
            truncated_tokens=max(0, size.text - kept),
        )


def _standing_alone(lead: str) -> str:
    """A lead without its last space, which becomes part of the content's first word."""
    return lead.rstrip(" ")
