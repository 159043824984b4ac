"""A cache that forgets what was used longest ago once it holds too many bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Generic, TypeVar

import numpy.typing as npt

__all__ = ["ArrayCache"]

ArrayT = TypeVar("ArrayT", bound=npt.NDArray[Any])


class ArrayCache(Generic[ArrayT]):
    """Arrays by digest, safe to use from several threads. Arrays in it are never written to.

    Args:
        max_bytes: Most bytes to hold; an array larger than this is not taken.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._arrays: OrderedDict[bytes, ArrayT] = OrderedDict()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return self._bytes

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def get(self, digest: bytes) -> ArrayT | None:
        """Finds an array and marks it as used."""
        with self._lock:
            array = self._arrays.get(digest)
            if array is not None:
                self._arrays.move_to_end(digest)
            return array

    def put(self, digest: bytes, array: ArrayT) -> None:
        """Takes an array, forgetting others to make room."""
        if array.nbytes > self.max_bytes:
            return
        with self._lock:
            previous = self._arrays.pop(digest, None)
            if previous is not None:
                self._bytes -= previous.nbytes
            while self._bytes + array.nbytes > self.max_bytes:
                _, oldest = self._arrays.popitem(last=False)
                self._bytes -= oldest.nbytes
            self._arrays[digest] = array
            self._bytes += array.nbytes
