"""Plans on this machine: each set in the place of the bundle and the precision that it was compiled from.

::

    <root>/plans/<digest of the bundle>/.bundle      where the bundle lay
    <root>/plans/<digest of the bundle>/<precision>/
        current -> 2-1f0c9a41d2e7      and the rest as `engines.generations` says
        2-1f0c9a41d2e7/
            manifest.json              the key, and the SHA-256 of every plan and of itself
            text.plan, vision.plan
            gate.json                  of INT8: what its gate saw on this machine

The set before the current one stays: after a system update is rolled back, that is the one that fits.

Compiling takes from minutes to hours. What is finished stays in the staging folder when the rest is interrupted, and
is found there by the next attempt.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.durable import replace_file
from orin_rerank.engines.bundle import hash_file
from orin_rerank.engines.generations import Generations
from orin_rerank.engines.plans import MANIFEST_FILE, PlanEntry, PlanManifest, PlanSet, checked_name
from orin_rerank.errors import InternalError, PlanError, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from orin_rerank.engines.plans import PlanKey

__all__ = ["PlanStore", "StagedPlans", "StoredPlans"]

_BUNDLE: Final = re.compile(r"[0-9a-f]{64}")
_PRECISION: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ORIGIN: Final = ".bundle"
"""Beside a bundle's places: where it lay."""


@dataclass(frozen=True, slots=True)
class StoredPlans:
    """What lies in the store, whole or not.

    Attributes:
        bundle: Digest of the bundle whose place it is in.
        precision: Whose place it is in.
        folder: Where it lies.
        current: Whether it was installed last.
        plans: The set; None if its manifest cannot be read.
        problem: Why not; None if it can.
    """

    bundle: str
    precision: str
    folder: Path
    current: bool
    plans: PlanSet | None
    problem: PlanError | None = None


class StagedPlans:
    """A set of plans that is being made; `PlanStore.staging` lends one.

    Args:
        folder: Where the plans are written.
        key: What they depend on.
        names: The plans that the set must hold.
        place: Where it will be installed.
    """

    def __init__(self, folder: Path, key: PlanKey, names: Collection[str], place: Generations) -> None:
        self.folder = folder
        self.key = key
        self.names = tuple(checked_name(name) for name in names)
        self._place = place
        self._finished = self._resumed()

    @property
    def finished(self) -> Mapping[str, PlanEntry]:
        """The plans that need not be compiled any more, by file name."""
        return dict(self._finished)

    def path(self, name: str) -> Path:
        """Where a plan is to be written."""
        if name not in self.names:
            raise InternalError("is not among the plans of this set", item=name)
        return self.folder / name

    def add(self, name: str, build_s: float) -> PlanEntry:
        """Records a plan that has been written, so that an interruption does not cost it.

        Args:
            name: Such as `text.plan`.
            build_s: How long it took, in seconds.

        Raises:
            StoreError: If there is no such file, or the record cannot be written.
        """
        path = self.path(name)
        with self._place.writing():
            entry = PlanEntry(hash_file(path), path.stat().st_size, round(build_s, 3))
            self._finished[name] = entry
            self._record()
        return entry

    def complete(self) -> PlanSet:
        """The set where it was made, to be tried before it goes into service.

        Raises:
            InternalError: If a plan is missing.
            StoreError: If the store cannot be written to.
        """
        missing = set(self.names) - self._finished.keys()
        if missing:
            raise InternalError(f"the set lacks {sorted(missing)}", item=str(self.folder))
        with self._place.writing():
            return PlanSet(self.folder, self._record())

    def install(self) -> PlanSet:
        """Puts the set into service in place of the one that was.

        Raises:
            InternalError: If a plan is missing.
            StoreError: If the store cannot be written to.
        """
        manifest = self.complete().manifest
        digest = hashlib.sha256(manifest.to_json().encode()).hexdigest()
        return PlanSet(self._place.install(self.folder, digest), manifest)

    def discard(self) -> None:
        """Removes what was made, so that no later attempt goes on from it.

        Raises:
            StoreError: If the store cannot be written to.
        """
        self._finished.clear()
        with self._place.writing():
            for path in self.folder.iterdir():
                path.unlink()

    def _record(self) -> PlanManifest:
        manifest = PlanManifest(self.key, dict(self._finished))
        replace_file(self.folder / MANIFEST_FILE, manifest.to_json().encode())
        return manifest

    def _resumed(self) -> dict[str, PlanEntry]:
        """What an earlier attempt finished and is whole; everything else is removed."""
        finished = {}
        with contextlib.suppress(PlanError):  # nothing was recorded, or it cannot be told what
            found = PlanSet(self.folder, PlanManifest.read(self.folder))
            for name in self.names if found.manifest.key == self.key else ():
                with contextlib.suppress(PlanError):
                    found.verify(name)
                    finished[name] = found.manifest.plans[name]
        kept = {*finished, MANIFEST_FILE} if finished else set()
        with self._place.writing():
            for path in self.folder.iterdir():
                if path.name not in kept:
                    path.unlink()
        return finished


