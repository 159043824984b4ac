"""Which INT8 engine may stand in for a full-precision bundle: one that is whole, made from it, and passed its gate.

What is compiled from its graphs is another engine again. A compiler chooses kernels, fuses and rounds as it likes, and
may choose otherwise in the next build of the same graphs, so INT8 plans need a verdict of their own
(`lifecycle.plan_judging`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.sealed import json_digest
from orin_rerank.errors import RefusedPrecisionError
from orin_rerank.lifecycle.self_test import TOLERANCE
from orin_rerank.quantization.gate import GATE_FILE, GateRecord, GateSubject, engine_digest, read_gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.engines.plans import PlanManifest, PlanSet
    from orin_rerank.engines.store import EngineStore

__all__ = [
    "HOW_TO_GET_INT8",
    "HOW_TO_JUDGE_PLANS",
    "HOW_TO_REPLACE_PLANS",
    "PLAN_GATE_FILE",
    "TrustedInt8",
    "find_int8",
    "look_for_int8",
    "passed_reason",
    "read_plan_gate",
    "recorded_gate",
    "subject_of",
]

HOW_TO_GET_INT8: Final = "`orin-rerank calibrate` makes one"

HOW_TO_JUDGE_PLANS: Final = "`orin-rerank build` does it, and compiles nothing again for it"

HOW_TO_REPLACE_PLANS: Final = "`orin-rerank build --again` compiles others and has them judged"

PLAN_GATE_FILE: Final = "gate.json"
"""In the folder of a set of INT8 plans."""

_TOLERANCE_SHIFTS: Final = 2.0
"""How far a margin may be from the one that was recorded, in root mean square shifts from full precision.

An INT8 engine is no smooth function of its input: where a float32 sum is rounded differently, a code may fall on the
other side, and all that follows moves. Measured on the mini model, plainly rounded, over 800 pairs (its root mean
square shift from full precision is 0.24, the largest 1.05; full precision itself moves by at most 1.2e-5):

===========================================  ======================  =======  =======
what changes                                 root mean square        p99      largest
===========================================  ======================  =======  =======
nothing, or only the threads                 0                       0        0
pack length, remembered prefixes             0.006                   0.02     0.09
the dialect, so the rounding of every sum    0.031                   0.18     0.26
===========================================  ======================  =======  =======

Another processor's kernels are like another dialect. So 2 shifts, 0.49 here, are nearly twice what an engine that is
right was seen to need. One that is wrong needs more: with all activation steps off by 5 %, the worst of the 25 golden
pairs moves by 0.52 to 0.72; with one place's step off by a factor of 2, by 0.08 to 0.81.
"""


@dataclass(frozen=True, slots=True)
class TrustedInt8:
    """An INT8 engine that may be served.

    Attributes:
        bundle: The derived bundle; verified where `find_int8` gave it.
        gate: The record of its gate, which passed when it was judged again.
    """

    bundle: Bundle
    gate: GateRecord

    @property
    def tolerance(self) -> float:
        """How far its margins may be from its golden ones."""
        return max(TOLERANCE, _TOLERANCE_SHIFTS * self.gate.report.total.rms_shift)

    @property
    def reason(self) -> str:
        """Why it is served, for people."""
        return passed_reason(self.gate)


def passed_reason(record: GateRecord, where: str = "") -> str:
    """What a gate that was passed says for an engine, for people.

    Args:
        record: The gate's.
        where: On what it was passed, such as `on this GPU`, where that is not the processor.
    """
    total, loosened = record.report.total, record.thresholds.loosened
    gate = "its gate" if not loosened else f"a gate with looser limits than the usual ({', '.join(loosened)})"
    return (
        f"INT8 passed {gate}{where and f' {where}'}: NDCG@10 {total.candidate.mean:.4f} against "
        f"{total.reference.mean:.4f} in full precision over {total.queries} queries, margins correlate by "
        f"{total.correlation:.4f}"
    )


def find_int8(source: Bundle, store: EngineStore, report: Callable[[str], None]) -> TrustedInt8 | None:
    """Finds the INT8 engine that is installed for a full-precision bundle, and checks everything but its scores.

    Args:
        source: The full-precision bundle.
        store: Where engines are installed.
        report: Told what is being done.

    Returns:
        The engine, None if none is installed.

    Raises:
        RefusedPrecisionError: If it is of another bundle, or its gate refuses it or proves nothing.
        BundleError: If it is incomplete or altered.
        StoreError: If the store cannot be read.
    """
    found = look_for_int8(source, store)
    if found is not None:
        found.bundle.verify(report)
    return found


def look_for_int8(source: Bundle, store: EngineStore) -> TrustedInt8 | None:
    """As `find_int8`, but takes its files to be what its manifest says they are: they may be many gigabytes.

    Args:
        source: The full-precision bundle.
        store: Where engines are installed.

    Raises:
        RefusedPrecisionError: If it is of another bundle, or its gate refuses it or proves nothing.
        BundleError: If its manifest cannot be read.
        StoreError: If the store cannot be read.
    """
    folder = store.quantized(source.digest)
    if folder is None:
        return None
    bundle = Bundle.open(folder)
    manifest = bundle.manifest
    if manifest.source != source.digest:
        raise RefusedPrecisionError(f"was not made from the bundle {source.digest[:12]}", item=str(folder))
    if (manifest.prompt, manifest.architecture) != (source.manifest.prompt, source.manifest.architecture):
        raise RefusedPrecisionError("is not of the shape of the bundle that it names as its source", item=str(folder))
    if GATE_FILE not in bundle.manifest.files:
        raise RefusedPrecisionError("the manifest vouches for no record of a gate", item=str(folder))
    # Before gigabytes are read: what the record says of another engine or a refused one will not change.
    gate = read_gate(folder / GATE_FILE, GateSubject(source.digest, engine_digest(bundle.manifest.files)))
    return TrustedInt8(bundle, gate)


def subject_of(plans: PlanManifest, source: str) -> GateSubject:
    """What a gate's record of INT8 plans is of: these very bytes, for this machine, and this bundle.

    Args:
        plans: What the set holds.
        source: Digest of the full-precision bundle.
    """
    digests = {name: entry.sha256 for name, entry in plans.plans.items()}
    return GateSubject(source, json_digest({"key": plans.key.digest, "plans": digests}))


def recorded_gate(plans: PlanSet, source: str) -> GateRecord | None:
    """What the gate saw of INT8 plans, which it may have refused; None if there is no record of these very plans.

    Args:
        plans: The plans.
        source: Digest of the full-precision bundle.
    """
    try:
        record = GateRecord.from_json((plans.folder / PLAN_GATE_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RefusedPrecisionError):
        return None
    return record if record.subject == subject_of(plans.manifest, source) else None


def read_plan_gate(plans: PlanSet, source: str) -> GateRecord:
    """Reads the record of INT8 plans that are to be served, and judges it again.

    Args:
        plans: The plans.
        source: Digest of the full-precision bundle.

    Raises:
        RefusedPrecisionError: If there is no record, it is damaged or of other plans, or the gate refuses.
    """
    path = plans.folder / PLAN_GATE_FILE
    if not path.exists():
        raise RefusedPrecisionError(
            f"these plans have not been judged on this machine; {HOW_TO_JUDGE_PLANS}", item=str(plans.folder)
        )
    try:
        return read_gate(path, subject_of(plans.manifest, source))
    except RefusedPrecisionError as error:
        error.message = f"{error.message}; {HOW_TO_REPLACE_PLANS}"
        raise
