"""Rounding to INT8: codes from -127 to 127, one step for each row of weights and one for a whole activation.

Half is rounded to even, as ONNX's Round and QuantizeLinear do, so that what is computed here is what a graph computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import CheckpointError
from orin_rerank.graph.scheme import INT8_MAX
from orin_rerank.graph.weights import checkpoint_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TypeAlias

    from orin_rerank.graph.checkpoint import Checkpoint
    from orin_rerank.graph.places import Place

    Float32Array: TypeAlias = npt.NDArray[np.float32]

__all__ = [
    "LEAST_STEP",
    "fake_quantize",
    "quantize_rows",
    "row_steps",
    "smoothed_pieces",
    "tensor_steps",
    "weight_steps",
]

LEAST_STEP: Final = 2.0**-100
"""Step of a row that is all zeros: a compiler refuses a scale of 0."""


def row_steps(weight: Float32Array) -> Float32Array:
    """The step of each row, with which its largest weight has code 127 or -127.

    Args:
        weight: `[out, in]`, finite.

    Returns:
        float32 `[out]`, at least `LEAST_STEP`.
    """
    # Two reductions rather than one over the magnitudes, which would be a copy of the weights.
    peaks = np.maximum(weight.max(axis=1), -weight.min(axis=1))
    return cast("Float32Array", np.maximum(peaks / np.float32(INT8_MAX), np.float32(LEAST_STEP)))


def quantize_rows(weight: Float32Array, steps: Float32Array) -> npt.NDArray[np.int8]:
    """Codes int8 `[out, in]` of weights `[out, in]`, with a step for each row."""
    codes = np.divide(weight, steps[:, None])
    np.rint(codes, out=codes)
    np.clip(codes, -INT8_MAX, INT8_MAX, out=codes)
    return codes.astype(np.int8)


def fake_quantize(values: Float32Array, step: float | Float32Array) -> Float32Array:
    """Values as they are after rounding to codes and back.

    Args:
        values: Of any shape.
        step: One for all, or an array that broadcasts against them.
    """
    size = np.asarray(step, dtype=np.float32)
    codes = np.rint(values / size)
    return cast("Float32Array", np.clip(codes, -INT8_MAX, INT8_MAX) * size)


def smoothed_pieces(source: Checkpoint, name: str, smoothing: Float32Array | None) -> Iterator[npt.NDArray[np.float32]]:
    """A matrix in pieces of whole rows, float32 `[rows, in]`, its columns multiplied by a place's scales.

    Args:
        source: Holds the matrix.
        name: Its name; axes after the first count as one.
        smoothing: float32 `[in]`, or None.

    Raises:
        CheckpointError: If the matrix is missing or not finite; the item names it.
    """
    for piece in checkpoint_pieces(source, name, source.entry(name).shape):
        rows = piece.reshape(len(piece), -1).astype(np.float32)
        if smoothing is not None:
            rows *= smoothing
        if not np.isfinite(rows).all():
            raise CheckpointError("holds values that are NaN or infinite", item=name)
        yield rows


def tensor_steps(source: Checkpoint, name: str, smoothing: Float32Array | None = None) -> Float32Array:
    """Steps float32 `[out]` of a matrix whose columns are multiplied by `smoothing`; reads it once, in pieces.

    Raises:
        CheckpointError: If the matrix is missing or not finite; the item names it.
    """
    return np.concatenate([row_steps(piece) for piece in smoothed_pieces(source, name, smoothing)])


def weight_steps(
    source: Checkpoint, places: Sequence[Place], smoothing: Mapping[str, npt.NDArray[np.float32]]
) -> dict[str, npt.NDArray[Any]]:
    """Steps of every weight of some places.

    Rows that are divided by the scales of a later place have their steps divided alike, so neither codes nor what
    `SwitchedForm` needs depends on that.

    Args:
        source: The full-precision weights.
        places: Where the weights are.
        smoothing: Scales of a place's channels by its name; a place that is missing is not smoothed.

    Returns:
        For each weight's name float32 `[out]`.

    Raises:
        CheckpointError: If a weight is missing or not finite; the item names it.
    """
    return {name: tensor_steps(source, name, smoothing.get(place.name)) for place in places for name in place.weights}
