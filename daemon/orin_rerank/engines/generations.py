"""Folders that follow each other in one place, of which one is in service: the old one or the new one, whatever stops.

::

    <place>/
        current -> 2-1f0c9a41d2e7      what is in service; replaced by renaming another link over it
        previous -> 1-77ab03c5e90d     what was; kept because a process may be reading it
        1-77ab03c5e90d/  2-1f0c9a41d2e7/
        .staging-<name>/               being written
        .lock                          held while something is, and while the place is removed

What is written goes into a staging folder. Its last step into service is one rename of a link, so whenever the machine
or the process stops, what is in service is the old folder or the new one. What an interruption leaves is cleared away
by the next to write here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
from typing import TYPE_CHECKING, Final

from orin_rerank.durable import replace_link, sync_folder, sync_tree
from orin_rerank.errors import InternalError, StoreBusyError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Generations"]

_CURRENT: Final = "current"
_PREVIOUS: Final = "previous"
_STAGING: Final = ".staging-"
_LOCK: Final = ".lock"
_GENERATION: Final = re.compile(r"(\d+)-[0-9a-f]{12}")
_ATTEMPTS: Final = 100
"""How often a place is made again that others remove; each time they were done with it."""


class Generations:
    """The folders of one place. Many processes may read while one writes.

    Args:
        place: Where they are; made when first written to.
    """

    def __init__(self, place: Path) -> None:
        self.place = place

    @property
    def current(self) -> Path | None:
        """The folder in service, None if none is. It may be missing, and nothing about it has been verified.

        Raises:
            StoreError: If the place cannot be read.
        """
        return _target(self.place / _CURRENT)

    @property
    def previous(self) -> Path | None:
        """The folder that was in service before, likewise."""
        return _target(self.place / _PREVIOUS)

    @contextlib.contextmanager
    def staging(self, name: str, *, resume: bool = False) -> Iterator[Path]:
        """Lends a folder to write into.

        Args:
            name: Tells it from others.
            resume: Whether to lend what an earlier context of this name left, and to leave what this one does not
                install. Otherwise the folder is empty at first and gone at the end.

        Raises:
            StoreBusyError: If another process is writing here.
            StoreError: If the place cannot be written to.
        """
        folder = self.place / f"{_STAGING}{name}"
        with contextlib.ExitStack() as held:
            with self.writing():
                held.enter_context(self._locked(make=True))
                for stale in self.place.glob(f"{_STAGING}*"):  # nobody else's: the lock is ours
                    if not (resume and stale == folder):
                        shutil.rmtree(stale)
                folder.mkdir(exist_ok=resume)
            if not resume:
                held.callback(shutil.rmtree, folder, ignore_errors=True)
            yield folder

    def check_staged(self, staged: Path) -> None:
        """Makes sure that a folder is one that `staging` lent.

        Raises:
            InternalError: If it is not.
        """
        if staged.parent != self.place or not staged.name.startswith(_STAGING):
            raise InternalError("only what was staged here can be installed", item=str(staged))

    def install(self, staged: Path, digest: str) -> Path:
        """Puts what was staged into service in place of what was, and removes what was before that.

        Args:
            staged: The folder that `staging` lent.
            digest: SHA-256 of what it holds, in hexadecimal.

        Returns:
            Where it is now.

        Raises:
            StoreError: If the place cannot be written to.
        """
        self.check_staged(staged)
        with self.writing():
            numbers = [int(match[1]) for match in map(_GENERATION.fullmatch, self._names()) if match]
            installed = self.place / f"{1 + max(numbers, default=0)}-{digest[:12]}"
            sync_tree(staged)
            staged.rename(installed)
            sync_folder(self.place)
            before = self.current
            if before is not None:
                replace_link(self.place / _PREVIOUS, before.name)
            replace_link(self.place / _CURRENT, installed.name)
            self._clear()
        return installed

    def remove(self) -> None:
        """Removes everything here; nothing where there is no such place.

        Raises:
            StoreBusyError: If another process is writing here.
            StoreError: If the place cannot be written to.
        """
        with self.writing(), contextlib.suppress(FileNotFoundError), self._locked(make=False):
            for link in (_CURRENT, _PREVIOUS):  # first, so that no reader is sent to what is half gone
                (self.place / link).unlink(missing_ok=True)
            for path in self.place.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != _LOCK:
                    path.unlink()
            (self.place / _LOCK).unlink()  # from here on the place may be another's, who makes a lock of his own
            with contextlib.suppress(OSError):
                self.place.rmdir()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turns what the operating system says against a write into a `StoreError`."""
        try:
            yield
        except OSError as error:
            item = str(error.filename or self.place)
            raise StoreError(f"cannot be written: {error.strerror}", item=item) from error

    @contextlib.contextmanager
    def _locked(self, *, make: bool) -> Iterator[None]:
        """Holds the place's lock, which ends with the process, however that ends.

        Whoever removes a place removes the lock with it. So a lock counts only if it is still the one that others find
        here: one that was opened before, and taken after, locks nobody out.

        Args:
            make: Whether to make the place where there is none.

        Raises:
            FileNotFoundError: If there is no such place, and it is not to be made.
            StoreBusyError: If another process holds the lock.
            OSError: If the place cannot be written to.
        """
        path = self.place / _LOCK
        for _ in range(_ATTEMPTS):
            with contextlib.ExitStack() as held:
                try:
                    if make:
                        self.place.mkdir(parents=True, exist_ok=True)
                    file = held.enter_context(path.open("w"))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_current = os.path.samestat(os.fstat(file.fileno()), path.stat())
                except (FileNotFoundError, FileExistsError) as error:
                    # Removed between two looks at it. What is there all the same, and no folder, stays an error.
                    if not make or (isinstance(error, FileExistsError) and _is_no_folder(self.place)):
                        raise
                    continue
                except BlockingIOError:
                    break
                if is_current:
                    yield
                    return
        raise StoreBusyError("another process is making an engine for this bundle", item=str(path))

    def _clear(self) -> None:
        """Removes folders that are neither in service nor were before."""
        kept = {target.name for target in (self.current, self.previous) if target is not None}
        for name in self._names():
            if _GENERATION.fullmatch(name) and name not in kept:
                shutil.rmtree(self.place / name, ignore_errors=True)  # in service is in service, whatever becomes of it

    def _names(self) -> list[str]:
        return [path.name for path in self.place.iterdir()]


def _is_no_folder(path: Path) -> bool:
    """Whether something else is there."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _target(link: Path) -> Path | None:
    """Where a link leads; the folder itself may be missing."""
    try:
        return link.parent / link.readlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", item=str(link)) from error
