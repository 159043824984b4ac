"""Compiles what a bundle needs on TensorRT and installs it: one set of plans for each precision it can be served in.

::

    bundle, and its INT8 engine if one passed its gate
      -> the graphs in TensorRT's dialect, in float16 and in INT8
      -> profiles for the sizes that serving has
      -> the key; where plans of this key are installed and whole, there is nothing to do
      -> plan after plan, each in a process of its own; what is finished survives an interruption
      -> installed as a set, in place of the one before

INT8 comes first: it needs less memory, and is what is served.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.engines.tensorrt.job import BuildJob
from orin_rerank.errors import BundleError, PlanError, RefusedPrecisionError, SettingsError
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.plan_work import EngineToCompile, PlanToCompile, engine_to_compile
from orin_rerank.lifecycle.precision import HOW_TO_GET_INT8, find_int8

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.plan_store import PlanStore, StagedPlans
    from orin_rerank.engines.plans import PlanEntry, PlanSet
    from orin_rerank.engines.store import EngineStore
    from orin_rerank.engines.tensorrt.builder import BuildReport, PlanBuilder
    from orin_rerank.engines.tensorrt.job import BuildEvent
    from orin_rerank.lifecycle.compile_target import CompileTarget

__all__ = [
    "CompileOptions",
    "CompileSpectator",
    "CompiledEngine",
    "EngineToCompile",
    "PlanToCompile",
    "compile_bundle",
    "engine_to_compile",
]

_LEAST_WORKSPACE: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How to compile, checked when made.

    Attributes:
        settings: What the engine will be served with: plans are for its precision and its token budget.
        workspace_bytes: What a kernel may use beside inputs and outputs; halved where memory is short.
        level: How hard to look for fast kernels, from 0 to 5.
        again: Whether to compile what is installed already.

    Raises:
        SettingsError: If a value is out of its range; the item names it.
    """

    settings: EngineSettings = field(default_factory=EngineSettings)
    workspace_bytes: int = 1 << 30
    level: int = 3
    again: bool = False

    def __post_init__(self) -> None:
        if self.workspace_bytes < _LEAST_WORKSPACE:
            raise SettingsError(f"must be {_LEAST_WORKSPACE >> 20} MiB or more", item="workspace")
        if not 0 <= self.level <= 5:
            raise SettingsError(f"must be from 0 to 5, not {self.level}", item="level")


@dataclass(frozen=True, slots=True)
class CompiledEngine:
    """Plans that are installed.

    Attributes:
        work: What was to be done.
        plans: The set.
        reports: What compiling took, by the plan's name; those that were there already are not among them.
    """

    work: EngineToCompile
    plans: PlanSet
    reports: dict[str, BuildReport]


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


def compile_bundle(
    source: Bundle,
    options: CompileOptions,
    target: CompileTarget,
    engines: EngineStore,
    plans: PlanStore,
    builder: PlanBuilder,
    spectator: CompileSpectator | None = None,
) -> list[CompiledEngine]:
    """Compiles and installs every plan that a bundle, and its INT8 engine if it has one, needs on a GPU.

    What was compiled is kept even if a later plan fails, or the process is interrupted.

    Args:
        source: The full-precision bundle.
        options: How to compile, and which precisions.
        target: What for.
        engines: Where INT8 engines are installed.
        plans: Where plans are.
        builder: Compiles.
        spectator: Told how it gets on.

    Raises:
        BundleError: If the bundle is altered, an INT8 one itself, or has no graphs for TensorRT.
        RefusedPrecisionError: If INT8 was asked for and there is none that can be trusted.
        BuildError: If a plan could not be compiled; see `PlanBuilder.build`.
        StoreError: If plans cannot be written, or another process is compiling for this bundle.
    """
    spectator = spectator or CompileSpectator()
    if source.manifest.source is not None:
        raise BundleError("is an INT8 engine; name the bundle that it was made from", item=str(source.folder))
    found = list(_bundles(source, options.settings.precision, engines, spectator))
    work = [engine_to_compile(bundle, precision, options.settings, target, plans) for bundle, precision in found]
    spectator.on_work(work)
    cache = engines.root / "timing" / f"{target.runtime.replace(' ', '-')}.cache"
    return [_Compilation(one, options, target, plans, builder, spectator, cache).run() for one in work]


def _bundles(
    source: Bundle, choice: PrecisionChoice, engines: EngineStore, spectator: CompileSpectator
) -> list[tuple[Bundle, Precision]]:
    """The bundles whose graphs are to be compiled, verified, each with what it computes in."""
    found = []
    if choice is not PrecisionChoice.FULL:
        try:
            int8 = find_int8(source, engines, spectator.on_report)
        except BundleError as error:
            if choice is PrecisionChoice.INT8:
                raise
            spectator.on_warning(f"an INT8 engine is installed, but refused, and is not compiled: {error}")
            int8 = None
        if int8 is not None:
            found.append((int8.bundle, Precision.INT8_FP16))
        elif choice is PrecisionChoice.INT8:
            raise RefusedPrecisionError(f"no INT8 engine is installed for this bundle; {HOW_TO_GET_INT8}")
    if choice is not PrecisionChoice.INT8:
        source.verify(spectator.on_report)
        found.append((source, Precision.FP16))
    return found


class _Compilation:
    """The making of one set of plans."""

    def __init__(
        self,
        work: EngineToCompile,
        options: CompileOptions,
        target: CompileTarget,
        store: PlanStore,
        builder: PlanBuilder,
        spectator: CompileSpectator,
        timing_cache: Path,
    ) -> None:
        self._work = work
        self._options = options
        self._target = target
        self._store = store
        self._builder = builder
        self._spectator = spectator
        self._timing_cache = timing_cache
        self._reports: dict[str, BuildReport] = {}

    def run(self) -> CompiledEngine:
        """Compiles what is missing, and installs the set."""
        plans = None if self._options.again else self._installed()
        if plans is None:
            with self._store.staging(self._work.key, [plan.name for plan in self._work.plans]) as staged:
                for plan in self._work.plans:
                    self._make(plan, staged)
                plans = staged.install()
        else:
            for plan in self._work.plans:
                self._spectator.on_plan(self._work, plan, plans.manifest.plans[plan.name], None)
        return CompiledEngine(self._work, plans, self._reports)

    def _installed(self) -> PlanSet | None:
        """The set, if it is installed and whole."""
        try:
            plans = self._store.find(self._work.key)
            if plans is None:
                return None
            for plan in self._work.plans:
                self._spectator.on_report(f"verifying {self._work.precision} {plan.name}")
                plans.verify(plan.name)
        except PlanError as error:
            self._spectator.on_warning(f"{error}; it is compiled again")
            return None
        return plans

    def _make(self, plan: PlanToCompile, staged: StagedPlans) -> None:
        if entry := staged.finished.get(plan.name):
            self._spectator.on_plan(self._work, plan, entry, None)
            return
        job = BuildJob(
            plan.graph,
            staged.path(plan.name),
            plan.profiles,
            self._options.workspace_bytes,
            timing_cache=self._timing_cache,
            level=self._options.level,
            target=self._target.sibling,
        )
        report = self._builder.build(job, lambda event: self._spectator.on_event(self._work, plan, event))
        self._reports[plan.name] = report
        entry = staged.add(plan.name, report.done.seconds)
        self._spectator.on_plan(self._work, plan, entry, report)
