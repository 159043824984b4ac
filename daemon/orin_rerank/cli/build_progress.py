"""What a person sees while plans are compiled: a bar for each, what is compiled now, and an estimate of the rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from orin_rerank.cli.display import ProgressDisplay
from orin_rerank.cli.output import progress_console, snippet
from orin_rerank.engines.tensorrt.job import BuilderSaid
from orin_rerank.engines.tensorrt.progress import BuildProgress
from orin_rerank.lifecycle.compile import CompileSpectator
from orin_rerank.lifecycle.forecast import Forecast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Task

    from orin_rerank.engines.plans import PlanEntry
    from orin_rerank.engines.tensorrt.builder import BuildReport
    from orin_rerank.engines.tensorrt.job import BuildEvent
    from orin_rerank.errors import BuildError
    from orin_rerank.lifecycle.compile import EngineToCompile, PlanToCompile
    from orin_rerank.quantization.gate import GateRecord

__all__ = ["ShownBuild", "gate_summary", "span"]

_STATE_CELLS: Final = 24
_OPENING_CELLS: Final = 46
_WAITS: Final = "waits"
_MOST_WARNINGS: Final = 5
"""The compiler may repeat itself for every layer."""


class ShownBuild(ProgressDisplay, CompileSpectator):
    """Shows a build on standard error: bars where that is a terminal, a line for each plan everywhere.

    Attributes:
        warnings: All of them, those of the compiler included, each once.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._err = progress_console()
        self._rest = _Rest()
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=14),
            _Share(),
            TextColumn("{task.fields[state]}", markup=False),
            self._rest,
            console=self._err,
            transient=True,
        )
        self._opening: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._builds: dict[str, BuildProgress] = {}
        self._all: TaskID | None = None
        self._gates: dict[str, TaskID] = {}

    def _on_interrupt(self) -> None:
        self._say("stopped; what is compiled is kept, and the same command goes on from there")

    def on_report(self, what: str) -> None:
        """Shows what is done before anything is compiled."""
        if self._opening is None:
            self._opening = self._progress.add_task("checking", total=None, state="")
        self._progress.update(self._opening, state=snippet(what, _OPENING_CELLS))

    def on_warning(self, warning: str) -> None:
        """Shows a warning, once."""
        if warning not in self.warnings:
            self.warnings.append(warning)
            self._say(f"warning: {warning}", "yellow")

    def on_work(self, work: Sequence[EngineToCompile]) -> None:
        """Puts up a bar for each plan, and one for all of them."""
        plans = {_label(engine, plan): plan for engine in work for plan in engine.plans}
        earlier = {label: plan.earlier_s for label, plan in plans.items() if plan.earlier_s is not None}
        if earlier.keys() == plans.keys():
            self._rest.forecast = Forecast(earlier, in_seconds=True)
        else:
            self._rest.forecast = Forecast({label: plan.effort for label, plan in plans.items()})
        if self._opening is not None:
            self._progress.update(self._opening, visible=False)
        self._tasks = {label: self._progress.add_task(label, total=1, state=_WAITS) for label in plans}
        self._all = self._progress.add_task("all plans", total=1, state="")
        self._rest.shown_at = self._all

    def on_event(self, engine: EngineToCompile, plan: PlanToCompile, event: BuildEvent) -> None:
        """Moves the bars, or shows what the compiler warns of."""
        label = _label(engine, plan)
        task = self._tasks[label]
        if label not in self._builds:
            self._builds[label] = BuildProgress()
            self._progress.reset(task, total=1, state="")  # its time begins now
        if isinstance(event, BuilderSaid):
            self._warn(label, event.text)
            return
        build = self._builds[label]
        build(event)
        self._progress.update(task, completed=build.fraction, state=snippet(build.phase, _STATE_CELLS))
        self._rest.forecast.moved(label, build.fraction)
        self._move_all()

    def on_plan(
        self, engine: EngineToCompile, plan: PlanToCompile, entry: PlanEntry, report: BuildReport | None
    ) -> None:
        """Fills a bar, and says what came of it."""
        label = _label(engine, plan)
        self._progress.update(self._tasks[label], completed=1, state="" if report else "was there already")
        if report is None:
            self._rest.forecast.skip(label)
        else:
            self._rest.forecast.moved(label, 1.0)
            self._say(f"{label}: {entry.bytes / 1e6:.1f} MB in {span(entry.build_s)}")
        self._move_all()

    def on_failure(self, engine: EngineToCompile, error: BuildError) -> None:
        """Takes the rest of a set out of the reckoning, and says why."""
        for plan in engine.plans:
            label = _label(engine, plan)
            task = self._tasks[label]
            if not self._progress.tasks[task].finished:
                self._rest.forecast.ended(label)
                self._progress.update(task, visible=False)
        self._move_all()
        self.on_warning(f"{engine.precision} is not compiled, what is left is: {error}")

    def on_judging(self, engine: EngineToCompile, done: int, total: int) -> None:
        """Moves the bar of a gate, which is put up when it begins."""
        if engine.precision not in self._gates:
            self._gates[engine.precision] = self._progress.add_task(f"{engine.precision} gate", total=total, state="")
            self._rest.pause()
        task = self._gates[engine.precision]
        if done <= 1:
            self._progress.reset(task)  # loading the plans tells nothing of how fast they are
        state = f"{done} of {total} queries" if done else "loading the plans"
        self._progress.update(task, completed=done, state=state)

    def on_verdict(self, engine: EngineToCompile, record: GateRecord | None) -> None:
        """Says what came of it; why not, if it was refused, is a warning or the error that ends the command."""
        self._rest.go_on()
        task = self._gates.get(engine.precision)
        if task is None:
            return  # it was judged before
        if record is None:
            self._progress.update(task, visible=False)
        else:
            self._say(f"{engine.precision} gate: {gate_summary(record)}")

    def _move_all(self) -> None:
        assert self._all is not None
        self._progress.update(self._all, completed=self._rest.forecast.fraction)

    def _warn(self, label: str, text: str) -> None:
        """A warning of the compiler's; of many, the first few."""
        mine = [warning for warning in self.warnings if warning.startswith(f"{label}: ")]
        if len(mine) < _MOST_WARNINGS:
            self.on_warning(f"{label}: {snippet(text, 300)}")

    def _say(self, line: str, style: str = "") -> None:
        self._err.print(Text(line, style=style), soft_wrap=True)


