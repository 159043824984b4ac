"""Whether packages are being installed, which is no time to reboot a machine."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths

__all__ = ["are_changing"]

LOCKS: Final = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock")
"""apt holds the first as long as it is at work, dpkg both."""

_FLOCK: Final = struct.Struct("@hhqqi")
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


def are_changing(paths: BoardPaths) -> bool:
    """Whether apt or dpkg is at work; where neither is known, nothing is.

    Args:
        paths: The machine.
    """
    return any(_is_locked(paths, lock) for lock in LOCKS)


def _is_locked(paths: BoardPaths, lock: str) -> bool:
    """Whether another process holds a lock on a file; it is only asked, so that nobody has to wait for us."""
    try:
        handle = os.open(paths.at(lock), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(handle)
