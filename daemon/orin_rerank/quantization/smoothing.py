"""Smoothing: scales that even out an activation's channels, at the expense of its weights' columns.

An activation has one step for all channels, so its few large channels decide how coarsely the small ones are rounded.
Dividing channel c by `s_c = max|x_c|^a / max|w_c|^(1 - a)` and multiplying column c of the weights by it leaves the
product as it is (SmoothQuant, arXiv 2211.10438). With strength `a` at 1 all channels reach equally far, and with less
the weights are spared. Scales made so are the same for any two checkpoints that differ by such scales alone.

The strength is searched by the error of the place's output, in INT8, on rows that the channels' maxima were *not* taken
from. On the very rows the strength would nearly always come out as 1: every channel then reaches exactly as far as the
calibration set did, and rows from elsewhere are clipped in one channel or another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import numpy.typing as npt

from orin_rerank.graph.scheme import INT8_MAX
from orin_rerank.quantization.rounding import fake_quantize, row_steps, smoothed_pieces
from orin_rerank.quantization.steps import HEADROOM

if TYPE_CHECKING:
    from typing import TypeAlias

    from orin_rerank.graph.checkpoint import Checkpoint
    from orin_rerank.graph.places import Place
    from orin_rerank.quantization.ranges import PlaceRanges

    Float32Array: TypeAlias = npt.NDArray[np.float32]

__all__ = ["PlaceSmoothing", "PlaceWeights", "read_place_weights", "search_smoothing"]

STRENGTHS: Final = tuple(round(0.1 * i, 1) for i in range(1, 11))
_SEARCH_VALUES: Final = 2 << 20
_FOLDS: Final = 2

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
        error: Relative squared error of the place's output on the sampled rows, activation and weights in INT8.
        plain_error: The same without smoothing.
    """

    strength: float
    scales: Float32Array
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
    """Finds a place's scales.

    Args:
        place: The place; channels that come from one row of its producers get one scale.
        ranges: Of its activation as it is, with sampled rows.
        weights: What `read_place_weights` gives.
    """
    samples = ranges.samples
    exact = samples @ weights.rows.T
    total = float(np.square(exact).sum()) or 1.0

    def error(scales: Float32Array | None, maxima: Float32Array, rows: slice | npt.NDArray[np.bool_]) -> float:
        return _squared_error(samples[rows], exact[rows], weights.rows, scales, maxima) / total

    plain_error = error(None, ranges.maxima, slice(None))
    plain = PlaceSmoothing(0.0, np.ones(place.channels, np.float32), plain_error, plain_error)
    if not place.producers or len(samples) < 2 * _FOLDS:
        return plain
    fold = np.arange(len(samples)) % _FOLDS
    held_out: dict[float, float] = {}
    for strength in (0.0, *STRENGTHS):
        held_out[strength] = 0.0
        for number in range(_FOLDS):
            others = np.abs(samples[fold != number]).max(axis=0)
            scales = _scales(place, others, weights.peaks, strength) if strength else None
            held_out[strength] += error(scales, others, fold == number)
    best = min(held_out, key=lambda strength: held_out[strength])
    if not best:
        return plain
    scales = _scales(place, ranges.maxima, weights.peaks, best)
    return PlaceSmoothing(best, scales, error(scales, ranges.maxima, slice(None)), plain_error)


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


def _squared_error(
    inputs: Float32Array, exact: Float32Array, weights: Float32Array, scales: Float32Array | None, maxima: Float32Array
) -> float:
    """Of outputs `[rows, out]` in INT8, when codes reach the maxima `[channels]` and the headroom."""
    if scales is not None:
        inputs, weights, maxima = inputs / scales, weights * scales, maxima / scales
    step = HEADROOM * float(maxima.max()) / INT8_MAX
    if step == 0:
        return float(np.square(exact).sum())
    rounded = fake_quantize(weights, row_steps(weights)[:, None])
    return float(np.square(fake_quantize(inputs, step) @ rounded.T - exact).sum())
