"""Arrays in a safetensors file that names the SHA-256 of its own contents.

What was measured for minutes is used long after; a file that was cut short or has a flipped bit must not become
scales that are quietly wrong. Any safetensors reader opens these files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from orin_rerank.durable import part_of, sync_folder
from orin_rerank.errors import CalibrationError, InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["read_arrays", "write_arrays"]

_DTYPES: Final[dict[str, np.dtype[Any]]] = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_DIGEST: Final = "sha256"


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Writes a file, which appears whole or not at all.

    Args:
        path: The file; replaced if it is there.
        arrays: float32 or int64.
        metadata: What else the file says of itself.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    begin = 0
    for name, array in arrays.items():
        dtype = _NAMES.get(array.dtype.newbyteorder("<"))
        if dtype is None:
            raise InternalError(f"arrays of {array.dtype} are not written", item=name)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, begin + array.nbytes]}
        begin += array.nbytes
    digest = hashlib.sha256(_canonical(header))
    for array in arrays.values():
        digest.update(_bytes(array))
    header["__metadata__"][_DIGEST] = digest.hexdigest()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = part_of(path)
    try:
        with part.open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for array in arrays.values():
                out.write(_bytes(array))
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_arrays(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Reads a file that `write_arrays` wrote; the arrays cannot be written to.

    Returns:
        The arrays and the metadata.

    Raises:
        CalibrationError: If the file is missing, cut short or altered.
    """
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise CalibrationError(f"cannot be read: {error.strerror}", item=str(path)) from error
    try:
        (length,) = struct.unpack_from("<Q", contents)
        header = json.loads(contents[8 : 8 + length])
        body = memoryview(contents)[8 + length :]
        metadata = {str(key): str(value) for key, value in header["__metadata__"].items()}
        header["__metadata__"] = {key: value for key, value in metadata.items() if key != _DIGEST}
        digest = hashlib.sha256(_canonical(header))
        digest.update(body)
        if digest.hexdigest() != metadata.pop(_DIGEST):
            raise CalibrationError("does not have the contents that its own SHA-256 names", item=str(path))
        arrays = {name: _array(body, entry) for name, entry in header.items() if name != "__metadata__"}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CalibrationError("is cut short, or no file of recorded arrays", item=str(path)) from error
    return arrays, metadata


def _array(body: memoryview, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    begin, end = entry["data_offsets"]
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    if not 0 <= begin <= end <= len(body) or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError("an array's range does not fit its shape")
    return np.frombuffer(body[begin:end], dtype).reshape(shape)


def _bytes(array: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()


def _canonical(header: Mapping[str, Any]) -> bytes:
    """The header without its digest, the same however it is spaced."""
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
