"""Claiming a Unix socket's path: a dead daemon's file is replaced, a living one's never stolen.

gRPC itself unlinks whatever socket lies at the path before it binds, so that the question must be settled before. A
lock file beside the socket settles it, since the kernel lets go of the lock however a daemon dies, and two daemons that
start at once cannot both think the path free; a connection is tried too, for a server that is not ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from typing import TYPE_CHECKING

from orin_rerank.errors import SettingsError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["SocketClaim"]


class SocketClaim:
    """Holds a socket path from construction to `release`.

    Args:
        path: Where the socket will be; its directory is created where it is missing.

    Raises:
        SettingsError: If something that is no socket lies there, or the directory cannot be used.
        UnavailableError: If another daemon answers there, which may be about to end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(f"cannot use {path.parent}: {error.strerror}", item="socket") from error
        try:
            self._take()
        except BaseException:
            os.close(self._lock)
            raise

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UnavailableError(f"another daemon answers at {self._path}", item="socket") from error
        try:
            mode = self._path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise SettingsError(f"{self._path} exists and is no socket; it is left alone", item="socket")
        if _answers(self._path):
            raise UnavailableError(f"another daemon answers at {self._path}", item="socket")
        self._path.unlink()

    @contextlib.contextmanager
    def private(self) -> Iterator[None]:
        """Within it, files are created for the daemon's own user alone: nobody connects before `open_to`."""
        before = os.umask(0o177)
        try:
            yield
        finally:
            os.umask(before)

    def open_to(self, mode: int) -> None:
        """Gives the socket its permission bits."""
        self._path.chmod(mode)

    def release(self) -> None:
        """Removes the socket and lets go of the path."""
        self._path.unlink(missing_ok=True)
        os.close(self._lock)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fsencode(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a full backlog or no permission: somebody is there
        return True
