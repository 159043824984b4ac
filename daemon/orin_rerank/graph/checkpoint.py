"""A checkpoint's tensors, read one at a time from safetensors files.

The file format is an 8-byte little-endian header length, a JSON header with dtype, shape and byte range of every
tensor, and the bytes. Files are mapped, so a tensor costs memory only while it is used; BF16, which numpy lacks, is
widened to float32 exactly.
"""

from __future__ import annotations

import json
import mmap
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Checkpoint", "TensorEntry"]

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_MAX_HEADER = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies.

    Attributes:
        file: Its safetensors file.
        dtype: As the format names it: F64, F32, F16 or BF16.
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
    """The tensors of a checkpoint folder, by name."""

    folder: Path
    entries: dict[str, TensorEntry]
    _maps: dict[Path, mmap.mmap] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Reads the headers of `model.safetensors`, or of every shard that its index names.

        Raises:
            CheckpointError: If a file is missing, truncated or malformed; the item names it.
        """
        index = folder / "model.safetensors.index.json"
        if not index.exists():
            return cls(folder, _read_header(folder / "model.safetensors"))
        try:
            weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"the shard index cannot be read: {error}", item=str(index)) from None
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
        """Finds a tensor and checks its shape.

        Raises:
            CheckpointError: If it is missing or of another shape.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise CheckpointError("the checkpoint lacks this tensor", item=name)
        if shape is not None and entry.shape != shape:
            raise CheckpointError(f"has shape {list(entry.shape)}, not {list(shape)}", item=name)
        return entry

    def read(self, name: str) -> npt.NDArray[np.floating[Any]]:
        """Returns a tensor: a view of the file for F64, F32 and F16, a float32 copy for BF16.

        Raises:
            CheckpointError: If it is missing.
        """
        entry = self.entry(name)
        stored = np.frombuffer(
            self._map(entry.file),
            dtype=_DTYPES[entry.dtype],
            offset=entry.begin,
            count=(entry.end - entry.begin) // np.dtype(_DTYPES[entry.dtype]).itemsize,
        )
        stored = stored.reshape(entry.shape)
        if entry.dtype == "BF16":
            return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return stored

    def close(self) -> None:
        """Unmaps the files; arrays that `read` returned must be gone."""
        for mapping in self._maps.values():
            mapping.close()
        self._maps.clear()

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as handle:
                self._maps[file] = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[file]


def _read_header(file: Path) -> dict[str, TensorEntry]:
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > min(_MAX_HEADER, size - 8):
                raise CheckpointError("the file is truncated or not in safetensors format", item=str(file))
            header: dict[str, Any] = json.loads(handle.read(length))
    except FileNotFoundError:
        raise CheckpointError("the checkpoint lacks this file", item=str(file)) from None
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"not in safetensors format: {error}", item=str(file)) from None
    entries = {}
    for name, value in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = str(value["dtype"]), tuple(int(n) for n in value["shape"])
            begin, end = (8 + length + int(offset) for offset in value["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise CheckpointError("malformed tensor entry", item=f"{file}: {name}") from None
        if dtype not in _DTYPES:
            raise CheckpointError(f"dtype {dtype} is not supported", item=f"{file}: {name}")
        if end > size or end - begin != int(np.prod(shape)) * np.dtype(_DTYPES[dtype]).itemsize:
            raise CheckpointError("the file is truncated or its header is wrong", item=f"{file}: {name}")
        entries[name] = TensorEntry(file, dtype, shape, begin, end)
    return entries
