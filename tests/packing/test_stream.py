"""A stream of packs: nothing lost, budgets kept, and only as many requests read as are needed."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.packing.budget import TokenBudget
from orin_rerank.packing.stream import pack_stream
from orin_rerank.prompt.encoded import EncodedRequest
from packing.segments import text_segment

REQUESTS = st.lists(st.tuples(st.integers(1, 40), st.lists(st.integers(1, 60), max_size=6)), max_size=8)


def _requests(lengths: list[tuple[int, list[int]]]) -> list[EncodedRequest]:
    return [
        EncodedRequest(
            text_segment(prefix, 1000 * n), tuple(text_segment(t, 2000 + i) for i, t in enumerate(documents))
        )
        for n, (prefix, documents) in enumerate(lengths)
    ]


@given(REQUESTS, st.integers(16, 128), st.integers(1, 10))
def test_every_document_is_in_one_pack_behind_its_prefix(
    lengths: list[tuple[int, list[int]]], budget: int, most: int
) -> None:
    requests = _requests(lengths)
    packs = list(pack_stream(iter(requests), TokenBudget.fixed(budget), most))
    tags = [tag for pack in packs for tag in pack.tags]
    assert tags == [(r, d) for r, request in enumerate(requests) for d in range(len(request.documents))]
    for pack in packs:
        assert 1 <= pack.documents <= most
        assert pack.tokens == sum(group.tokens for group in pack.groups)
        longest = max(len(group.prefix) for group in pack.groups)
        assert pack.documents == 1 or pack.tokens <= max(budget, longest + budget // 2)
        tag = iter(pack.tags)
        for group in pack.groups:
            for document in group.documents:
                request, index = next(tag)
                assert requests[request].documents[index] is document
                assert requests[request].prefix is group.prefix


def test_requests_are_read_as_packs_are_taken() -> None:
    read = []

    def source() -> Iterator[EncodedRequest]:
        for number, request in enumerate(_requests([(10, [30, 30])] * 100)):
            read.append(number)
            yield request

    stream = pack_stream(source(), TokenBudget.fixed(128), 64)
    next(stream)
    assert len(read) <= 3
