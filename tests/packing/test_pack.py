"""Planning: nothing lost, order kept, budgets respected."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.packing.budget import TokenBudget
from orin_rerank.packing.pack import PackBuilder, plan_packs
from orin_rerank.prompt.encoded import EncodedRequest
from packing.segments import text_segment

LENGTHS = st.lists(st.integers(1, 80), min_size=1, max_size=40)


def request(prefix: int, documents: list[int]) -> EncodedRequest:
    return EncodedRequest(text_segment(prefix, 1000), tuple(text_segment(n, 2000 + i) for i, n in enumerate(documents)))


@given(st.integers(1, 120), LENGTHS, st.integers(16, 128), st.integers(1, 10), st.booleans())
def test_plans_lose_nothing_and_keep_budgets(
    prefix: int, documents: list[int], budget: int, most: int, known: bool
) -> None:
    encoded = request(prefix, documents)
    packs = plan_packs(encoded, TokenBudget.fixed(budget), most, lambda _: known)
    assert [tag for pack in packs for tag in pack.tags] == list(range(len(documents)))
    laid_out = [document for pack in packs for group in pack.groups for document in group.documents]
    assert all(a is b for a, b in zip(laid_out, encoded.documents, strict=True))
    for number, pack in enumerate(packs):
        lengths = [documents[i] for i in pack.tags]
        own_prefix = prefix if number == 0 and not known else 0
        assert len(pack.groups) == 1
        assert pack.documents <= most
        assert pack.tokens == own_prefix + sum(lengths)
        assert pack.documents == 1 or pack.tokens <= max(budget, own_prefix + budget // 2)


@given(st.integers(1, 40), LENGTHS, st.integers(16, 128))
def test_a_pack_ends_only_where_the_next_document_does_not_fit(prefix: int, documents: list[int], budget: int) -> None:
    packs = plan_packs(request(prefix, documents), TokenBudget.fixed(budget), 1000)
    for number, (pack, following) in enumerate(itertools.pairwise(packs)):
        limit = TokenBudget.fixed(budget).for_prefix(prefix if number == 0 else 0)
        assert pack.tokens + documents[following.tags[0]] > limit


def test_packs_behind_a_long_prefix_are_no_longer_than_the_budget() -> None:
    packs = plan_packs(request(1000, [20] * 60), TokenBudget.fixed(100), 1000)
    assert packs[0].tokens == 1040
    assert {pack.tokens for pack in packs[1:-1]} == {100}


def test_a_prefix_that_is_not_remembered_counts_in_every_pack() -> None:
    encoded = request(1000, [20] * 60)
    packs = plan_packs(encoded, TokenBudget.fixed(100), 1000, remembered=lambda _: False)
    assert [pack.tokens for pack in packs] == [1040] * 30
    packs = plan_packs(encoded, TokenBudget.fixed(100), 1000, lambda _: True, lambda _: False)
    assert {pack.tokens for pack in packs} == {100}


def test_equal_prefixes_share_one_place_and_tags_follow_the_layout() -> None:
    a, b, same_as_a = text_segment(5, 10), text_segment(6, 50), text_segment(5, 10)
    builder = PackBuilder(10)
    for prefix, tag in ((a, "a0"), (b, "b0"), (same_as_a, "a1")):
        assert builder.fits(prefix, text_segment(3), 1000)
        builder.add(prefix, text_segment(3), tag)
    pack = builder.build()
    assert [len(group.documents) for group in pack.groups] == [2, 1]
    assert pack.tags == ("a0", "a1", "b0")
    assert pack.tokens == 5 + 6 + 3 * 3
    assert [len(segment) for segment in pack.segments()] == [5, 3, 3, 6, 3]


def test_any_document_fits_into_an_empty_pack() -> None:
    assert PackBuilder(1).fits(text_segment(100), text_segment(1000), 16)


def test_a_full_pack_takes_no_more_documents() -> None:
    builder = PackBuilder(1)
    builder.add(text_segment(1), text_segment(1), 0)
    assert not builder.fits(text_segment(1), text_segment(1), 1000)
