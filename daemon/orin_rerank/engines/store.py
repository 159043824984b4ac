"""INT8 engines on this machine: derived bundles, each in the place of the full-precision bundle that it came from.

::

    <root>/engines/<digest of the full-precision bundle>/
        current -> 2-1f0c9a41d2e7      what is served; replaced by renaming another link over it
        previous -> 1-77ab03c5e90d     what was; kept because a daemon may be reading it
        1-77ab03c5e90d/  2-1f0c9a41d2e7/
        .staging-<process>/            being written
        .lock                          held while something is

An engine is written in a staging folder. Its last step into service is one rename of a link, so whenever the machine
or the process stops, what is served is the old engine or the new one. What an interruption leaves is cleared away by
the next to write here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.durable import replace_link, sync_folder, sync_tree
from orin_rerank.errors import BundleError, InternalError, StoreBusyError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["STATE_VARIABLE", "EngineStore", "default_state_folder"]

STATE_VARIABLE: Final = "ORIN_RERANK_STATE"

_SYSTEM_STATE: Final = Path("/var/lib/orin-rerank")
_CURRENT: Final = "current"
_PREVIOUS: Final = "previous"
_STAGING: Final = ".staging-"
_ENGINE: Final = re.compile(r"(\d+)-[0-9a-f]{12}")


def default_state_folder(environment: Mapping[str, str] | None = None, user: int | None = None) -> Path:
    """Where a user's engines are: what ORIN_RERANK_STATE names; else the system's place for root, XDG's for others.

    Args:
        environment: Variables; None means this process's.
        user: Number of the user; None means this process's.

    Raises:
        StoreError: If the user has no home.
    """
    variables = os.environ if environment is None else environment
    if named := variables.get(STATE_VARIABLE):
        return Path(named).absolute()
    if (os.geteuid() if user is None else user) == 0:
        return _SYSTEM_STATE
    xdg = Path(variables.get("XDG_STATE_HOME", ""))
    if xdg.is_absolute():  # the specification has relative ones ignored
        return xdg / "orin-rerank"
    if home := variables.get("HOME"):
        return Path(home) / ".local" / "state" / "orin-rerank"
    raise StoreError("must be set: there is no home folder to keep engines in", item=STATE_VARIABLE)


class EngineStore:
    """The engines below one folder. Many processes may read while one writes.

    Args:
        root: The folder; made when first written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def quantized(self, bundle_digest: str) -> Path | None:
        """The folder of the INT8 engine that is in service for a bundle, None if none is.

        The path goes on naming this very engine when another is installed. Nothing about it has been verified.

        Args:
            bundle_digest: Of the full-precision bundle.
        """
        return self._target(self._place(bundle_digest) / _CURRENT)

    @contextlib.contextmanager
    def staging(self, bundle_digest: str) -> Iterator[Path]:
        """Lends an empty folder to write an engine into; it is gone at the end of the context unless installed.

        Args:
            bundle_digest: Of the full-precision bundle.

        Raises:
            StoreBusyError: If another process is writing an engine for this bundle.
            StoreError: If the store cannot be written to.
        """
        place = self._place(bundle_digest)
        with contextlib.ExitStack() as held:
            with self._writing(place):
                place.mkdir(parents=True, exist_ok=True)
                held.enter_context(_lock(place / ".lock"))
                for stale in place.glob(f"{_STAGING}*"):  # nobody else's: the lock is ours
                    shutil.rmtree(stale)
                folder = place / f"{_STAGING}{os.getpid()}"
                folder.mkdir()
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            yield folder

    def install(self, bundle_digest: str, staged: Path) -> Path:
        """Puts a finished engine into service in place of the one that was.

        Args:
            bundle_digest: Of the full-precision bundle.
            staged: The folder that `staging` lent, now holding a bundle whose source is that one.

        Returns:
            Where the engine is now.

        Raises:
            BundleError: If what was staged is incomplete, altered or derived from another bundle.
            StoreError: If the store cannot be written to.
        """
        place = self._place(bundle_digest)
        if staged.parent != place or not staged.name.startswith(_STAGING):
            raise InternalError("only what was staged here can be installed", item=str(staged))
        bundle = Bundle.open(staged)
        if bundle.manifest.source != bundle_digest:
            raise BundleError(
                f"was made from the bundle {bundle.manifest.source}, not from {bundle_digest}", item=str(staged)
            )
        bundle.verify()
        with self._writing(place):
            generation = 1 + max((int(match[1]) for match in map(_ENGINE.fullmatch, _names(place)) if match), default=0)
            engine = place / f"{generation}-{bundle.digest[:12]}"
            sync_tree(staged)
            staged.rename(engine)
            sync_folder(place)
            before = self._target(place / _CURRENT)
            if before is not None:
                replace_link(place / _PREVIOUS, before.name)
            replace_link(place / _CURRENT, engine.name)
            self._clear(place)
        return engine

    def _clear(self, place: Path) -> None:
        """Removes engines that are neither in service nor were before."""
        kept = {target.name for link in (_CURRENT, _PREVIOUS) if (target := self._target(place / link)) is not None}
        for name in _names(place):
            if _ENGINE.fullmatch(name) and name not in kept:
                shutil.rmtree(place / name, ignore_errors=True)  # the engine is in service whatever becomes of this

    def _place(self, bundle_digest: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", bundle_digest):
            raise InternalError("is no SHA-256 in hexadecimal", item=bundle_digest)
        return self.root / "engines" / bundle_digest

    @staticmethod
    def _target(link: Path) -> Path | None:
        """Where a link leads; the folder itself may be missing."""
        try:
            return link.parent / link.readlink()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", item=str(link)) from error

    @staticmethod
    @contextlib.contextmanager
    def _writing(place: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot be written: {error.strerror}", item=str(error.filename or place)) from error


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds a lock that ends with the process, however that ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreBusyError("another process is making an engine for this bundle", item=str(path)) from error
        yield


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
