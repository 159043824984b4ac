"""A bundle while it is being written: beside the one that is there, and in its place at once when it is whole.

Everything is written to `.export` inside the bundle's folder, which is on the same file system, so that taking the old
bundle's place is a matter of renaming. While that goes on, for some milliseconds, the folder has no manifest: it holds
the old bundle, none, or the new one, and never one of both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from orin_rerank.durable import sync_folder
from orin_rerank.engines.bundle import GOLDEN_FILE, MANIFEST_FILE, Bundle, Manifest, write_manifest
from orin_rerank.errors import BundleError, CheckpointError, ExportBusyError, ExportError, NoSpaceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["STAGING_FOLDER", "Staging"]

STAGING_FOLDER: Final = ".export"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Staging:
    """The folder that a bundle is written to before it takes its place.

    Args:
        out: Where the bundle will be.

    Attributes:
        folder: Where to write.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / STAGING_FOLDER

    @contextmanager
    def open(self) -> Iterator[None]:
        """Makes the folder, and holds it: no other process may write there meanwhile.

        Raises:
            ExportBusyError: If another process holds it.
            NoSpaceError: If the disk is full; what is written stays.
            ExportError: If the disk says no for another reason.
        """
        with _errors_named(self.out):
            made = not self.out.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _hold(handle, self.out)
                try:
                    yield
                except (CheckpointError, BundleError):  # after any other, the same export can go on from here
                    self.discard()
                    raise
            finally:
                os.close(handle)
                for folder in (self.folder, self.out)[: 2 if made else 1]:
                    with suppress(OSError):  # something is in it
                        folder.rmdir()

    def require_space(self, needed: int) -> None:
        """Refuses to begin what cannot be finished.

        Args:
            needed: Bytes yet to be written.

        Raises:
            NoSpaceError: If the disk has fewer; the message names both.
        """
        free = shutil.disk_usage(self.folder).free
        if needed <= free:
            return
        message = f"{needed / 1e6:,.1f} MB are needed, {free / 1e6:,.1f} MB are free"
        if (self.out / MANIFEST_FILE).exists():
            message += (
                ", and the bundle that is there is kept until the new one is whole: remove it, or export elsewhere"
            )
        raise NoSpaceError(message, item=str(self.out))

    def refuse_strangers(self, names: Iterable[str]) -> None:
        """Refuses to write over files that are not a bundle's: the folder may be another checkpoint.

        Args:
            names: What will be written, by its path in the folder.

        Raises:
            ExportError: If one is there, and no bundle is, whole or half put in its place; the item is its path.
        """
        if (self.out / MANIFEST_FILE).exists() or (self.folder / MANIFEST_FILE).exists():
            return
        for name in names:
            if (self.out / name).exists():
                raise ExportError(
                    "is there, and not part of a bundle: name another folder, or remove it first",
                    item=str(self.out / name),
                )

    def take_back(self, name: str) -> None:
        """Takes back a file that an export had put in its place when it was killed, before its manifest followed."""
        placed, staged = self.out / name, self.folder / name
        ready = (self.folder / MANIFEST_FILE).exists() and not (self.out / MANIFEST_FILE).exists()
        if ready and placed.exists() and not staged.exists():
            placed.replace(staged)

    def commit(self, manifest: Manifest) -> Bundle:
        """Puts the files of a manifest, which are on disk, in their place, and the manifest last.

        What the bundle that was there has besides, graphs and golden pairs, goes; files that no manifest names stay.
        """
        write_manifest(self.folder, manifest)
        stale = self._stale(manifest)
        (self.out / MANIFEST_FILE).unlink(missing_ok=True)
        sync_folder(self.out)
        for name in stale:
            (self.out / name).unlink(missing_ok=True)
        folders = {self.out}
        for name in manifest.files:
            target = self.out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).replace(target)
            folders.add(target.parent)
        for folder in folders:
            sync_folder(folder)
        (self.folder / MANIFEST_FILE).replace(self.out / MANIFEST_FILE)
        sync_folder(self.out)
        self.discard()
        return Bundle.open(self.out)

    def discard(self) -> None:
        """Removes what is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stale(self, manifest: Manifest) -> set[str]:
        try:
            old = Bundle.open(self.out).manifest
        except BundleError:
            return set()
        golden = PurePosixPath(GOLDEN_FILE).parent
        ours = {name for graph in old.graphs for name in (graph.text, graph.vision) if name is not None}
        ours |= {name for name in old.files if golden in PurePosixPath(name).parents}
        return ours - manifest.files.keys()


def _hold(handle: int, out: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ExportBusyError("another process is writing a bundle there", item=str(out)) from None


@contextmanager
def _errors_named(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        item = error.filename or str(out)
        if error.errno in _FULL:
            message = (
                "the disk is full; what is written is kept: free some space, and the same command goes on from there"
            )
            raise NoSpaceError(message, item=str(item)) from error
        raise ExportError(f"cannot be written: {error.strerror or error}", item=str(item)) from error
