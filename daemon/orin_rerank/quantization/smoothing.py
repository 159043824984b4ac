"""Smoothing: scales that even out an activation's channels, at the expense of its weights' columns.

An activation has one step for all channels, so its few large channels decide how coarsely the small ones are rounded.
Dividing channel c by `s_c = max|x_c|^a / max|w_c|^(1 - a)` and multiplying column c of the weights by it leaves the
product as it is (SmoothQuant, arXiv 2211.10438). With strength `a` at 1 all channels reach equally far, and with less
the weights are spared. Scales made so are the same for any two checkpoints that differ by such scales alone.

The strength is searched by the error of the place's output, in INT8, on rows that the channels' maxima were *not* taken
from. On the very rows the strength would nearly always come out as 1: every channel then reaches exactly as far as the
calibration set did, and rows from elsewhere are clipped in one channel or another.

Where a few rows reach far beyond all others, no scales for channels help: such values come in channels in which none
was seen before. There every row gets a step of its own, found as it comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import numpy.typing as npt

from orin_rerank.graph.scheme import INT8_MAX
from orin_rerank.quantization.rounding import LEAST_STEP, fake_quantize, row_steps, smoothed_pieces
from orin_rerank.quantization.steps import HEADROOM

if TYPE_CHECKING:
    from typing import TypeAlias

    from orin_rerank.graph.checkpoint import Checkpoint
    from orin_rerank.graph.places import Place
    from orin_rerank.quantization.ranges import PlaceRanges

    Float32Array: TypeAlias = npt.NDArray[np.float32]

__all__ = ["PlaceSmoothing", "PlaceWeights", "even_columns", "read_place_weights", "search_smoothing"]

STRENGTHS: Final = tuple(round(0.1 * i, 1) for i in range(1, 11))
_SEARCH_VALUES: Final = 2 << 20
_FOLDS: Final = 2

_ROW_GAIN: Final = 2.0
"""How much smaller steps for each row must make the error to be worth a pass over the activation. Behind norms they
gain next to nothing; in front of the mini's down projections they make it 5 to 8 times smaller."""

_LEAST_SHARE: Final = 1e-3
"""A channel that a calibration set hardly touched is taken to contribute this share of what the largest does."""
_LEAST_COLUMN: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class PlaceWeights:
    """What the search needs of a place's weights.

    Attributes:
        peaks: float32 `[channels]`: the largest magnitude of every column, over all rows.
        rows: float32 `[some, channels]`: rows from all over the weights, on which errors are measured.
    """

    peaks: Float32Array
    rows: Float32Array


@dataclass(frozen=True, slots=True, eq=False)
class PlaceSmoothing:
    """Scales for a place.

    Attributes:
        strength: The exponent `a`; 0 where smoothing does not help, has nowhere to go or nothing to be judged on, and
            all scales are 1.
        scales: float32 `[channels]`, above 0.
        by_row: Whether rows are so unequal that each should be rounded with a step of its own; see `PlaceScheme`.
        error: Relative squared error of the place's output on the sampled rows, activation and weights in INT8.
        plain_error: The same without smoothing.
    """

    strength: float
    scales: Float32Array
    by_row: bool
    error: float
    plain_error: float


