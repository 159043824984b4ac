from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.errors import TooLongError
from orin_rerank.prompt.content import Limits
from orin_rerank.prompt.truncation import ContentSize, KeptText, plan_truncation

NO_LIMITS = Limits()


def size(text: int, images: int = 0) -> ContentSize:
    return ContentSize(text, images)


@pytest.mark.parametrize(
    ("query", "documents", "room", "kept"),
    [
        (size(10), [size(20), size(5)], 30, (10, (20, 5))),  # all fits
        (size(10), [size(40), size(5)], 30, (10, (20, 5))),  # the document's tail goes
        (size(29), [size(1)], 30, (29, (1,))),  # a small document needs no more than it has
        (size(90), [size(90), size(3)], 40, (30, (10, 3))),  # a quarter for the document
        (size(90), [size(3)], 40, (37, (3,))),
        (size(90, 8), [size(90, 12)], 60, (30, (10,))),  # images first, the rest is shared
        (size(5, 8), [size(0, 12), size(90)], 25, (5, (0, 12))),
        (size(0, 8), [size(0, 12)], 20, (0, (0,))),
        (size(-1), [size(0), size(-1)], 20, (-1, (0, -1))),  # merged into the template
    ],
)
def test_plans(query, documents, room, kept):
    assert plan_truncation(query, documents, room, NO_LIMITS) == KeptText(*kept)


@pytest.mark.parametrize(
    ("query", "documents", "room", "limits", "item"),
    [
        (size(1, 21), [size(1)], 20, NO_LIMITS, "query"),
        (size(1), [size(1), size(1, 21)], 20, NO_LIMITS, "documents[1]"),
        (size(1), [size(1)], -5, NO_LIMITS, "query"),
        (size(1), [size(0, 20)], 20, NO_LIMITS, "query"),
        (size(0, 20), [size(3)], 20, NO_LIMITS, "documents[0]"),
        (size(1, 9), [size(1)], 20, Limits(query_tokens=8), "query"),
        (size(1), [size(1), size(1, 9)], 20, Limits(document_tokens=8), "documents[1]"),
        (size(1), [size(1), size(9)], 20, Limits(document_tokens=8, truncate=False), "documents[1]"),
        (size(9), [size(1)], 20, Limits(query_tokens=8, truncate=False), "query"),
        (size(9), [size(1), size(12)], 20, Limits(truncate=False), "documents[1]"),
        (size(20), [size(1)], 20, Limits(truncate=False), "query"),
        (size(9), [size(1)], 20, Limits(query_tokens=0), "query"),
    ],
)
def test_refusals(query, documents, room, limits, item):
    with pytest.raises(TooLongError) as raised:
        plan_truncation(query, documents, room, limits)
    assert raised.value.item == item


_sizes = st.builds(size, st.integers(1, 300), st.sampled_from((0, 0, 18, 60)))


@given(query=_sizes, documents=st.lists(_sizes, min_size=1, max_size=5), room=st.integers(8, 300))
def test_every_plan_fits_keeps_a_share_and_cuts_only_where_it_must(query, documents, room):
    try:
        kept = plan_truncation(query, documents, room, NO_LIMITS)
    except TooLongError:
        images = query.images + max(document.images for document in documents)
        assert images + 2 > room  # not even a token of text for each would fit
        return
    assert 0 <= kept.query <= query.text
    for document, text in zip(documents, kept.documents, strict=True):
        total = kept.query + query.images + text + document.images
        assert total <= room
        assert text == document.text or total == room
        assert text >= min(document.text, (room - query.images - document.images) // 4)
    if kept.query < query.text:

        def share(document: ContentSize) -> int:
            left = room - query.images - document.images
            return document.images + min(document.text, left, max(left // 4, 1))

        assert room - kept.query - query.images == max(share(document) for document in documents)
