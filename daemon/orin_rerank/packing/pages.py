"""A pack as segments that look into pages of keys, which is what attention over pages takes (`graph.attention.Pages`).

Each segment has its own rows, and its prefix's before them. A document's pages are full pages of its prefix, which all
documents of that prefix share, and then the rest of the prefix and the document together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from orin_rerank.packing.arrays import PackArrays
    from orin_rerank.prompt.encoded import Int32Array

__all__ = ["paged"]


def paged(arrays: PackArrays, page_rows: int) -> dict[str, Int32Array]:
    """The inputs that `graph.attention.Pages` describes, by name.

    Args:
        arrays: A pack that has been laid out.
        page_rows: Rows of a page.
    """
    tokens, known_rows = arrays.ids.shape[0], arrays.known_id.shape[0]
    changes = (np.diff(arrays.prefix_id) != 0) | (np.diff(arrays.document_id) != 0)
    begin = np.concatenate(([0], np.flatnonzero(changes) + 1, [tokens])).astype(np.int32)
    pages = _Pages(page_rows)
    prefixes: dict[int, Int32Array] = {}
    past, table, documents = [], [], []
    for segment, (first, end) in enumerate(pairwise(begin)):
        number = int(arrays.prefix_id[first])
        own = np.arange(known_rows + first, known_rows + end, dtype=np.int32)
        if arrays.document_id[first] == 0:
            prefixes[number] = own
            before = own[:0]
        else:
            if number not in prefixes:
                prefixes[number] = np.flatnonzero(arrays.known_id == number).astype(np.int32)
            before = prefixes[number]
            documents.append(segment)
        past.append(before.shape[0])
        table.append(pages.of_segment(number, before, own))
    lengths, pasts = np.diff(begin), np.array(past, np.int32)
    chosen = np.array(documents, np.int32)
    return {
        "segment_begin": begin,
        "segment_past": pasts,
        "page_row": np.concatenate(pages.rows),
        "page_table": _padded(table),
        "page_slot": np.full(tokens, -1, np.int32),
        "longest": np.array([lengths.max(), (pasts + lengths).max()], np.int32),
        "document_segment": chosen,
        "document_past": pasts[chosen] + lengths[chosen] - 1,
        "document_begin": np.arange(chosen.shape[0] + 1, dtype=np.int32),
    }


@dataclass(slots=True)
class _Pages:
    """Pages as they are laid out one after another."""

    size: int
    rows: list[Int32Array] = field(default_factory=list)
    _shared: dict[int, list[int]] = field(default_factory=dict)
    _count: int = 0

    def of_segment(self, number: int, before: Int32Array, own: Int32Array) -> list[int]:
        """The pages of a segment's rows behind those of its prefix, whose number that is."""
        full = before.shape[0] // self.size * self.size
        if full and number not in self._shared:
            self._shared[number] = self._add(before[:full])
        shared = self._shared[number] if full else []
        return [*shared, *self._add(np.concatenate((before[full:], own)))]

    def _add(self, rows: Int32Array) -> list[int]:
        """Lays rows out; what the last page has room for besides repeats a row, and nobody looks at it."""
        filled = np.zeros(rows.shape[0] + -rows.shape[0] % self.size, np.int32)
        filled[: rows.shape[0]] = rows
        self.rows.append(filled)
        first, self._count = self._count, self._count + filled.shape[0] // self.size
        return list(range(first, self._count))


def _padded(table: list[list[int]]) -> Int32Array:
    padded = np.zeros((len(table), max(map(len, table))), np.int32)
    for row, pages in zip(padded, table, strict=True):
        row[: len(pages)] = pages
    return padded
