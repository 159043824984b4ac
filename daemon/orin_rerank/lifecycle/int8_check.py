"""What an INT8 bundle needs beside what every bundle does: a plan, the smoothing that goes with it, and a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orin_rerank.engines.bundle import MANIFEST_FILE, Bundle
from orin_rerank.errors import BundleError
from orin_rerank.graph.places import model_places
from orin_rerank.lifecycle.precision import TrustedInt8
from orin_rerank.quantization.array_file import read_arrays
from orin_rerank.quantization.gate import GATE_FILE, GateSubject, engine_digest, read_gate
from orin_rerank.quantization.plan import PLAN_FILE, SMOOTHING_FILE, QuantizationPlan
from orin_rerank.quantization.write import quantized_layout

if TYPE_CHECKING:
    from orin_rerank.graph.weights import WeightFile

__all__ = ["int8_layout", "read_plan", "trusted"]


def read_plan(bundle: Bundle) -> QuantizationPlan:
    """The plan by which an INT8 bundle was made.

    Raises:
        BundleError: If the manifest vouches for no plan or no smoothing, or the plan is for another smoothing.
        CalibrationError: If the plan is damaged, or of another model than this bundle names as its source.
    """
    manifest = bundle.manifest
    for name in (PLAN_FILE, SMOOTHING_FILE):
        if name not in manifest.files:
            raise BundleError("is not among the files, and every INT8 bundle has it", item=f"{MANIFEST_FILE}: {name}")
    places = model_places(manifest.architecture)
    plan = QuantizationPlan.load(bundle.folder / PLAN_FILE, bundle=manifest.source or "", places=places)
    if plan.smoothing != manifest.files[SMOOTHING_FILE].sha256:
        raise BundleError(f"was made with another {SMOOTHING_FILE}", item=PLAN_FILE)
    return plan


def int8_layout(bundle: Bundle, plan: QuantizationPlan) -> WeightFile:
    """How the weight file of an INT8 bundle must be laid out.

    Args:
        bundle: The bundle.
        plan: Its plan.

    Raises:
        CalibrationError: If the smoothing is damaged.
    """
    scales, _ = read_arrays(bundle.folder / SMOOTHING_FILE)
    return quantized_layout(bundle.manifest.architecture, plan.scheme(scales))


def trusted(bundle: Bundle) -> TrustedInt8:
    """An INT8 bundle with its gate's record, judged now.

    Raises:
        RefusedPrecisionError: If the gate refuses it, or its record is damaged or of another engine.
        BundleError: If the manifest vouches for no record.
    """
    manifest = bundle.manifest
    if GATE_FILE not in manifest.files:
        raise BundleError(
            "is not among the files, and no INT8 is served without it", item=f"{MANIFEST_FILE}: {GATE_FILE}"
        )
    subject = GateSubject(manifest.source or "", engine_digest(manifest.files))
    return TrustedInt8(bundle, read_gate(bundle.folder / GATE_FILE, subject))
