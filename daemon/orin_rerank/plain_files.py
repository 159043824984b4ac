"""Files and folders that others use, too: read so that nobody waits for ever, held so that the others wait."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["holding", "nearest_folder", "read_plain_file"]

_POLL_S: Final = 0.01


def read_plain_file(file: Path, limit: int, *, follow: bool = True) -> bytes | None:
    """Reads a file, unless it is a device, a pipe or the like, of which one never knows when it ends.

    Args:
        file: The file.
        limit: Most bytes that are read.
        follow: Whether it may be a link. Root must not be led elsewhere from a folder that is another's.

    Returns:
        Its first bytes; None where it is no plain file.

    Raises:
        IsADirectoryError: If it is a folder.
        OSError: If it cannot be read.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(handle, "rb") as stream:
        return stream.read(limit) if stat.S_ISREG(os.fstat(handle).st_mode) else None


def nearest_folder(path: Path) -> Path:
    """A path, or the first above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


@contextlib.contextmanager
def holding(folder: Path, wait_s: float) -> Iterator[bool]:
    """Keeps other processes that do the same from a folder meanwhile.

    Args:
        folder: The folder.
        wait_s: How long to wait for another that holds it.

    Returns:
        The context's value: whether it is held.

    Raises:
        OSError: If the folder cannot be opened, or its file system knows no locks.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _is_locked_within(handle, wait_s)
    finally:
        os.close(handle)


def _is_locked_within(handle: int, wait_s: float) -> bool:
    end = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
