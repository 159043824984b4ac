"""Bins for magnitudes: 16 to an octave, from the bits of a float32 alone.

The upper bits of a positive float32 are its exponent and the start of its mantissa, so shifting the rest away numbers
the sixteenths of every octave in order. That is exact, the same on every machine, and costs no logarithm. A bin is
between 1/16 and 1/32 of its values wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from orin_rerank.prompt.encoded import Float32Array

__all__ = ["BINS", "bin_counts", "lower_edge", "upper_edge"]

_BITS: Final = 4
_SHIFT: Final = 23 - _BITS
_LEAST_EXPONENT: Final = -16
_OCTAVES: Final = 40
_OFFSET: Final = (127 + _LEAST_EXPONENT) << _BITS

BINS: Final = _OCTAVES << _BITS
"""From 2**-16 to 2**24; the first bin holds everything smaller too, and the last everything larger."""


def bin_counts(magnitudes: Float32Array) -> npt.NDArray[np.int64]:
    """Counts magnitudes by bin.

    Args:
        magnitudes: float32 of any shape; finite and not negative.

    Returns:
        int64 `[BINS]`.
    """
    bits = np.ascontiguousarray(magnitudes, dtype=np.float32).reshape(-1).view(np.int32) >> _SHIFT
    return np.bincount(np.clip(bits - _OFFSET, 0, BINS - 1), minlength=BINS).astype(np.int64)


def lower_edge(index: int) -> float:
    """The least magnitude that a bin is for."""
    return float(np.array((index + _OFFSET) << _SHIFT, dtype=np.int32).view(np.float32))


def upper_edge(index: int) -> float:
    """What the magnitudes of a bin are below."""
    return lower_edge(index + 1)
