"""Numbers of a checkpoint, brought to the type that a weight file stores, with an account of what that loses.

BF16 has the range of float32, float16 has not: what is beyond 65504 is clipped to it, and what is nearer to zero than
2**-25 becomes zero. Both are counted. In between float16 holds every BF16 number from 2**-17 up exactly, and smaller
ones to 2**-25, which no product of weights of a usual size can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import CheckpointError
from orin_rerank.graph.checkpoint import widened

__all__ = ["STORED_TYPES", "Narrowing", "narrowed"]

STORED_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "I8": np.dtype("i1"),
}
_BF16: Final = np.dtype("<u2")
_SIGN: Final = np.uint16(0x8000)
_MAGNITUDE: Final = np.uint16(0x7FFF)
_INFINITE: Final = 0x7F80
_FIRST_BEYOND: Final = 0x4780
"""65536, the first BF16 number that float16 cannot hold."""
_FIRST_NORMAL: Final = 0x3880
"""2**-14, from which on float16 has as many digits as ever, more than BF16 has."""
_NORMAL: Final = np.uint16(_FIRST_BEYOND - _FIRST_NORMAL)
_REBIAS: Final = np.uint16((127 - 15) << 10 & 0xFFFF)  # as good as the whole, since it is subtracted modulo 2**16
_BLOCK: Final = 1 << 16
"""Numbers at a time, so that what is computed of them stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What storing numbers in a narrower type lost.

    Attributes:
        values: How many numbers there are.
        clipped: Those beyond the type's largest number, which they became.
        vanished: Those too small for the type, which became zero.
    """

    values: int = 0
    clipped: int = 0
    vanished: int = 0

    def __add__(self, other: Narrowing) -> Narrowing:
        return Narrowing(self.values + other.values, self.clipped + other.clipped, self.vanished + other.vanished)


def narrowed(values: npt.NDArray[Any], dtype: str, name: str) -> tuple[npt.NDArray[Any], Narrowing]:
    """Brings numbers to a type.

    Args:
        values: int8 for I8; else floating point of any width, or uint16 for BF16 as it is stored.
        dtype: F16, F32 or I8.
        name: Whose they are, for errors.

    Returns:
        The numbers in that type, contiguous, and what that lost.

    Raises:
        CheckpointError: If one is NaN or infinite.
    """
    target = STORED_TYPES[dtype]
    if values.dtype == _BF16 and target == STORED_TYPES["F16"]:
        return _from_bf16(values, name)
    values = widened(values)
    if not np.isfinite(values).all():
        raise _not_finite(name)
    clipped = vanished = 0
    if values.dtype.itemsize > target.itemsize:
        largest = float(np.finfo(target).max)
        clipped = int(np.count_nonzero(np.abs(values) > largest))
        nonzero = np.count_nonzero(values)
        values = (np.clip(values, -largest, largest) if clipped else values).astype(target)
        vanished = int(nonzero - np.count_nonzero(values))
    return np.ascontiguousarray(values, dtype=target), Narrowing(values.size, clipped, vanished)


def _from_bf16(stored: npt.NDArray[np.uint16], name: str) -> tuple[npt.NDArray[Any], Narrowing]:
    """BF16 to float16 in integers, five times as fast as by way of float32.

    Between 2**-14 and 65504 the digits move up by three places and the exponent gets another bias. The rest, well below
    a hundredth of trained weights, is looked up in a table of all BF16 numbers; only there can anything be lost.
    """
    bits = stored.reshape(-1)
    halves = np.empty_like(bits)
    rare: list[npt.NDArray[np.uint16]] = [np.empty(0, np.uint16)]
    for begin in range(0, bits.size, _BLOCK):
        block, half = bits[begin : begin + _BLOCK], halves[begin : begin + _BLOCK]
        np.bitwise_and(block, _MAGNITUDE, out=half)
        others = np.flatnonzero(half - np.uint16(_FIRST_NORMAL) >= _NORMAL)  # smaller ones wrap around
        half <<= np.uint16(3)
        half -= _REBIAS
        half |= block & _SIGN
        rare.append(block[others])
        half[others] = _table()[rare[-1]]
    others = np.concatenate(rare)
    magnitude = others & _MAGNITUDE
    if magnitude.max(initial=0) >= _INFINITE:
        raise _not_finite(name)
    clipped = int(np.count_nonzero(magnitude >= _FIRST_BEYOND))
    vanished = int(np.count_nonzero(magnitude) - np.count_nonzero(_table()[magnitude]))
    return halves.view(STORED_TYPES["F16"]).reshape(stored.shape), Narrowing(bits.size, clipped, vanished)


@cache
def _table() -> npt.NDArray[np.uint16]:
    """The bits of the float16 number, clipped, for the bits of every BF16 number."""
    wide = widened(np.arange(1 << 16, dtype=_BF16))
    largest = float(np.finfo(np.float16).max)
    finite = np.nan_to_num(wide, nan=0.0, posinf=largest, neginf=-largest)
    halves: npt.NDArray[np.uint16] = np.clip(finite, -largest, largest).astype("<f2").view(np.uint16)
    return halves


def _not_finite(name: str) -> CheckpointError:
    return CheckpointError("holds values that are NaN or infinite", item=name)