class _Share(ProgressColumn):
    """How much of a task is done, where that is known."""

    def render(self, task: Task) -> Text:
        """The cell of a bar."""
        return Text("" if task.total is None else f"{task.percentage:>3.0f}%")


class _Rest(ProgressColumn):
    """Time: of a plan how long it has taken; of all of them, and of the gate, what remains.

    The gate tries plans between the builds of two engines: no time of theirs.
    """

    max_refresh = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.forecast: Forecast[str] = Forecast({})
        self.shown_at: TaskID | None = None
        self._paused_s = 0.0
        self._paused_since: float | None = None

    def pause(self) -> None:
        """From now on nothing is compiled."""
        self._paused_since = time.monotonic()

    def go_on(self) -> None:
        """From now on something is again."""
        if self._paused_since is not None:
            self._paused_s += time.monotonic() - self._paused_since
            self._paused_since = None

    def render(self, task: Task) -> Text:
        """The cell of a bar."""
        elapsed = (task.finished_time if task.finished else task.elapsed) or 0.0
        if task.id == self.shown_at:
            paused = self._paused_s + (0.0 if self._paused_since is None else time.monotonic() - self._paused_since)
            return _left(None if task.finished else self.forecast.remaining_s(elapsed - paused))
        if task.total != 1 and not task.finished:
            return _left(elapsed * (task.remaining or 0) / task.completed if task.completed else None)
        return Text("" if task.fields["state"] == _WAITS else span(elapsed), style="dim")


def gate_summary(record: GateRecord) -> str:
    """What a gate saw, in a few words."""
    total = record.report.total
    verdict = "passed" if record.verdict.passed else "refused"
    if total.non_finite:
        return f"{verdict}, {total.non_finite} of {total.documents} margins are not finite"
    change = 100 * total.difference.mean
    return f"{verdict}, NDCG@10 {change:+.2f} points, margins correlate by {total.correlation:.4f}"


def _left(seconds: float | None) -> Text:
    return Text("" if seconds is None else f"{span(seconds)} left")


def span(seconds: float) -> str:
    """A span of time: `9 s`, `4 min 5 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _label(engine: EngineToCompile, plan: PlanToCompile) -> str:
    """What a bar is called, such as `int8-fp16 text`."""
    return f"{engine.precision} {plan.name.partition('.')[0]}"