def read_place_weights(source: Checkpoint, place: Place, max_values: int = _SEARCH_VALUES) -> PlaceWeights:
    """Reads a place's weights once, in pieces, and keeps a bounded part.

    Args:
        source: The full-precision weights.
        place: The place.
        max_values: How many weights to keep at most; of larger ones, evenly spread rows.

    Raises:
        CheckpointError: If a weight is missing or not finite; the item names it.
    """
    every = -(-place.outputs * place.channels // max_values)
    peaks = np.zeros(place.channels, np.float32)
    kept: list[Float32Array] = []
    seen = 0
    for name in place.weights:
        for piece in smoothed_pieces(source, name, None):
            np.maximum(peaks, np.maximum(piece.max(axis=0), -piece.min(axis=0)), out=peaks)
            kept.append(piece[-seen % every :: every].copy())
            seen += len(piece)
    return PlaceWeights(peaks, np.concatenate(kept))


def search_smoothing(place: Place, ranges: PlaceRanges, weights: PlaceWeights) -> PlaceSmoothing:
    """Finds a place's scales, and whether its rows need steps of their own.

    Args:
        place: The place; channels that come from one row of its producers get one scale.
        ranges: Of its activation as it is, with sampled rows.
        weights: What `read_place_weights` gives.
    """
    trial = _Trial.of(place, ranges.samples, weights)
    everything = np.ones(len(ranges.samples), np.bool_)
    plain_error = trial.error(None, ranges.maxima, everything)
    strength, by_row = 0.0, False
    if len(ranges.samples) >= 2 * _FOLDS:
        (strength, error), (row_strength, row_error) = (trial.best_strength(by_row=b) for b in (False, True))
        if _ROW_GAIN * row_error < error:
            strength, by_row = row_strength, True
    scales = trial.scales(ranges.maxima, strength)
    error = trial.error(scales, None if by_row else ranges.maxima, everything)
    stored = np.ones(place.channels, np.float32) if scales is None else scales
    return PlaceSmoothing(strength, stored, by_row, error, plain_error)


def even_columns(place: Place, weights: PlaceWeights) -> Float32Array:
    """Scales float32 `[channels]` for a place whose activation stays wide: its columns then reach equally far.

    A column that is small because its channel is large would else be rounded away, by steps that fit the others.

    Args:
        place: The place; has producers.
        weights: What `read_place_weights` gives.
    """
    return _scales(place, np.ones(place.channels, np.float32), weights.peaks, 0.0)


def _scales(place: Place, maxima: Float32Array, columns: Float32Array, strength: float) -> Float32Array:
    """`max|x|^a / max|w|^(1 - a)`, written as `(max|x| max|w|)^a / max|w|`; their geometric mean is 1."""
    reach, width = _shared(place, maxima), _shared(place, columns)
    width = np.maximum(width, max(_LEAST_COLUMN * float(width.max()), float(np.finfo(np.float32).tiny)))
    contribution = reach * width
    largest = float(contribution.max())
    if largest == 0:
        return np.ones(place.channels, np.float32)
    exponents = strength * np.log(np.maximum(contribution / largest, _LEAST_SHARE)) - np.log(width)
    return cast("Float32Array", np.exp(exponents - exponents.mean()).astype(np.float32))


def _shared(place: Place, values: Float32Array) -> npt.NDArray[np.float64]:
    """The largest value of the channels that share a scale, for each channel."""
    grouped = values.astype(np.float64).reshape(place.layout)
    return np.broadcast_to(grouped.max(axis=1, keepdims=True), place.layout).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Tries scales on sampled rows.

    Attributes:
        place: The place.
        samples: float32 `[rows, channels]`.
        weights: float32 `[some, channels]` and their column maxima.
        exact: float32 `[rows, some]`, the outputs in full precision.
        total: The sum of their squares.
    """

    place: Place
    samples: Float32Array
    weights: PlaceWeights
    exact: Float32Array
    total: float

    @classmethod
    def of(cls, place: Place, samples: Float32Array, weights: PlaceWeights) -> _Trial:
        exact = samples @ weights.rows.T
        return cls(place, samples, weights, exact, float(np.square(exact).sum()) or 1.0)

    def best_strength(self, *, by_row: bool) -> tuple[float, float]:
        """The strength with the least error on rows whose channels' maxima are not known, and that error."""
        fold = np.arange(len(self.samples)) % _FOLDS
        errors = {}
        for strength in (0.0, *STRENGTHS) if self.place.producers else (0.0,):
            errors[strength] = 0.0
            for number in range(_FOLDS):
                others = np.abs(self.samples[fold != number]).max(axis=0)
                scales = self.scales(others, strength)
                errors[strength] += self.error(scales, None if by_row else others, fold == number)
        best = min(errors, key=lambda strength: errors[strength])
        return best, errors[best]

    def scales(self, maxima: Float32Array, strength: float) -> Float32Array | None:
        """Scales of a strength; None for none."""
        return _scales(self.place, maxima, self.weights.peaks, strength) if strength else None

    def error(self, scales: Float32Array | None, maxima: Float32Array | None, rows: npt.NDArray[np.bool_]) -> float:
        """Relative squared error in INT8 on some rows.

        Args:
            scales: float32 `[channels]`, or None.
            maxima: float32 `[channels]`, which codes reach, and the headroom; None gives every row a step of its own.
            rows: Which of the rows.
        """
        values, weights = self.samples[rows], self.weights.rows
        if scales is not None:
            values, weights = values / scales, weights * scales
        if maxima is None:
            step = np.abs(values).max(axis=1, keepdims=True) / np.float32(INT8_MAX)
        else:
            step = np.full((1, 1), HEADROOM * float((maxima / (1.0 if scales is None else scales)).max()) / INT8_MAX)
        rounded = fake_quantize(values, np.maximum(step, LEAST_STEP))
        outputs = rounded @ fake_quantize(weights, row_steps(weights)[:, None]).T
        return float(np.square(outputs - self.exact[rows]).sum()) / self.total
