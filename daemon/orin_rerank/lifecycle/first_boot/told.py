"""What calibrating and compiling say, as a listener hears it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from orin_rerank.engines.tensorrt.builder import PlanBuilder
from orin_rerank.engines.tensorrt.job import BuilderSaid
from orin_rerank.engines.tensorrt.progress import BuildProgress
from orin_rerank.lifecycle.calibrate import Spectator
from orin_rerank.lifecycle.compile import CompileSpectator
from orin_rerank.lifecycle.first_boot.progress import Progress, Step
from orin_rerank.lifecycle.forecast import Forecast
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orin_rerank.engines.plans import PlanEntry
    from orin_rerank.engines.tensorrt.builder import BuildReport
    from orin_rerank.engines.tensorrt.job import BuildEvent, BuildJob, Watch
    from orin_rerank.lifecycle.compile import EngineToCompile, PlanToCompile
    from orin_rerank.lifecycle.first_boot.progress import Listener

__all__ = ["StoppableBuilder", "ToldBuild", "ToldCalibration"]

_log = logging.getLogger(__name__)


class ToldCalibration(Spectator):
    """Passes a calibration's stages on.

    Args:
        listener: Told.
        reason: Why it is made.
    """

    def __init__(self, listener: Listener, reason: str) -> None:
        self._listener = listener
        self._reason = reason

    def on_stage(self, stage: str, done: int, total: int) -> None:
        """Tells how far a stage is; its share is the stage's, for how long the others take is not known."""
        fraction = done / total if total else None
        detail = f"{stage}, {done:,} so far" if done and not total else stage
        self._listener(Progress(Step.CALIBRATE, detail, fraction, None, self._reason))

    def on_warning(self, warning: str) -> None:
        """Puts a warning into the journal."""
        _log.warning("calibration", extra=fields(warning=warning))


class ToldBuild(CompileSpectator):
    """Passes a build's events on, with an estimate of the rest.

    Args:
        step: Which build it is.
        listener: Told.
        reason: Why it is made.
        on_further: Told of each plan that need not be compiled again.
    """

    def __init__(self, step: Step, listener: Listener, reason: str, on_further: Callable[[], None]) -> None:
        self._step = step
        self._listener = listener
        self._reason = reason
        self._on_further = on_further
        self._forecast: Forecast[str] = Forecast({})
        self._builds: dict[str, BuildProgress] = {}
        self._began_s: float | None = None

    def on_report(self, what: str) -> None:
        """Tells what is done before anything is compiled."""
        self._listener(Progress(self._step, what, reason=self._reason))

    def on_warning(self, warning: str) -> None:
        """Puts a warning into the journal."""
        _log.warning("build", extra=fields(warning=warning))

    def on_work(self, work: Sequence[EngineToCompile]) -> None:
        """Takes note of what there is to do."""
        plans = {plan.name: plan for engine in work for plan in engine.plans}
        earlier = {name: plan.earlier_s for name, plan in plans.items() if plan.earlier_s is not None}
        if earlier.keys() == plans.keys():
            self._forecast = Forecast(earlier, in_seconds=True)
        else:
            self._forecast = Forecast({name: plan.effort for name, plan in plans.items()})

    def on_event(self, engine: EngineToCompile, plan: PlanToCompile, event: BuildEvent) -> None:
        """Tells how far the build is."""
        del engine
        if isinstance(event, BuilderSaid):
            _log.warning("compiler", extra=fields(plan=plan.name, says=event.text))
        now = time.monotonic()
        self._began_s = now if self._began_s is None else self._began_s
        build = self._builds.setdefault(plan.name, BuildProgress())
        build(event)
        self._forecast.moved(plan.name, build.fraction)
        left = self._forecast.remaining_s(now - self._began_s)
        detail = f"compiling {plan.name}" + (f", {build.phase}" if build.phase else "")
        self._listener(Progress(self._step, detail, self._forecast.fraction, left, self._reason))

    def on_plan(
        self, engine: EngineToCompile, plan: PlanToCompile, entry: PlanEntry, report: BuildReport | None
    ) -> None:
        """Takes note of a plan that is finished."""
        del engine
        if report is None:
            self._forecast.skip(plan.name)
            return
        self._forecast.moved(plan.name, 1.0)
        _log.info("plan compiled", extra=fields(plan=plan.name, bytes=entry.bytes, seconds=entry.build_s))
        self._on_further()

    def on_judging(self, engine: EngineToCompile, done: int, total: int) -> None:
        """Tells how far the gate is."""
        del engine
        detail = "judging INT8 on this GPU" if done else "loading the plans to be judged"
        self._listener(Progress(Step.GATE, detail, done / total if total else None, None, self._reason))


class StoppableBuilder(PlanBuilder):
    """A builder that also stops when a listener wants it, even while the compiler says nothing.

    Args:
        inner: Compiles.
        listener: Who may want it to stop.
    """

    def __init__(self, inner: PlanBuilder, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener

    def build(
        self,
        job: BuildJob,
        watch: Watch = lambda _event: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> BuildReport:
        """As `PlanBuilder.build`."""
        return self._inner.build(job, watch, lambda: self._listener.stopping or is_cancelled())
