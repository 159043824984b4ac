"""What the activations at each place of a model are like, over a calibration set.

Nothing is kept per sample. A place keeps the largest magnitude of every channel, counts of the largest magnitudes of
every row, and a few rows; none of that grows with the set, and none depends on the order in which packs finish:
maxima and counts commute, and the rows kept are those whose contents have the smallest hashes.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import CalibrationError, InternalError
from orin_rerank.quantization.array_file import read_arrays, write_arrays
from orin_rerank.quantization.magnitudes import BINS, bin_counts, upper_edge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orin_rerank.graph.places import Place
    from orin_rerank.prompt.encoded import Float32Array

__all__ = ["KEPT_ROWS", "PlaceRanges", "Provenance", "RangeCollector", "Ranges"]

KEPT_ROWS: Final = 512
"""Sampled rows that a place keeps, where all places together stay within `_KEPT_BYTES`. On the mini, the search of
smoothing leaves a fifth less error in the margins than on 128 rows."""

_KEPT_BYTES: Final = 512 << 20
"""The 8B's places have some 890,000 channels together: 150 rows of each."""

_FORMAT: Final = "1"
_PARTS: Final = ("maxima", "rows", "tail", "tail_floor", "samples")


@dataclass(frozen=True, slots=True, eq=False)
class PlaceRanges:
    """The activation of one place, over all rows that were seen.

    Attributes:
        maxima: float32 `[channels]`: the largest magnitude of every channel.
        rows: How many rows were seen.
        tail: int64 `[BINS]`: of the largest magnitudes of every row, how many fall into each bin of `magnitudes`.
        tail_floor: Every magnitude above it is counted in `tail`; of those below, a part.
        samples: float32 `[R, channels]`: rows drawn from those that differ; none where a file was saved without.
    """

    maxima: Float32Array
    rows: int
    tail: npt.NDArray[np.int64]
    tail_floor: float
    samples: Float32Array

    @property
    def channels(self) -> int:
        """Width of the activation."""
        return int(self.maxima.shape[0])

    @property
    def peak(self) -> float:
        """The largest magnitude of all."""
        return float(self.maxima.max())

    def percentile(self, percent: float) -> float:
        """A magnitude that `percent` of all values do not exceed.

        Above `tail_floor` it is exact but for the width of a bin, upwards. Below, it is estimated from the sampled
        rows, and is the floor itself where there are none: too large rather than too small.

        Args:
            percent: Above 0, at most 100.
        """
        if not 0 < percent <= 100:
            raise InternalError(f"there is no {percent}th percentile")
        beyond = int((1 - percent / 100) * self.rows * self.channels)
        above = np.cumsum(self.tail[::-1])[::-1]  # [b]: values in bin b and those after it
        # The lowest bin above which no more values lie than may; what is above the floor is all there.
        lowest = int(np.searchsorted(-above, -beyond, side="left")) - 1
        edge = upper_edge(max(lowest, 0))
        if edge >= self.tail_floor:
            return min(edge, self.peak)
        if not self.samples.size:
            return self.tail_floor
        sampled = float(np.quantile(np.abs(self.samples), percent / 100, method="higher"))
        return min(sampled, self.tail_floor)


@dataclass(frozen=True, slots=True)
class Provenance:
    """What ranges were recorded of; each a SHA-256 in hexadecimal.

    Attributes:
        bundle: Of the full-precision bundle's manifest.
        dataset: Of the calibration set; see `calibration_set.dataset_digest`.
        graph: Of the observed graphs.
    """

    bundle: str
    dataset: str
    graph: str


