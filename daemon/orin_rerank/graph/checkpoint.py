"""A checkpoint's tensors, read one at a time from one safetensors file or from shards with an index.

Headers are read when the checkpoint is opened, and compared with each other and with the index. Tensors are read when
they are asked for, whole or in part, and nothing else costs memory; no file is mapped. BF16, which numpy lacks, is
widened to float32 exactly, or handed over as it is stored.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import CheckpointError
from orin_rerank.graph.safetensors_header import TensorEntry, read_header

__all__ = ["Checkpoint", "TensorEntry", "widened"]

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


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
            CheckpointError: If a file is missing, truncated or malformed, or if index and shards disagree; the item
                names file or tensor.
        """
        single, index = folder / _SINGLE, folder / _INDEX
        if single.exists():  # where both are there, transformers takes the single file too
            return cls(folder, read_header(single))
        if not index.exists():
            raise _no_weights(folder)
        return cls(folder, _read_shards(folder, index))

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    @property
    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        return sorted({entry.file for entry in self.entries.values()})

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
            raise CheckpointError(
                f"dtype {entry.dtype} is not supported; a quantised checkpoint has to be exported from its original",
                item=name,
            )
        if entry.end - entry.begin != entry.values * _DTYPES[entry.dtype].itemsize:
            raise CheckpointError("the byte range does not fit the shape", item=f"{entry.file}: {name}")
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
        return widened(self.read_stored(name, begin, end))

    def read_stored(self, name: str, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
        """Reads a tensor or a part of it as it is stored: BF16 as uint16, the upper halves of float32 numbers.

        Args and errors are those of `read`.
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
        return stored


def widened(stored: npt.NDArray[Any]) -> npt.NDArray[np.floating[Any]]:
    """What `Checkpoint.read_stored` gives, with BF16 as float32."""
    if stored.dtype != _DTYPES["BF16"]:
        return stored
    wide = stored.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _read_shards(folder: Path, index: Path) -> dict[str, TensorEntry]:
    try:
        weight_map = {str(k): str(v) for k, v in json.loads(index.read_text("utf-8"))["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the shard index cannot be read: {error!r}", item=str(index)) from None
    entries: dict[str, TensorEntry] = {}
    for shard in sorted(set(weight_map.values())):
        if PurePath(shard).name != shard:
            raise CheckpointError("the shard index names a file outside its folder", item=f"{index}: {shard}")
        for name, entry in read_header(folder / shard).items():
            if name in entries:
                raise CheckpointError(f"stands in {entries[name].file.name} too", item=f"{folder / shard}: {name}")
            if weight_map.get(name, shard) != shard:
                raise CheckpointError(
                    f"the shard index says that it is in {weight_map[name]}", item=f"{folder / shard}: {name}"
                )
            entries[name] = entry
    missing = sorted(weight_map.keys() - entries.keys())
    if missing:
        name = missing[0]
        raise CheckpointError(f"is not in {weight_map[name]}, where the shard index says that it is", item=name)
    return entries


def _no_weights(folder: Path) -> CheckpointError:
    """What is wrong with a folder that has neither file: two mistakes are common enough to be recognised."""
    if any(folder.glob("model-*-of-*.safetensors")):
        return CheckpointError("there are shards, but this index of them is missing", item=str(folder / _INDEX))
    if any(folder.glob("pytorch_model*.bin*")):
        return CheckpointError("holds pickled weights only: save them as safetensors", item=str(folder))
    return CheckpointError("the checkpoint lacks this file", item=str(folder / _SINGLE))
