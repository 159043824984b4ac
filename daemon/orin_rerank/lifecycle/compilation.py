"""The making of one set of plans: compiled, judged where it is INT8, installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.engines.tensorrt.job import BuildJob
from orin_rerank.errors import (
    DeviceLostError,
    EngineError,
    OrinRerankError,
    PlanError,
    RefusedPrecisionError,
)
from orin_rerank.lifecycle.precision import HOW_TO_REPLACE_PLANS, PLAN_GATE_FILE, recorded_gate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from orin_rerank.engines.host_memory import HostMemory
    from orin_rerank.engines.plan_store import PlanStore, StagedPlans
    from orin_rerank.engines.plans import PlanEntry, PlanSet
    from orin_rerank.engines.tensorrt.builder import BuildReport, PlanBuilder
    from orin_rerank.engines.tensorrt.job import BuildEvent
    from orin_rerank.errors import BuildError
    from orin_rerank.lifecycle.compile import CompileOptions
    from orin_rerank.lifecycle.compile_target import CompileTarget
    from orin_rerank.lifecycle.plan_judging import PlanJudge
    from orin_rerank.lifecycle.plan_work import EngineToCompile, PlanToCompile
    from orin_rerank.quantization.gate import GateRecord

__all__ = ["Compilation", "CompileSpectator", "CompiledEngine"]


@dataclass(frozen=True, slots=True)
class CompiledEngine:
    """Plans that are installed.

    Attributes:
        work: What was to be done.
        plans: The set.
        reports: What compiling took, by the plan's name; those that were there already are not among them.
        gate: What the gate saw of INT8 plans on this machine; None for other plans, and where nothing can judge them.
    """

    work: EngineToCompile
    plans: PlanSet
    reports: dict[str, BuildReport]
    gate: GateRecord | None = None

    def check_gate(self) -> None:
        """Makes sure that the gate did not refuse the plans.

        Raises:
            RefusedPrecisionError: If it did; the message says why and what to do.
        """
        if self.gate is not None and not self.gate.verdict.passed:
            raise RefusedPrecisionError(f"{_refusal(self.gate)}; {HOW_TO_REPLACE_PLANS}")


class CompileSpectator:
    """Who is told how compiling gets on; this one does not care."""

    def on_report(self, what: str) -> None:
        """Something is being done before anything is compiled."""

    def on_warning(self, warning: str) -> None:
        """Something is not as it should be, but no reason to stop; a sentence."""

    def on_work(self, work: Sequence[EngineToCompile]) -> None:
        """This is what there is to do."""

    def on_event(self, engine: EngineToCompile, plan: PlanToCompile, event: BuildEvent) -> None:
        """The process that compiles a plan says something."""

    def on_plan(
        self, engine: EngineToCompile, plan: PlanToCompile, entry: PlanEntry, report: BuildReport | None
    ) -> None:
        """A plan is there; without a report, it was before."""

    def on_failure(self, engine: EngineToCompile, error: BuildError) -> None:
        """A set could not be compiled; the ones after it are, and then the error is raised."""

    def on_judging(self, engine: EngineToCompile, done: int, total: int) -> None:
        """So many queries of the judged set have been scored with INT8 plans, of so many."""

    def on_verdict(self, engine: EngineToCompile, record: GateRecord | None) -> None:
        """This is what the gate saw of INT8 plans, which need not have passed; None where it came to nothing."""


class Compilation:
    """The making of one set of plans.

    Attributes:
        work: What is made.
    """

    def __init__(
        self,
        work: EngineToCompile,
        options: CompileOptions,
        target: CompileTarget,
        store: PlanStore,
        builder: PlanBuilder,
        spectator: CompileSpectator,
        timing_cache: Path,
        judge: PlanJudge | None,
        host_memory: Callable[[], HostMemory],
    ) -> None:
        self.work = work
        self._options = options
        self._target = target
        self._store = store
        self._builder = builder
        self._spectator = spectator
        self._timing_cache = timing_cache
        self._judge = judge
        self._host_memory = host_memory
        self._reports: dict[str, BuildReport] = {}

    def run(self) -> CompiledEngine:
        """Compiles what is missing, has INT8 judged, and installs the set.

        Raises:
            RefusedPrecisionError: If INT8 cannot be judged, or is refused where other plans are in service that passed.
            MemoryShortError: If there is not enough memory to compile a plan.
            BuildError: If a plan could not be compiled.
            StoreError: If plans cannot be written, or another process is compiling for this bundle.
            DeviceLostError: If the GPU is lost while plans are judged.
        """
        plans = None if self._options.again else self._installed()
        if plans is None:
            names = [plan.name for plan in self.work.plans]
            with self._store.staging(self.work.key, names, self.work.bundle.folder) as staged:
                for plan in self.work.plans:
                    self._make(plan, staged)
                record = self._judged(staged.complete(), staged)
                plans = staged.install()
        else:
            for plan in self.work.plans:
                self._spectator.on_plan(self.work, plan, plans.manifest.plans[plan.name], None)
            record = self._judged(plans, None)
        return CompiledEngine(self.work, plans, self._reports, record)

    def _judged(self, plans: PlanSet, staged: StagedPlans | None) -> GateRecord | None:
        """What the gate sees of plans, or has seen already; recorded beside them.

        Plans that are staged are thrown away if they compute something else, or are refused where others are in
        service that passed.
        """
        judge = self._judge
        if judge is None:
            return None
        source = judge.int8.gate.subject.source
        record = None if staged is not None else recorded_gate(plans, source)
        if record is None:
            try:
                record = judge.judge(plans, lambda done, total: self._spectator.on_judging(self.work, done, total))
            except DeviceLostError:
                raise
            except (EngineError, PlanError) as error:
                self._spectator.on_verdict(self.work, None)
                raise self._unjudged(error, staged) from error
            plans.attach(PLAN_GATE_FILE, record.to_json())
        self._spectator.on_verdict(self.work, record)
        if staged is not None and not record.verdict.passed and self._has_passed(source):
            staged.discard()
            raise RefusedPrecisionError(
                f"{_refusal(record)}; the {self.work.precision} plans that passed before stay in service"
            )
        return record

    def _unjudged(self, error: OrinRerankError, staged: StagedPlans | None) -> RefusedPrecisionError:
        """The error to raise where plans came to no scores; they are thrown away if it is their own fault."""
        plans = f"the {self.work.precision} plans"
        if not isinstance(error, PlanError):
            return RefusedPrecisionError(
                f"{plans} could not be judged on this GPU: {error}; the same command tries again, and compiles nothing "
                "again for it"
            )
        if staged is not None:
            staged.discard()
        return RefusedPrecisionError(
            f"{plans} do not load on the GPU that they were compiled for: {error}; {HOW_TO_REPLACE_PLANS}"
        )

    def _has_passed(self, source: str) -> bool:
        """Whether plans of this key are in service that passed their gate."""
        try:
            before = self._store.find(self.work.key)
        except PlanError:
            return False
        record = None if before is None else recorded_gate(before, source)
        return record is not None and record.verdict.passed

    def _installed(self) -> PlanSet | None:
        """The set, if it is installed and whole."""
        try:
            plans = self._store.find(self.work.key)
            if plans is None:
                return None
            for plan in self.work.plans:
                self._spectator.on_report(f"verifying {self.work.precision} {plan.name}")
                plans.verify(plan.name)
        except PlanError as error:
            self._spectator.on_warning(f"{error}; it is compiled again")
            return None
        return plans

    def _make(self, plan: PlanToCompile, staged: StagedPlans) -> None:
        if entry := staged.finished.get(plan.name):
            self._spectator.on_plan(self.work, plan, entry, None)
            return
        self.work.memory.check_build(self._host_memory())
        job = BuildJob(
            plan.graph,
            staged.path(plan.name),
            plan.profiles,
            self._options.workspace_bytes or self.work.memory.workspace_bytes,
            timing_cache=self._timing_cache,
            level=self._options.level,
            target=self._target.sibling,
        )
        report = self._builder.build(job, lambda event: self._spectator.on_event(self.work, plan, event))
        self._reports[plan.name] = report
        entry = staged.add(plan.name, report.done.seconds)
        self._spectator.on_plan(self.work, plan, entry, report)


def _refusal(record: GateRecord) -> str:
    return f"the gate refuses INT8 as it was compiled for this GPU: {'; '.join(record.verdict.reasons)}"
