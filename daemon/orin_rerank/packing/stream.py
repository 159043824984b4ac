"""Many requests as one stream of full packs, for work that is measured by its throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orin_rerank.packing.pack import Pack, PackBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orin_rerank.packing.budget import TokenBudget
    from orin_rerank.prompt.encoded import EncodedRequest

__all__ = ["pack_stream"]


def pack_stream(requests: Iterable[EncodedRequest], budget: TokenBudget, max_documents: int) -> Iterator[Pack]:
    """Yields packs as they fill up, each with documents of as many requests as it holds.

    The same requests always give the same packs; no prefix is taken for known. No more than one pack is held.

    Args:
        requests: In the order in which they are to run.
        budget: How long packs should be.
        max_documents: Most documents in a pack.

    Yields:
        Packs whose tags are `(request, document)`, both counted from 0.
    """
    builder = PackBuilder(max_documents)
    for number, request in enumerate(requests):
        tokens = budget.for_prefix(len(request.prefix))
        for index, document in enumerate(request.documents):
            if not builder.fits(request.prefix, document, tokens):
                yield builder.build()
                builder = PackBuilder(max_documents)
            builder.add(request.prefix, document, (number, index))
    if builder.documents:
        yield builder.build()
