"""What models and engines this machine has: bundles, INT8 engines made from them, and plans compiled from either."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.engines.bundle import Bundle
from orin_rerank.errors import BundleError
from orin_rerank.lifecycle.precision import HOW_TO_JUDGE_PLANS, recorded_gate
from orin_rerank.quantization.gate import GATE_FILE, GateSubject, engine_digest, read_gate

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.engines.plan_store import PlanStore, StoredPlans
    from orin_rerank.engines.plans import PlanKey, PlanSet
    from orin_rerank.engines.store import EngineStore, StoredEngine

__all__ = ["Item", "Kind", "take_inventory"]


class Kind(enum.Enum):
    """What an item is."""

    BUNDLE = "bundle"
    INT8 = "int8"
    PLANS = "plans"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that this machine has. Its contents have not been compared with its manifest.

    Attributes:
        kind: What it is.
        folder: Where it lies.
        digest: Of a bundle or INT8 engine its own; of plans that of their key. Empty where it cannot be read.
        made_from: Digest of the bundle from which an engine was derived or plans were compiled; None for a bundle.
        name: The model's, as far as the bundle is here.
        precisions: What it is there in.
        bytes: Its size.
        current: Whether it is in service; else it is what was in service before.
        gate: What the gate says of an INT8 engine, or of what was compiled from one for its GPU: `passed`, or why not.
            None for everything else.
        key: Of plans.
        problem: Why it cannot be read; None if it can.
    """

    kind: Kind
    folder: Path
    digest: str = ""
    made_from: str | None = None
    name: str | None = None
    precisions: tuple[str, ...] = ()
    bytes: int = 0
    current: bool = True
    gate: str | None = None
    key: PlanKey | None = None
    problem: str | None = None

    def as_dict(self) -> dict[str, object]:
        """As JSON has it."""
        return {**dataclasses.asdict(self), "kind": self.kind.value, "folder": str(self.folder)}


def take_inventory(bundle: Bundle | None, engines: EngineStore, plans: PlanStore) -> list[Item]:
    """Lists what there is: everything after what it was made from, and what is in service before what was.

    Args:
        bundle: The bundle that commands use; None if there is none.
        engines: Where INT8 engines are installed.
        plans: Where plans are.

    Raises:
        StoreError: If either cannot be read.
    """
    names = {} if bundle is None else {bundle.digest: bundle.manifest.name}
    derived: dict[str, list[Item]] = {}
    sources: dict[str, str] = {}
    for engine in engines.stored():
        item = _int8(engine, names.get(engine.source))
        derived.setdefault(engine.source, []).append(item)
        sources[item.digest] = engine.source
    compiled: dict[str, list[Item]] = {}
    for stored in plans.stored():
        compiled.setdefault(stored.bundle, []).append(_plans(stored, sources.get(stored.bundle)))
    items: list[Item] = []
    for source in dict.fromkeys([*names, *derived, *compiled]):
        if bundle is not None and source == bundle.digest:
            items.append(_bundle(bundle))
        items += compiled.pop(source, [])
        for one in derived.get(source, []):
            items += [one, *compiled.pop(one.digest, [])]
    return items


def _bundle(bundle: Bundle) -> Item:
    return Item(
        Kind.BUNDLE, bundle.folder, bundle.digest, None, bundle.manifest.name, _precisions(bundle), _size(bundle)
    )


def _int8(stored: StoredEngine, name: str | None) -> Item:
    try:
        bundle = Bundle.open(stored.folder)
    except BundleError as error:
        return Item(
            Kind.INT8, stored.folder, made_from=stored.source, name=name, current=stored.current, problem=str(error)
        )
    return Item(
        Kind.INT8,
        stored.folder,
        bundle.digest,
        stored.source,
        bundle.manifest.name,
        _precisions(bundle),
        _size(bundle),
        stored.current,
        _gate(bundle, stored.source),
    )


def _plans(stored: StoredPlans, source: str | None) -> Item:
    """Compiled plans; `source` is the full-precision bundle, where they are of an INT8 engine that is here."""
    if stored.plans is None:
        return Item(
            Kind.PLANS,
            stored.folder,
            made_from=stored.bundle,
            precisions=(stored.precision,),
            current=stored.current,
            problem=str(stored.problem),
        )
    key = stored.plans.manifest.key
    return Item(
        Kind.PLANS,
        stored.folder,
        key.digest,
        stored.bundle,
        precisions=(stored.precision,),
        bytes=stored.plans.bytes,
        current=stored.current,
        gate=None if key.precision_plan is None else _gate_of_plans(stored.plans, source),
        key=key,
    )


def _gate_of_plans(plans: PlanSet, source: str | None) -> str:
    """What the gate says of INT8 plans, judged now."""
    if source is None:
        return "the INT8 engine is gone"
    record = recorded_gate(plans, source)
    if record is None:
        return f"not judged; {HOW_TO_JUDGE_PLANS}"
    return "; ".join(record.verdict.reasons) or "passed"


def _gate(bundle: Bundle, source: str) -> str:
    """What the gate says, judged now."""
    if GATE_FILE not in bundle.manifest.files:
        return "no record"
    try:
        read_gate(bundle.folder / GATE_FILE, GateSubject(source, engine_digest(bundle.manifest.files)))
    except BundleError as error:
        return error.message
    return "passed"


def _precisions(bundle: Bundle) -> tuple[str, ...]:
    return tuple(sorted({graph.precision.value for graph in bundle.manifest.graphs}))


def _size(bundle: Bundle) -> int:
    return sum(entry.bytes for entry in bundle.manifest.files.values())