@dataclass(frozen=True, slots=True, eq=False)
class Ranges(Mapping[str, PlaceRanges]):
    """Ranges by the name of their place.

    Attributes:
        places: The ranges.
        provenance: What they were recorded of.
    """

    places: Mapping[str, PlaceRanges]
    provenance: Provenance

    def __getitem__(self, name: str) -> PlaceRanges:
        return self.places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def save(self, path: Path, *, samples: bool = True) -> None:
        """Writes a file, which appears whole or not at all.

        Args:
            path: The file.
            samples: Whether to keep the sampled rows, which are most of it.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, place in self.places.items():
            kept = place.samples if samples else place.samples[:0]
            values = (place.maxima, np.int64(place.rows), place.tail, np.float32(place.tail_floor), kept)
            arrays.update({f"{name}/{part}": np.asarray(value) for part, value in zip(_PARTS, values, strict=True)})
        source = self.provenance
        about = {"bundle": source.bundle, "dataset": source.dataset, "graph": source.graph}
        write_arrays(path, arrays, {**about, "format": _FORMAT})

    @classmethod
    def load(cls, path: Path, expected: Provenance) -> Ranges:
        """Reads a file that `save` wrote.

        Args:
            path: The file.
            expected: What the ranges must have been recorded of.

        Raises:
            CalibrationError: If the file is missing, cut short, altered, or recorded of something else.
        """
        arrays, about = read_arrays(path)
        if about.get("format") != _FORMAT:
            raise CalibrationError(f"is no file of ranges of format {_FORMAT}", item=str(path))
        for what in ("graph", "bundle", "dataset"):
            found, wanted = about.get(what, ""), getattr(expected, what)
            if found != wanted:
                raise CalibrationError(
                    f"was recorded of another {what}: {found[:12]}, not {wanted[:12]}", item=str(path)
                )
        names = dict.fromkeys(name.rpartition("/")[0] for name in arrays)
        try:
            places = {name: _place({part: arrays[f"{name}/{part}"] for part in _PARTS}) for name in names}
        except (KeyError, ValueError) as error:
            raise CalibrationError("is malformed", item=str(path)) from error
        return cls(places, expected)


def _place(parts: Mapping[str, npt.NDArray[Any]]) -> PlaceRanges:
    maxima, tail, samples = parts["maxima"], parts["tail"], parts["samples"]
    if maxima.ndim != 1 or tail.shape != (BINS,) or samples.shape[1:] != maxima.shape:
        raise ValueError("the arrays of a place do not fit together")
    return PlaceRanges(maxima, parts["rows"].item(), tail, parts["tail_floor"].item(), samples)


class RangeCollector:
    """Puts together what observed graphs (`graph.probes.ObservedForm`) give; safe to use from several threads.

    Args:
        places: The places to collect ranges of.
        kept_rows: How many sampled rows each keeps, possibly none; None for `KEPT_ROWS`, or fewer of a large model.
    """

    def __init__(self, places: Sequence[Place], *, kept_rows: int | None = None) -> None:
        self.places = tuple(places)
        if kept_rows is None:
            row_bytes = 4 * sum(place.channels for place in places)
            kept_rows = min(KEPT_ROWS, max(1, _KEPT_BYTES // row_bytes))
        self._states = {place.name: _State.empty(place.channels, kept_rows) for place in places}
        self._lock = threading.Lock()

    def add(self, places: Sequence[Place], results: Mapping[str, npt.NDArray[Any]]) -> None:
        """Adds what one run gave.

        Args:
            places: Those that its graph reports, in its order.
            results: Its outputs `maxima`, `tails`, `samples` and `rows`.

        Raises:
            CalibrationError: If an activation is not finite; the item names the place.
        """
        maxima, tails, samples, rows = (results[name] for name in ("maxima", "tails", "samples", "rows"))
        ends = np.cumsum(rows).tolist()
        channels = np.cumsum([place.channels for place in places]).tolist()
        if len(ends) != len(places) or tails.shape[0] != ends[-1] or maxima.shape[0] != channels[-1]:
            raise InternalError(f"an observed graph reports {maxima.shape[0]} channels of {len(ends)} places")
        for number, place in enumerate(places):
            begin, end = channels[number] - place.channels, channels[number]
            where = slice(ends[number] - int(rows[number]), ends[number])
            # A place narrower than a tail has its tails filled up with zeros.
            largest = tails[where, : place.channels]
            seen = maxima[begin:end], largest, np.ascontiguousarray(samples[:, begin:end])
            if not all(np.isfinite(values).all() for values in seen):
                raise CalibrationError("an activation is not a finite number in full precision", item=place.name)
            with self._lock:
                self._states[place.name].add(*seen)

    def ranges(self, provenance: Provenance) -> Ranges:
        """What was collected.

        Args:
            provenance: What it was recorded of.

        Raises:
            CalibrationError: If a place was never seen, such as the vision encoder's in a set without pictures.
        """
        with self._lock:
            for place in self.places:
                if not self._states[place.name].rows:
                    why = ": it has no pictures" if place.vision else ""
                    raise CalibrationError(f"the calibration set never reached this place{why}", item=place.name)
            return Ranges({name: state.ranges() for name, state in self._states.items()}, provenance)


@dataclass(slots=True)
class _State:
    """A place's ranges while they grow."""

    maxima: Float32Array
    kept: _RowSample
    rows: int = 0
    tail: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    floor: float = 0.0

    @classmethod
    def empty(cls, channels: int, kept_rows: int) -> _State:
        return cls(np.zeros(channels, np.float32), _RowSample(kept_rows, channels))

    def add(self, maxima: Float32Array, tails: Float32Array, samples: Float32Array) -> None:
        np.maximum(self.maxima, maxima, out=self.maxima)
        self.rows += tails.shape[0]
        self.tail += bin_counts(tails)
        # A row's smallest reported magnitude bounds what it does not report.
        self.floor = max(self.floor, float(tails[:, -1].max(initial=0.0)))
        self.kept.offer(samples)

    def ranges(self) -> PlaceRanges:
        return PlaceRanges(self.maxima.copy(), self.rows, self.tail.copy(), self.floor, self.kept.sorted())


class _RowSample:
    """Of all different rows that were offered, those whose contents have the smallest hashes.

    That is a uniform sample of the different rows, and the same one in whatever order, and however often, they come.
    """

    def __init__(self, limit: int, channels: int) -> None:
        self._rows = np.empty((limit, channels), np.float32)
        self._places: dict[int, int] = {}
        self._largest: list[int] = []  # a heap of negated hashes

    def offer(self, rows: Float32Array) -> None:
        if not len(self._rows):
            return
        for row in rows:
            key = int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "big")
            if key in self._places:
                continue
            if len(self._places) < len(self._rows):
                heapq.heappush(self._largest, -key)
                place = len(self._places)
            elif key < -self._largest[0]:
                place = self._places.pop(-heapq.heapreplace(self._largest, -key))
            else:
                continue
            self._places[key] = place
            self._rows[place] = row

    def sorted(self) -> Float32Array:
        """A copy of the rows, in the order of their hashes."""
        return self._rows[[self._places[key] for key in sorted(self._places)]]
