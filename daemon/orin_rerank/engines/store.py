"""INT8 engines on this machine: derived bundles, each in the place of the full-precision bundle that it came from.

Such a place is `<root>/engines/<digest of the full-precision bundle>`; what lies in it, and how an engine is put into
service there, is what `engines.generations` says.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.generations import Generations
from orin_rerank.errors import BundleError, InternalError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["STATE_VARIABLE", "EngineStore", "StoredEngine", "default_state_folder"]

STATE_VARIABLE: Final = "ORIN_RERANK_STATE"

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SYSTEM_STATE: Final = Path("/var/lib/orin-rerank")


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


@dataclass(frozen=True, slots=True)
class StoredEngine:
    """An INT8 engine in the store; nothing about it has been verified.

    Attributes:
        source: Digest of the full-precision bundle in whose place it lies.
        folder: Where it lies.
        current: Whether it is the one in service.
    """

    source: str
    folder: Path
    current: bool


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
        return self._place(bundle_digest).current

    def stored(self) -> list[StoredEngine]:
        """All engines: bundle by bundle, the one in service first, then the one before it.

        Raises:
            StoreError: If the store cannot be read.
        """
        try:
            names = sorted(path.name for path in (self.root / "engines").iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", item=str(self.root / "engines")) from error
        found = []
        for source in filter(_DIGEST.fullmatch, names):
            place = self._place(source)
            current = place.current
            folders = dict.fromkeys(folder for folder in (current, place.previous) if folder is not None)
            found += [StoredEngine(source, folder, folder == current) for folder in folders]
        return found

    @contextlib.contextmanager
    def staging(self, bundle_digest: str) -> Iterator[Path]:
        """Lends an empty folder to write an engine into; it is gone at the end of the context unless installed.

        Args:
            bundle_digest: Of the full-precision bundle.

        Raises:
            StoreBusyError: If another process is writing an engine for this bundle.
            StoreError: If the store cannot be written to.
        """
        with self._place(bundle_digest).staging(str(os.getpid())) as folder:
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
        place.check_staged(staged)
        bundle = Bundle.open(staged)
        if bundle.manifest.source != bundle_digest:
            raise BundleError(
                f"was made from the bundle {bundle.manifest.source}, not from {bundle_digest}", item=str(staged)
            )
        bundle.verify()
        return place.install(staged, bundle.digest)

    def _place(self, bundle_digest: str) -> Generations:
        if not _DIGEST.fullmatch(bundle_digest):
            raise InternalError("is no SHA-256 in hexadecimal", item=bundle_digest)
        return Generations(self.root / "engines" / bundle_digest)
