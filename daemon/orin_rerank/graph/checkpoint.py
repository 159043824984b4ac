"""A checkpoint's tensors, read one at a time from safetensors files.

The file format is an 8-byte little-endian header length, a JSON header with dtype, shape and byte range of every
tensor, and the bytes. Tensors are read when they are asked for, whole or in part, and nothing else costs memory; BF16,
which numpy lacks, is widened to float32 exactly.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Checkpoint", "TensorEntry"]

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_MAX_HEADER: Final = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies.

    Attributes:
        file: Its safetensors file.
        dtype: As the format names it, such as BF16.
        shape: Its dimensions.
        begin: First byte in the file.
        end: One past its last byte in the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(slots=True)
class Checkpoint:
    """The tensors of a checkpoint folder, by name.

    Attributes:
        folder: Where it lies.
        entries: Where each tensor lies.
        bytes_read: Bytes of tensors read so far, for accounts of what a conversion costs.
    """

    folder: Path
    entries: dict[str, TensorEntry]
    bytes_read: int = 0

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Reads the headers of `model.safetensors`, or of every shard that its index names.

        Raises:
            CheckpointError: If a file is missing, truncated or malformed; the item names it.
        """
        single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        if single.exists() or not index.exists():  # where both are there, transformers takes the single file too
            return cls(folder, _read_header(single))
        try:
            weight_map = {str(k): str(v) for k, v in json.loads(index.read_text("utf-8"))["weight_map"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the shard index cannot be read: {error!r}", item=str(index)) from None
        entries: dict[str, TensorEntry] = {}
        for shard in sorted(set(weight_map.values())):
            entries.update(_read_header(folder / shard))
        missing = sorted(set(weight_map) - set(entries))
        if missing:
            raise CheckpointError("the shard index names a tensor that no shard holds", item=missing[0])
        return cls(folder, entries)

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def entry(self, name: str, shape: tuple[int, ...] | None = None) -> TensorEntry:
        """Finds a tensor and checks its shape and that its dtype can be read.

        Raises:
            CheckpointError: If it is missing, of another shape, or of an integer or 8-bit dtype.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise CheckpointError("the checkpoint lacks this tensor", item=name)
        if shape is not None and entry.shape != shape:
            raise CheckpointError(f"has shape {list(entry.shape)}, not {list(shape)}", item=name)
        if entry.dtype not in _DTYPES:
            raise CheckpointError(f"dtype {entry.dtype} is not supported", item=name)
        _check_size(entry, name)
        return entry

    def read(self, name: str, begin: int = 0, end: int | None = None) -> npt.NDArray[np.floating[Any]]:
        """Reads a tensor or a part of it: as it is stored, or widened to float32 where it is stored as BF16.

        Args:
            name: The tensor's.
            begin: First row, along the first axis.
            end: One past the last row; None means to the end.

        Raises:
            CheckpointError: If it is missing or cannot be read.
        """
        entry = self.entry(name)
        rows, *inner = entry.shape or (1,)
        begin, end, _ = slice(begin, end).indices(rows)
        width, dtype = math.prod(inner), _DTYPES[entry.dtype]
        try:
            stored = np.fromfile(
                entry.file, dtype, (end - begin) * width, offset=entry.begin + begin * width * dtype.itemsize
            ).reshape(end - begin, *inner)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot be read: {error}", item=f"{entry.file}: {name}") from error
        self.bytes_read += stored.nbytes
        if entry.dtype == "BF16":
            wide = stored.astype(np.uint32)
            wide <<= np.uint32(16)
            return wide.view(np.float32)
        return stored


def _check_size(entry: TensorEntry, name: str) -> None:
    """A tensor of a known dtype has the bytes that its shape asks for."""
    if entry.end - entry.begin != math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize:
        raise CheckpointError("the byte range does not fit the shape", item=f"{entry.file}: {name}")


def _read_header(file: Path) -> dict[str, TensorEntry]:
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > min(_MAX_HEADER, size - 8):
                raise CheckpointError("the file is truncated or not in safetensors format", item=str(file))
            header = json.loads(handle.read(length))
    except FileNotFoundError:
        raise CheckpointError("the checkpoint lacks this file", item=str(file)) from None
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"not in safetensors format: {error}", item=str(file)) from None
    if not isinstance(header, dict):
        raise CheckpointError("not in safetensors format: the header is no object", item=str(file))
    entries = {}
    for name, value in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = str(value["dtype"]), tuple(int(n) for n in value["shape"])
            begin, end = (8 + length + int(offset) for offset in value["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise CheckpointError("malformed tensor entry", item=f"{file}: {name}") from None
        if not 8 + length <= begin <= end <= size or min(shape, default=0) < 0:
            raise CheckpointError("the file is truncated or its header is wrong", item=f"{file}: {name}")
        entries[name] = TensorEntry(file, dtype, shape, begin, end)
    return entries
