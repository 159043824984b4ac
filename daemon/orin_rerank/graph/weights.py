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

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import CheckpointError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

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

_NUMPY: Final[dict[str, np.dtype[Any]]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "I8": np.dtype("i1")}
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
        return math.prod(self.shape) * _NUMPY[self.dtype].itemsize


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
        """A tensor in pieces of whole rows, in order; int8 for I8, else floating point of any width.

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

    def pieces(self, spec: WeightSpec) -> Iterator[npt.NDArray[np.floating[Any]]]:
        """A tensor in pieces."""
        if spec.name == MARGIN_ROW:
            return iter([self.margin_row])
        return checkpoint_pieces(self.checkpoint, spec.name, spec.shape)


class WeightFile:
    """Layout and writing of the file; the layout depends on names and shapes alone, never on the data.

    Args:
        name: File name inside the bundle.
        specs: The tensors, in order.
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
        self._data_bytes = begin
        self._by_name = {spec.name: spec for spec in self.specs}
        self._header = self._make_header()

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
        return WeightSlice(first.dtype, shape or joined, len(self._header) + begin, end - begin)

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
        try:
            with part.open("wb") as out:
                out.write(self._header)
                written = 0
                for spec in self.specs:
                    count = 0
                    for values in source.pieces(spec):
                        count += _write_values(out.write, spec, values)
                    if count:
                        clipped[spec.name] = count
                    written += spec.nbytes
                    progress(written, self._data_bytes)
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return clipped

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
    checkpoint.entry(name, shape)
    step = max(1, _PIECE_VALUES // math.prod(shape[1:]))
    for begin in range(0, shape[0], step):
        yield checkpoint.read(name, begin, begin + step)


def _write_values(write: Callable[[bytes], Any], spec: WeightSpec, values: npt.NDArray[Any]) -> int:
    """Writes a piece of a tensor; returns how many values were clipped."""
    if not np.isfinite(values).all():
        raise CheckpointError("holds values that are NaN or infinite", item=spec.name)
    clipped = 0
    target = _NUMPY[spec.dtype]
    if values.dtype.itemsize > target.itemsize:
        largest = float(np.finfo(target).max)
        clipped = int(np.count_nonzero(np.abs(values) > largest))
        if clipped:
            values = np.clip(values, -largest, largest)
    write(np.ascontiguousarray(values, dtype=target).tobytes())
    return clipped
