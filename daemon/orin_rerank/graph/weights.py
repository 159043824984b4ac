"""The weights of a bundle: one safetensors file that both graphs point into.

The file keeps the checkpoint's tensor names, so `transformers` loads it as it is. Tensors lie in the order in which a
layer uses them, which puts the query, key and value projections side by side, and gate and up likewise: since rows are
output features, a merged projection is simply a longer range of the same bytes. A graph's initializers are ONNX
external data with an offset into this file, so no dialect and no merging needs a second copy.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from orin_rerank.errors import InternalError
from orin_rerank.graph.narrowing import STORED_TYPES, Narrowing, narrowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from orin_rerank.graph.checkpoint import Checkpoint

__all__ = [
    "MARGIN_ROW",
    "CheckpointTensors",
    "TensorSource",
    "WeightFile",
    "WeightSlice",
    "WeightSpec",
    "checkpoint_pieces",
]

MARGIN_ROW: Final = "orin_rerank.margin_row"
"""Name of the head's one vector: the row of "yes" minus the row of "no", float32 `[hidden]`."""

_ALIGNMENT: Final = 64
_PIECE_VALUES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A tensor of the file.

    Attributes:
        name: Its name, here and in the checkpoint.
        dtype: F16, F32 or I8, as it is stored.
        shape: Its dimensions, which the checkpoint must agree with.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * STORED_TYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class WeightSlice:
    """A range of the file that a graph uses as one tensor."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class TensorSource(Protocol):
    """Where a weight file gets its contents from."""

    def pieces(self, spec: WeightSpec) -> Iterator[npt.NDArray[Any]]:
        """A tensor in pieces of whole rows, in order.

        They are int8 for I8; else floating point of any width, or uint16 for BF16 as it is stored.

        Raises:
            CheckpointError: If it is missing or misshapen; the item names it.
        """


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointTensors:
    """A checkpoint's tensors as they are, and the head reduced to one row.

    Attributes:
        checkpoint: Holds every tensor but `MARGIN_ROW`.
        margin_row: float32 `[hidden]`, for `MARGIN_ROW`.
    """

    checkpoint: Checkpoint
    margin_row: npt.NDArray[np.float32]

    def pieces(self, spec: WeightSpec) -> Iterator[npt.NDArray[Any]]:
        """A tensor in pieces."""
        if spec.name == MARGIN_ROW:
            return iter([self.margin_row])
        rows = _piece_rows(self.checkpoint, spec.name, spec.shape)
        return (self.checkpoint.read_stored(spec.name, begin, end) for begin, end in rows)


class WeightFile:
    """Layout and writing of the file; the layout depends on names and shapes alone, never on the data.

    Args:
        name: File name inside the bundle.
        specs: The tensors, in order.

    Attributes:
        header: What the file begins with.
        data_bytes: Bytes of tensors, which follow.
    """

    def __init__(self, name: str, specs: Iterable[WeightSpec]) -> None:
        self.name = name
        self.specs = tuple(specs)
        self._offsets: dict[str, int] = {}
        begin = 0
        for spec in self.specs:
            if spec.name in self._offsets:
                raise InternalError("a tensor stands in the layout twice", item=spec.name)
            self._offsets[spec.name] = begin
            begin += spec.nbytes
        self.data_bytes = begin
        self._by_name = {spec.name: spec for spec in self.specs}
        self.header = self._make_header()

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def slice(self, *names: str, shape: tuple[int, ...] | None = None) -> WeightSlice:
        """Finds one tensor, or several that lie side by side as one, joined along their first axis.

        Args:
            names: The tensors, in the file's order.
            shape: Another shape for the same numbers.
        """
        parts = [self._by_name[name] for name in names]
        first = parts[0]
        end = self._offsets[first.name]
        for part in parts:
            if self._offsets[part.name] != end or part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
                raise InternalError("the tensors do not lie side by side", item=part.name)
            end += part.nbytes
        joined = (sum(part.shape[0] for part in parts), *first.shape[1:])
        begin = self._offsets[first.name]
        return WeightSlice(first.dtype, shape or joined, len(self.header) + begin, end - begin)

    def write(self, folder: Path, source: TensorSource, progress: Callable[[int, int], None]) -> dict[str, int]:
        """Writes tensor by tensor; the file appears under its name only when it is whole.

        Args:
            folder: Where to write.
            source: Holds every tensor.
            progress: Called with bytes written and bytes in all.

        Returns:
            How many values of which tensor exceeded the stored type and were clipped to its largest; empty as a rule.

        Raises:
            CheckpointError: If a tensor is missing, misshapen or not finite; the item names it.
        """
        clipped: dict[str, int] = {}
        path = folder / self.name
        part = folder / f".{self.name}.part"
        written = 0
        try:
            with part.open("wb") as out:
                out.write(self.header)
                for spec in self.specs:
                    total = Narrowing()
                    for piece, lost in self.stored_pieces(source, spec):
                        out.write(piece.data)
                        total += lost
                    if total.clipped:
                        clipped[spec.name] = total.clipped
                    written += spec.nbytes
                    progress(written, self.data_bytes)
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return clipped

    def stored_pieces(self, source: TensorSource, spec: WeightSpec) -> Iterator[tuple[npt.NDArray[Any], Narrowing]]:
        """A tensor as the file stores it, in pieces, each with what that lost.

        Raises:
            CheckpointError: If it is missing, misshapen or not finite; the item names it.
        """
        return (narrowed(values, spec.dtype, spec.name) for values in source.pieces(spec))

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self.header) + self.data_bytes

    def _make_header(self) -> bytes:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for spec in self.specs:
            begin = self._offsets[spec.name]
            header[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [begin, begin + spec.nbytes],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % _ALIGNMENT)
        return struct.pack("<Q", len(text)) + text


def checkpoint_pieces(
    checkpoint: Checkpoint, name: str, shape: tuple[int, ...]
) -> Iterator[npt.NDArray[np.floating[Any]]]:
    """A checkpoint's tensor in pieces of bounded size, whole rows each.

    Raises:
        CheckpointError: If it is missing, misshapen or cannot be read.
    """
    for begin, end in _piece_rows(checkpoint, name, shape):
        yield checkpoint.read(name, begin, end)


def _piece_rows(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """First row of each piece and one past its last, once the tensor is known to be there."""
    checkpoint.entry(name, shape)
    step = max(1, _PIECE_VALUES // math.prod(shape[1:]))
    return [(begin, min(begin + step, shape[0])) for begin in range(0, shape[0], step)]
