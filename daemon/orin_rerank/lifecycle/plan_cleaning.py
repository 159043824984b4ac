"""Removes plans of bundles that are gone: each calibration makes a new INT8 bundle, each export perhaps a new one.

Compiling takes hours, so nothing is removed that may be wanted again. An INT8 engine that its store no longer keeps
will not come back; nor will a bundle where another now lies. One whose folder is missing may be on a drive that is not
plugged in: its plans go only when a person asks for it.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.engines.bundle import Bundle
from orin_rerank.errors import BundleError, StoreError
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from orin_rerank.engines.plan_store import PlanStore
    from orin_rerank.engines.store import EngineStore

__all__ = ["RemovedPlans", "remove_stale_plans"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemovedPlans:
    """Plans that were removed.

    Attributes:
        bundle: Digest of the bundle that they were of.
        bytes: What they took.
        reason: Why, for people.
    """

    bundle: str
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"removed plans of {self.bundle[:12]}, {self.bytes / 1e6:.1f} MB: {self.reason}"


def remove_stale_plans(
    plans: PlanStore, engines: EngineStore, *, keep: Collection[str] = (), missing: bool = False
) -> list[RemovedPlans]:
    """Removes the plans of every bundle that is gone. What cannot be removed stays, and the journal says why.

    Args:
        plans: Where plans are.
        engines: Where INT8 engines are.
        keep: Digests of bundles that are there, wherever they lie.
        missing: Whether a bundle is gone as well whose folder is missing, or was never noted.

    Raises:
        StoreError: If a store cannot be read.
    """
    here = {*keep, *_digests([engine.folder for engine in engines.stored()])}
    sizes: dict[str, int] = {}
    for stored in plans.stored():
        sizes[stored.bundle] = sizes.get(stored.bundle, 0) + (0 if stored.plans is None else stored.plans.bytes)
    removed = []
    for bundle, origin in plans.bundles().items():
        reason = None if bundle in here else _gone(bundle, origin, engines.root, missing=missing)
        if reason is None:
            continue
        try:
            plans.forget(bundle)
        except StoreError as error:  # another process compiles it after all, or a file is not ours
            _log.warning("plans of a bundle that is gone stay", extra=fields(bundle=bundle[:12], reason=str(error)))
        else:
            removed.append(RemovedPlans(bundle, sizes.get(bundle, 0), reason))
    return removed


def _gone(bundle: str, origin: Path | None, engines: Path, *, missing: bool) -> str | None:
    """Why a bundle is gone; None if it is there, or that is not known."""
    if origin is None:
        return "it is not known where the bundle lay" if missing else None
    found = _digests([origin])
    if bundle in found:
        return None
    if origin.is_relative_to(engines.absolute()) and not origin.exists():
        return "the INT8 engine was replaced"
    if found:
        return f"another bundle lies in {origin}"
    return f"there is no bundle in {origin}" if missing else None


def _digests(folders: Collection[Path]) -> set[str]:
    """Of the bundles in some folders, as far as they can be read."""
    found = set()
    for folder in folders:
        with contextlib.suppress(BundleError):
            found.add(Bundle.open(folder).digest)
    return found
