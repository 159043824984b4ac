"""Which documents share one run of the engine: the packed sequence before it becomes arrays.

A pack is laid out as `prefix A | doc A1 | doc A2 | prefix B | doc B1 | ...`. A prefix that several of its documents
share stands in it once, and not at all where the engine still knows its keys and values from an earlier pack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from orin_rerank.packing.budget import TokenBudget
    from orin_rerank.prompt.encoded import EncodedRequest, EncodedSegment

__all__ = ["Pack", "PackBuilder", "PackGroup", "plan_packs"]


@dataclass(frozen=True, slots=True, eq=False)
class PackGroup:
    """One prefix and the documents behind it."""

    prefix: EncodedSegment
    documents: tuple[EncodedSegment, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the prefix and its documents."""
        return len(self.prefix) + sum(len(document) for document in self.documents)


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """What one run of the engine computes.

    Attributes:
        groups: Prefixes with their documents.
        tags: One per document, in the order in which the margins come back.
        tokens: Length of the packed sequence as planned; longer if a prefix turns out not to be known any more.
    """

    groups: tuple[PackGroup, ...]
    tags: tuple[Hashable, ...]
    tokens: int

    @property
    def documents(self) -> int:
        """How many documents, N."""
        return len(self.tags)

    def segments(self) -> Iterator[EncodedSegment]:
        """Every prefix and document in the order in which they are laid out."""
        for group in self.groups:
            yield group.prefix
            yield from group.documents


def _never(_: EncodedSegment) -> bool:
    return False


def _always(_: EncodedSegment) -> bool:
    return True


@dataclass(slots=True)
class PackBuilder:
    """Collects documents until the pack is full.

    Args:
        max_documents: Most documents in one pack.
        known: Whether a prefix need not be computed again.
    """

    max_documents: int
    known: Callable[[EncodedSegment], bool] = _never
    _groups: dict[bytes, tuple[EncodedSegment, list[EncodedSegment], list[Hashable]]] = field(default_factory=dict)
    tokens: int = 0
    documents: int = 0

    def added_tokens(self, prefix: EncodedSegment, document: EncodedSegment) -> int:
        """How much longer the pack would become; a prefix that is in it already, or is known, costs nothing."""
        free = prefix.digest in self._groups or self.known(prefix)
        return len(document) + (0 if free else len(prefix))

    def fits(self, prefix: EncodedSegment, document: EncodedSegment, budget: int) -> bool:
        """Whether the document fits into `budget` tokens; into an empty pack every document does."""
        if self.documents == 0:
            return True
        return self.documents < self.max_documents and self.tokens + self.added_tokens(prefix, document) <= budget

    def add(self, prefix: EncodedSegment, document: EncodedSegment, tag: Hashable) -> None:
        """Adds a document behind its prefix; equal prefixes share one place."""
        self.tokens += self.added_tokens(prefix, document)
        self.documents += 1
        _, documents, tags = self._groups.setdefault(prefix.digest, (prefix, [], []))
        documents.append(document)
        tags.append(tag)

    def build(self) -> Pack:
        """Returns the pack; the builder may not be used afterwards."""
        return Pack(
            groups=tuple(PackGroup(prefix, tuple(documents)) for prefix, documents, _ in self._groups.values()),
            tags=tuple(tag for _, _, tags in self._groups.values() for tag in tags),
            tokens=self.tokens,
        )


def plan_packs(
    request: EncodedRequest,
    budget: TokenBudget,
    max_documents: int,
    known: Callable[[EncodedSegment], bool] = _never,
    remembered: Callable[[EncodedSegment], bool] = _always,
) -> list[Pack]:
    """Cuts one request into packs, in document order; tags are the documents' indices.

    Args:
        request: What to cut.
        budget: How long packs should be.
        max_documents: Most documents in a pack.
        known: Whether a prefix need not be computed again.
        remembered: Whether it need not once a pack has computed it; a very long one has to be.
    """

    def later(prefix: EncodedSegment) -> bool:
        return known(prefix) or remembered(prefix)

    packs: list[Pack] = []
    builder = PackBuilder(max_documents, known)
    tokens = budget.for_prefix(0 if known(request.prefix) else len(request.prefix))
    for index, document in enumerate(request.documents):
        if not builder.fits(request.prefix, document, tokens):
            packs.append(builder.build())
            builder = PackBuilder(max_documents, later)
            tokens = budget.for_prefix(0 if later(request.prefix) else len(request.prefix))
        builder.add(request.prefix, document, index)
    if builder.documents:
        packs.append(builder.build())
    return packs
