"""What is INT8 in a graph, what is stored as INT8 only, and what stays wide."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

__all__ = ["INT8_MAX", "ROW_SCALE", "Mode", "PlaceScheme", "Scheme", "scale_name"]

INT8_MAX: Final = 127
"""Largest code; -128 is not used, so that codes are symmetric."""


ROW_SCALE: Final = 1 / INT8_MAX
"""The step of an activation whose rows are divided by their largest magnitudes first."""


class Mode(enum.Enum):
    """How the products at a place are computed."""

    INT8 = "int8"
    """Activation and weights are INT8, sums are integers."""
    WEIGHTS = "weights"
    """Weights are stored as INT8 and widened before the product; the activation is never rounded."""
    WIDE = "wide"
    """Floating point throughout."""


@dataclass(frozen=True, slots=True)
class PlaceScheme:
    """How one place is computed.

    Attributes:
        mode: In what.
        scale: Size of an activation's INT8 step, after smoothing; None unless the mode is INT8.
        by_row: Whether every row is divided by its largest magnitude before it is rounded, and its products are
            multiplied by that after: a row with a few values far beyond all others then costs no other row its
            precision, and none is ever clipped. The scale is `ROW_SCALE` then.
    """

    mode: Mode
    scale: float | None = None
    by_row: bool = False

    def __post_init__(self) -> None:
        if (self.mode is Mode.INT8) != (self.scale is not None):
            raise InternalError("a place has a scale if and only if it is INT8")
        if self.by_row and self.scale != ROW_SCALE:
            raise InternalError(f"rows that reach 1 have a step of {ROW_SCALE}, not {self.scale}")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How every place of a model is computed.

    Attributes:
        places: By the place's name.
        embedding: Whether the embedding is stored as INT8, with a scale a row.
        smoothing: For a place's name, float32 `[channels]`: what its channels are divided by, and the columns of its
            weights multiplied by; a place that is not in here is left as it is.
    """

    places: Mapping[str, PlaceScheme]
    embedding: bool = False
    smoothing: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)


def scale_name(weight: str) -> str:
    """Name of the tensor that holds a weight's scales, float32 `[out]`."""
    return f"{weight}.scale"
