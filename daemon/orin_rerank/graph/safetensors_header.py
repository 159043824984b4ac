"""The header of a safetensors file: which tensors it holds, and where.

The format is an 8-byte little-endian header length, a JSON header with dtype, shape and byte range of every tensor, and
the bytes, which the tensors fill from the first to the last without overlap. All of that is checked here, before a
tensor is read, so that a file that was cut short or put together wrongly is refused in a second and not after minutes.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TensorEntry", "read_header"]

_MAX_HEADER: Final = 100_000_000  # the format's own limit
_LFS_POINTER: Final = b"version https://git-lfs"


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

    @property
    def values(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Reads the header of a file and compares it with the file's size.

    Raises:
        CheckpointError: If the file is missing, truncated, longer than its tensors or malformed, or if it is a pointer
            in place of a large file; the item names file and tensor.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            start = handle.read(8)
            if start + handle.read(len(_LFS_POINTER) - 8) == _LFS_POINTER:
                raise CheckpointError(
                    "is a Git LFS pointer, not the file itself: `git lfs pull` fetches it", item=str(file)
                )
            (length,) = struct.unpack("<Q", start)
            if length > min(_MAX_HEADER, size - 8):
                raise CheckpointError("the file is truncated or not in safetensors format", item=str(file))
            handle.seek(8)
            header = json.loads(handle.read(length), object_pairs_hook=_once)
    except FileNotFoundError:
        raise CheckpointError("the checkpoint lacks this file", item=str(file)) from None
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"not in safetensors format: {error}", item=str(file)) from None
    if not isinstance(header, dict):
        raise CheckpointError("not in safetensors format: the header is no object", item=str(file))
    header.pop("__metadata__", None)
    entries = {name: _entry(file, name, value, 8 + length) for name, value in header.items()}
    _check_ranges(file, entries, 8 + length, size)
    return entries


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON that names nothing twice; which of two would count is anyone's guess."""
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} stands there twice")
    return value


def _entry(file: Path, name: str, value: Any, data: int) -> TensorEntry:
    try:
        dtype, shape = str(value["dtype"]), tuple(map(_whole, value["shape"]))
        begin, end = (data + _whole(offset) for offset in value["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError("malformed tensor entry", item=f"{file}: {name}") from None
    if not data <= begin <= end or min(shape, default=0) < 0:
        raise CheckpointError("its byte range or shape is impossible", item=f"{file}: {name}")
    return TensorEntry(file, dtype, shape, begin, end)


def _whole(value: Any) -> int:
    """A number that was written as one: of 64.5 none is meant."""
    if type(value) is not int:
        raise TypeError(value)
    return value


def _check_ranges(file: Path, entries: dict[str, TensorEntry], data: int, size: int) -> None:
    """Tensors fill the file without gaps, as the format has it."""
    reached = data
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > size:
            raise CheckpointError(
                f"the file is truncated: this tensor ends at byte {entry.end:,} of {size:,}", item=f"{file}: {name}"
            )
        if entry.begin != reached:
            what = "overlaps the tensor before it" if entry.begin < reached else "does not follow the tensor before it"
            raise CheckpointError(f"its byte range {what}", item=f"{file}: {name}")
        reached = entry.end
    if reached != size:
        raise CheckpointError(f"{size - reached:,} bytes follow the last tensor", item=str(file))