class PlanStore:
    """The plans below one folder. Many processes may read while one writes.

    Args:
        root: The folder; `plans` is made in it when first written to.
    """

    def __init__(self, root: Path) -> None:
        self._root = root / "plans"

    def find(self, key: PlanKey) -> PlanSet | None:
        """Finds the set of exactly this key, the current one or the one before.

        Raises:
            PlanError: If there is none, but one whose manifest cannot be read.
            StoreError: If the store cannot be read.
        """
        problem = None
        for stored in _read(self._place(key)):
            if stored.plans is None:
                problem = problem or stored.problem
            elif stored.plans.manifest.key == key:
                return stored.plans
        if problem is not None:
            raise problem
        return None

    def stored(self) -> list[StoredPlans]:
        """All that lies in the store: bundle by bundle, of each precision the current set first.

        Raises:
            StoreError: If the store cannot be read.
        """
        return [stored for bundle in self._bundles() for place in self._places(bundle) for stored in _read(place)]

    @contextlib.contextmanager
    def staging(self, key: PlanKey, names: Collection[str], origin: Path | None = None) -> Iterator[StagedPlans]:
        """Lends a set of plans to make; what an earlier attempt at the same key finished is in it already.

        Args:
            key: What the plans depend on.
            names: The plans that the set must hold, such as `text.plan`.
            origin: Where the bundle lies; kept, to tell later whether it is gone.

        Raises:
            StoreBusyError: If another process is making plans for this bundle.
            StoreError: If the store cannot be written to.
        """
        place = self._place(key)
        with place.staging(key.digest[:12], resume=True) as folder:
            if origin is not None:
                with place.writing():
                    replace_file(place.place.parent / _ORIGIN, os.fsencode(origin.absolute()))
            yield StagedPlans(folder, key, names, place)

    def bundles(self) -> dict[str, Path | None]:
        """Digests of the bundles that plans were made of, or begun, and where each lay when that was done last.

        Raises:
            StoreError: If the store cannot be read.
        """
        return {digest: _origin(self._root / digest) for digest in self._bundles()}

    def forget(self, bundle: str) -> None:
        """Removes every plan of a bundle that is gone.

        Args:
            bundle: Its digest.

        Raises:
            StoreBusyError: If another process is making plans for it; some may be removed then.
            StoreError: If the store cannot be written to.
        """
        for place in self._places(bundle):
            place.remove()
        with contextlib.suppress(OSError):  # not empty any more, perhaps; an empty folder harms nobody
            (self._root / bundle / _ORIGIN).unlink(missing_ok=True)
            (self._root / bundle).rmdir()

    def _bundles(self) -> list[str]:
        return [name for name in _names(self._root) if _BUNDLE.fullmatch(name)]

    def _places(self, bundle: str) -> list[Generations]:
        folder = self._root / bundle
        return [Generations(folder / name) for name in _names(folder) if _PRECISION.fullmatch(name)]

    def _place(self, key: PlanKey) -> Generations:
        for name, pattern in ((key.bundle, _BUNDLE), (key.precision, _PRECISION)):
            if not pattern.fullmatch(name):
                raise InternalError("cannot be the name of a folder of plans", item=name)
        return Generations(self._root / key.bundle / key.precision)


def _read(place: Generations) -> list[StoredPlans]:
    """The sets of one place, the current one first."""
    current, previous = place.current, place.previous
    found = []
    for folder in dict.fromkeys((current, previous)):  # an install that was cut short leaves the two the same
        if folder is None:
            continue
        where = place.place.parent.name, place.place.name, folder, folder == current
        try:
            found.append(StoredPlans(*where, PlanSet(folder, PlanManifest.read(folder))))
        except PlanError as error:
            found.append(StoredPlans(*where, None, error))
    return found


def _origin(folder: Path) -> Path | None:
    try:
        return Path(os.fsdecode((folder / _ORIGIN).read_bytes()))
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", item=str(folder)) from error
