"""A pack as the arrays that the decoder graph takes, written into buffers that exist already."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orin_rerank.packing.pack import Pack
    from orin_rerank.packing.rotary import RotaryTable
    from orin_rerank.prompt.encoded import EncodedSegment, Float32Array, Int32Array

__all__ = ["Features", "KeyValues", "PackArrays", "PackLayout"]

Features = npt.NDArray[np.floating[Any]]
"""What the vision encoder makes of an image, `[1 + taps, tokens, hidden]`, in the precision of the matrix products."""

KeyValues = npt.NDArray[np.floating[Any]]
"""Keys and values of a prefix, `[layers, 2, tokens, kv_heads, head_dim]`, in the precision of the matrix products."""


@dataclass(frozen=True, slots=True, eq=False)
class PackArrays:
    """The decoder's inputs and outputs, each exactly as long as the pack needs.

    S is the packed tokens, N the documents, V the rows of visual features (row 0 stands for "none"), C the rows of
    known prefixes and K the rows to keep (each at least 1), H the hidden width, D the width of a head.

    Attributes:
        ids: int32 `[S]`.
        cos: float32 `[S, D/2]`.
        sin: float32 `[S, D/2]`.
        prefix_id: int32 `[S]`.
        document_id: int32 `[S]`, 0 for a prefix.
        visual_index: int32 `[S]`, 0 for text.
        last: int32 `[N]`.
        visual: `[V, H]`; no rows for a text-only model.
        deepstack: `[V, H]` for each tap.
        known: `[layers, 2, C, kv_heads, D]`.
        known_id: int32 `[C]`, -1 for a row that stands for none.
        keep: int32 `[K]`.
        margin: float32 `[N]`, which the engine writes.
        kept: `[layers, 2, K, kv_heads, D]`, which the engine writes.
    """

    ids: Int32Array
    cos: Float32Array
    sin: Float32Array
    prefix_id: Int32Array
    document_id: Int32Array
    visual_index: Int32Array
    last: Int32Array
    visual: Features
    deepstack: tuple[Features, ...]
    known: KeyValues
    known_id: Int32Array
    keep: Int32Array
    margin: Float32Array
    kept: KeyValues


@dataclass(slots=True)
class PackLayout:
    """Where everything of a pack goes, and so how long its arrays must be.

    Args:
        pack: What is laid out.
        known: Keys and values of those prefixes that need not be computed, by digest.
        most_kept: Most rows to keep of the prefixes that are computed; None means all. A prefix is kept whole or not at
            all.
    """

    pack: Pack
    known: Mapping[bytes, KeyValues]
    most_kept: int | None = None
    tokens: int = field(init=False)
    visual_rows: int = field(init=False)
    known_rows: int = field(init=False)
    keep_rows: int = field(init=False, default=0)
    _kept: set[bytes] = field(init=False, default_factory=set)
    _image_rows: dict[bytes, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        computed = [g.prefix for g in self.pack.groups if g.prefix.digest not in self.known]
        documents = [document for group in self.pack.groups for document in group.documents]
        for prefix in computed:
            if self.most_kept is None or self.keep_rows + len(prefix) <= self.most_kept:
                self._kept.add(prefix.digest)
                self.keep_rows += len(prefix)
        self.known_rows = sum(len(g.prefix) for g in self.pack.groups if g.prefix.digest in self.known)
        self.tokens = sum(len(segment) for segment in (*computed, *documents))
        self.visual_rows = 1
        for segment in (*computed, *documents):
            for image in segment.images:
                if image.digest not in self._image_rows:
                    self._image_rows[image.digest] = self.visual_rows
                    self.visual_rows += image.tokens

    @property
    def image_digests(self) -> frozenset[bytes]:
        """The images whose features are needed."""
        return frozenset(self._image_rows)

    def fill(self, arrays: PackArrays, rotary: RotaryTable, features: Mapping[bytes, Features]) -> None:
        """Writes every element of every input.

        Args:
            arrays: Where to.
            rotary: The model's rotary tables.
            features: Of every image in `image_digests`.
        """
        arrays.known[:, :, :1] = 0
        arrays.known_id[0] = -1
        arrays.keep[0] = 0
        place = documents = known_rows = keep_rows = 0
        for number, group in enumerate(self.pack.groups):
            length = len(group.prefix)
            if group.prefix.digest in self.known:
                where = slice(known_rows, known_rows + length)
                arrays.known[:, :, where] = self.known[group.prefix.digest]
                arrays.known_id[where] = number
                known_rows += length
            else:
                if group.prefix.digest in self._kept:
                    arrays.keep[keep_rows : keep_rows + length] = np.arange(place, place + length, dtype=np.int32)
                    keep_rows += length
                place = self._write(arrays, rotary, group.prefix, place, (number, 0))
            for document in group.documents:
                documents += 1
                place = self._write(arrays, rotary, document, place, (number, documents))
                arrays.last[documents - 1] = place - 1
        if arrays.visual.shape[0]:
            self._write_features(arrays, features)

    def computed(self, arrays: PackArrays) -> dict[bytes, KeyValues]:
        """Copies what the engine kept: keys and values of prefixes that this pack computed, by digest."""
        result: dict[bytes, KeyValues] = {}
        row = 0
        for group in self.pack.groups:
            if group.prefix.digest in self._kept:
                result[group.prefix.digest] = arrays.kept[:, :, row : row + len(group.prefix)].copy()
                row += len(group.prefix)
        return result

    def _write(
        self, arrays: PackArrays, rotary: RotaryTable, segment: EncodedSegment, place: int, numbers: tuple[int, int]
    ) -> int:
        end = place + len(segment)
        where = slice(place, end)
        arrays.ids[where] = segment.ids
        rotary.write(segment.positions, arrays.cos[where], arrays.sin[where])
        arrays.prefix_id[where], arrays.document_id[where] = numbers
        arrays.visual_index[where] = 0
        if segment.images:
            rows = np.concatenate(
                [np.arange(image.tokens, dtype=np.int32) + self._image_rows[image.digest] for image in segment.images]
            )
            is_image = segment.visual_index >= 0
            arrays.visual_index[where][is_image] = rows[segment.visual_index[is_image]]
        return end

    def _write_features(self, arrays: PackArrays, features: Mapping[bytes, Features]) -> None:
        targets = (arrays.visual, *arrays.deepstack)
        for target in targets:
            target[0] = 0.0
        for digest, begin in self._image_rows.items():
            for target, values in zip(targets, features[digest], strict=True):
                target[begin : begin + values.shape[0]] = values
