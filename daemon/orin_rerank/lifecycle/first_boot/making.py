"""The steps that take minutes to hours: INT8 from the calibration set, and plans of both precisions.

Each says first whether there is anything to do: engines and plans vouch for themselves, and what is there is not made
again. What is to be made has a key, all that it is made for, from and by; another JetPack, bundle, set or version of
this program is another key.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank import __version__
from orin_rerank.engines.settings import DeviceChoice, PrecisionChoice
from orin_rerank.errors import BundleError, CalibrationError, DatasetError, PlanError, RefusedPrecisionError, StoreError
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.calibrate import CalibrationOptions, calibrate
from orin_rerank.lifecycle.compile import CompileOptions, compile_bundle
from orin_rerank.lifecycle.first_boot.preflight import check_calibration, check_disk, engine_disk_bytes
from orin_rerank.lifecycle.first_boot.progress import Step
from orin_rerank.lifecycle.first_boot.told import StoppableBuilder, ToldBuild, ToldCalibration
from orin_rerank.lifecycle.plan_cleaning import remove_stale_plans
from orin_rerank.lifecycle.plan_judging import PlanJudge
from orin_rerank.lifecycle.plan_work import engine_to_compile
from orin_rerank.lifecycle.precision import look_for_int8, passed_reason, recorded_gate
from orin_rerank.quantization.calibration_set import dataset_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.lifecycle.compile_target import CompileTarget
    from orin_rerank.lifecycle.first_boot.place import Place
    from orin_rerank.lifecycle.first_boot.progress import Listener
    from orin_rerank.lifecycle.plan_work import EngineToCompile
    from orin_rerank.quantization.gate import GateRecord

__all__ = ["Found", "Make", "Task", "was_refused"]

_MISSING: Final = "missing"


@dataclass(frozen=True, slots=True)
class Found:
    """There is nothing to do.

    Attributes:
        text: Why not, for people.
        refused: Whether what there is may not be served.
    """

    text: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """There is something to do.

    Attributes:
        key: What it is for, and from.
        reason: Why, for people.
        run: Does it; told whom to tell, and what to call when something is done that need not be done again. Returns
            what came of it, for people; RefusedPrecisionError says that it was made, and may not be served.
    """

    key: Mapping[str, str]
    reason: str
    run: Callable[[Listener, Callable[[], None]], str]


class Make:
    """Makes what a machine lacks.

    Args:
        place: The machine.
        bundle: The full-precision bundle.
    """

    def __init__(self, place: Place, bundle: Bundle) -> None:
        self._place = place
        self._bundle = bundle

    def calibration(self) -> Found | Task:
        """INT8 from the calibration set.

        Raises:
            StoreError: If it cannot be told what there is.
        """
        place = self._place
        if place.engine.precision is PrecisionChoice.FULL:
            return Found("full precision was asked for")
        reason = "no INT8 engine is installed for this bundle"
        try:
            if look_for_int8(self._bundle, place.engines) is not None:
                return Found("an INT8 engine is installed")
        except BundleError as error:
            reason = f"an INT8 engine is installed, but refused: {error}"
        key = {
            "version": __version__,
            "bundle": self._bundle.digest,
            "calibration": _digest_of(place.calibration),
            "evaluation": _digest_of(place.evaluation),
        }
        return Task(key, reason, lambda listener, _: self._calibrate(listener, reason))

    def plans(self, step: Step, target: CompileTarget | str) -> Found | Task:
        """Plans of one precision.

        Args:
            step: Which of the two builds.
            target: What to compile for, or why nothing is compiled.

        Raises:
            BundleError: If an INT8 engine is refused, or a bundle has no graphs for TensorRT.
            MemoryShortError: If the model does not fit on this machine.
            StoreError: If it cannot be told what there is.
        """
        place, int8 = self._place, step is Step.BUILD_INT8
        if place.engine.device is DeviceChoice.CPU or isinstance(target, str):
            return Found(target if isinstance(target, str) else "the processor was asked for")
        if not place.engine.may_serve(int8=int8):
            return Found(f"{place.engine.precision.value} was asked for")
        bundle, precision = self._bundle, Precision.FP16
        if int8:
            trusted = look_for_int8(self._bundle, place.engines)
            if trusted is None:
                return Found("there is no INT8 engine to compile")
            bundle, precision = trusted.bundle, Precision.INT8_FP16
        work = engine_to_compile(bundle, precision, place.engine, target, place.plans)
        reason = f"no {precision.value} plans are installed for this machine"
        try:
            there, gate = self._installed(work, judged=int8)
        except PlanError as error:
            there, gate, reason = False, None, str(error)
        if there:
            if gate is not None and not gate.verdict.passed:
                return Found(f"the gate refuses INT8 on this GPU: {'; '.join(gate.verdict.reasons)}", refused=True)
            return Found(
                f"{precision.value} plans are installed" if gate is None else passed_reason(gate, "on this GPU")
            )
        key = {
            "version": __version__,
            "plans": work.key.digest,
            "runtime": work.key.runtime,
            "platform": work.key.platform,
        }
        if int8:
            key["evaluation"] = _digest_of(place.evaluation)
        return Task(key, reason, lambda listener, further: self._build(step, work, target, listener, reason, further))

    def tidy(self, step: Step) -> None:
        """Removes what a step that was cut off has left, and would not go on from."""
        if step is Step.CALIBRATE:
            with contextlib.suppress(StoreError), self._place.engines.staging(self._bundle.digest):
                pass

    def _calibrate(self, listener: Listener, reason: str) -> str:
        place = self._place
        for folder, setting, what in (
            (place.calibration, "calibration", "calibration set"),
            (place.evaluation, "evaluation", "judged set"),
        ):
            if folder is None or not folder.is_dir():
                raise CalibrationError(
                    f"there is no {what} at {folder}; put it there, or name another folder with {setting} in "
                    "[first_boot] of the settings",
                    item=f"first_boot.{setting}",
                )
        check_calibration(self._bundle, place.state, place.accelerators.host_memory())
        assert place.calibration is not None
        assert place.evaluation is not None
        options = CalibrationOptions(
            place.calibration, place.evaluation, thresholds=place.thresholds, threads=place.engine.threads
        )
        result = calibrate(self._bundle, options, place.engines, ToldCalibration(listener, reason))
        remove_stale_plans(place.plans, place.engines, keep=[self._bundle.digest])
        return passed_reason(result.record)

    def _build(
        self,
        step: Step,
        work: EngineToCompile,
        target: CompileTarget,
        listener: Listener,
        reason: str,
        further: Callable[[], None],
    ) -> str:
        place, int8 = self._place, step is Step.BUILD_INT8
        precision = Precision.INT8_FP16 if int8 else Precision.FP16
        check_disk(place.state, engine_disk_bytes(work.bundle, precision), f"compiling {precision.value}")
        choice = PrecisionChoice.INT8 if int8 else PrecisionChoice.FULL
        settings = dataclasses.replace(place.engine, precision=choice)
        (made,) = compile_bundle(
            self._bundle,
            CompileOptions(settings),
            target,
            place.engines,
            place.plans,
            StoppableBuilder(place.builder, listener),
            ToldBuild(step, listener, reason, further),
            lambda trusted: PlanJudge.open(trusted, place.evaluation, settings, place.accelerators),
            place.accelerators.host_memory,
        )
        remove_stale_plans(place.plans, place.engines, keep=[self._bundle.digest])
        seconds = sum(report.done.seconds for report in made.reports.values())
        gate = "" if made.gate is None else f"; {passed_reason(made.gate, 'on this GPU')}"
        return f"{precision.value} plans compiled in {seconds:.0f} s{gate}"

    def _installed(self, work: EngineToCompile, *, judged: bool) -> tuple[bool, GateRecord | None]:
        """Whether plans are there, and, of INT8, what the gate saw of them."""
        plans = self._place.plans.find(work.key)
        if plans is None:
            return False, None
        gate = recorded_gate(plans, self._bundle.digest) if judged else None
        if judged and gate is None:
            raise PlanError("the int8 plans have not been judged on this machine")
        return True, gate


def _digest_of(folder: Path | None) -> str:
    """Of a set, so that another one is tried where the last failed; a missing or broken one has a digest, too."""
    if folder is None or not folder.is_dir():
        return _MISSING
    try:
        return dataset_digest(folder)
    except (DatasetError, OSError) as error:
        return f"unreadable: {error}"


def was_refused(error: Exception, make: Make, step: Step, target: CompileTarget | str) -> bool:
    """Whether a step came to its end with something that may not be served; else trying again may help."""
    if not isinstance(error, RefusedPrecisionError):
        return False
    if step is Step.CALIBRATE:
        return True
    try:
        found = make.plans(step, target)
    except (BundleError, PlanError):
        return False
    return isinstance(found, Found) and found.refused
