"""Packs as segments that look into pages of keys."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orin_rerank.engines.pool import BufferPool, PackCapacity
from orin_rerank.packing.arrays import PackLayout
from orin_rerank.packing.pack import Pack, PackGroup
from orin_rerank.packing.pages import paged
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.prompt.encoded import EncodedSegment

CAPACITY = PackCapacity(
    tokens=200,
    documents=40,
    visual_rows=0,
    known_rows=100,
    keep_rows=100,
    hidden=8,
    half_head=4,
    layers=1,
    kv_heads=1,
    taps=0,
)


def _segment(length: int, first: int) -> EncodedSegment:
    ids = np.arange(first, first + length, dtype=np.int32)
    return EncodedSegment(ids, np.tile(ids, (3, 1)), np.full(length, -1, np.int32), (), length, 0)


def _pack(prefixes: list[int], documents: list[list[int]]) -> Pack:
    groups = []
    for number, (prefix, lengths) in enumerate(zip(prefixes, documents, strict=True)):
        first = 1000 * (number + 1)
        groups.append(
            PackGroup(
                _segment(prefix, first),
                tuple(_segment(length, first + 100 * i) for i, length in enumerate(lengths, 1)),
            )
        )
    return Pack(tuple(groups), tuple(range(sum(map(len, documents)))), 0)


def _seen(arrays, inputs: dict[str, np.ndarray], size: int) -> list[list[int]]:
    """For every token, the rows that it sees, in order: row r of what is known is -1 - r."""
    known = arrays.known_id.shape[0]
    rows = inputs["page_row"].reshape(-1, size)
    seen = []
    for segment, (begin, end) in enumerate(zip(inputs["segment_begin"], inputs["segment_begin"][1:], strict=False)):
        visible = rows[inputs["page_table"][segment]].reshape(-1)
        for place in range(begin, end):
            count = inputs["segment_past"][segment] + place - begin + 1
            seen.append([int(row - known if row >= known else -1 - row) for row in visible[:count]])
    return seen


def _expected(arrays) -> list[list[int]]:
    """The same from who belongs to whom, as a mask has it."""
    known = defaultdict(list)
    for row, number in enumerate(arrays.known_id):
        known[int(number)].append(-1 - row)
    seen = []
    for place, (prefix, document) in enumerate(zip(arrays.prefix_id, arrays.document_id, strict=True)):
        earlier = range(place + 1)
        own = [p for p in earlier if arrays.prefix_id[p] == prefix and arrays.document_id[p] in (0, document)]
        seen.append([*known[int(prefix)], *own])
    return seen


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("known", [(), (0,), (1,), (0, 1, 2)])
def test_every_token_sees_what_a_mask_shows(size: int, known: tuple[int, ...]) -> None:
    pack = _pack([9, 1, 16], [[1, 5, 12], [3], [16, 2]])
    shape = (1, 2, 0, 1, 8)
    remembered = {
        group.prefix.digest: np.zeros((*shape[:2], len(group.prefix), *shape[3:]), np.float32)
        for number, group in enumerate(pack.groups)
        if number in known
    }
    layout = PackLayout(pack, remembered)
    with BufferPool(CAPACITY, 1, 1.0).lend(layout) as arrays:
        layout.fill(arrays, RotaryTable(8, 1e4, None, 6000), {})
        inputs = paged(arrays, size)
        assert _seen(arrays, inputs, size) == _expected(arrays)
        assert all(values.dtype == np.int32 for values in inputs.values())
        lengths = np.diff(inputs["segment_begin"])
        assert inputs["longest"].tolist() == [lengths.max(), (lengths + inputs["segment_past"]).max()]
        last = inputs["segment_begin"][inputs["document_segment"] + 1] - 1
        assert last.tolist() == arrays.last.tolist()
        rows = [len(_expected(arrays)[place]) - 1 for place in arrays.last]
        assert inputs["document_past"].tolist() == rows
        assert inputs["document_begin"].tolist() == list(range(7))
        assert inputs["page_slot"].tolist() == [-1] * layout.tokens


@given(
    groups=st.lists(
        st.tuples(st.integers(1, 20), st.booleans(), st.lists(st.integers(1, 9), min_size=1, max_size=4)),
        min_size=1,
        max_size=4,
    ),
    size=st.sampled_from([1, 2, 4, 16]),
    most_kept=st.one_of(st.none(), st.integers(0, 40)),
)
@example(groups=[(1, True, [1])], size=1, most_kept=0)  # one token behind one known row
@example(groups=[(8, True, [1, 1]), (4, True, [1]), (4, False, [1])], size=4, most_kept=0)  # nothing but full pages
@example(groups=[(20, False, [1])], size=4, most_kept=3)  # computed, and too long to be kept
def test_any_pack_shows_what_a_mask_shows(
    groups: list[tuple[int, bool, list[int]]], size: int, most_kept: int | None
) -> None:
    pack = _pack([prefix for prefix, _, _ in groups], [documents for _, _, documents in groups])
    remembered = {
        group.prefix.digest: np.zeros((1, 2, length, 1, 8), np.float32)
        for group, (length, known, _) in zip(pack.groups, groups, strict=True)
        if known
    }
    layout = PackLayout(pack, remembered, most_kept)
    with BufferPool(CAPACITY, 1, 1.0).lend(layout) as arrays:
        layout.fill(arrays, RotaryTable(8, 1e4, None, 6000), {})
        inputs = paged(arrays, size)
        assert _seen(arrays, inputs, size) == _expected(arrays)
        rows = [len(_expected(arrays)[place]) - 1 for place in arrays.last]
        assert inputs["document_past"].tolist() == rows
        kept = sum(length for length, known, _ in groups if not known)
        assert layout.keep_rows <= (kept if most_kept is None else min(kept, most_kept))


def test_documents_share_the_full_pages_of_their_prefix() -> None:
    pack = _pack([35], [[1] * 40])
    remembered = {pack.groups[0].prefix.digest: np.zeros((1, 2, 35, 1, 8), np.float32)}
    layout = PackLayout(pack, remembered)
    with BufferPool(CAPACITY, 1, 1.0).lend(layout) as arrays:
        layout.fill(arrays, RotaryTable(8, 1e4, None, 6000), {})
        inputs = paged(arrays, 16)
    assert inputs["page_row"].shape == ((2 + 40) * 16,)
    assert (inputs["page_table"][:, :2] == [0, 1]).all()
    assert len(set(inputs["page_table"][:, 2])) == 40
