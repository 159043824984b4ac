"""How far a build is, from its nested phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.engines.tensorrt.job import PhaseFinished, PhaseStarted, StepDone

if TYPE_CHECKING:
    from orin_rerank.engines.tensorrt.job import BuildEvent

__all__ = ["BuildProgress"]


@dataclass(slots=True)
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class BuildProgress:
    """Watches a build, as `PlanBuilder.build` takes a watcher.

    Steps of a phase are taken to last equally long, and what runs inside a phase to be a part of its current step. They
    don't, so this is for a bar to move by, and for estimates that improve.
    """

    def __init__(self) -> None:
        self._active: dict[str, _Phase] = {}
        self._fraction = 0.0

    def __call__(self, event: BuildEvent) -> None:
        """Takes an event."""
        if isinstance(event, PhaseStarted):
            if event.parent is None:  # the first of a build, or of another attempt
                self._active.clear()
                self._fraction = 0.0
            self._active[event.phase] = _Phase(event.parent, max(event.steps, 1))
        elif isinstance(event, StepDone):
            phase = self._active.get(event.phase)
            if phase is not None:
                phase.done = min(event.step + 1, phase.steps)
        elif isinstance(event, PhaseFinished):
            phase = self._active.pop(event.phase, None)
            if phase is not None and phase.parent is None:
                self._fraction = 1.0
        self._fraction = max(self._fraction, self._computed())

    @property
    def fraction(self) -> float:
        """What share of the build is done, from 0 to 1; only a new attempt makes it smaller."""
        return self._fraction

    @property
    def phase(self) -> str:
        """The innermost phase, such as `Timing tactics`; empty before the first and after the last."""
        return next(reversed(self._active), "")

    def _computed(self) -> float:
        return sum(self._share(name) for name, phase in self._active.items() if phase.parent is None)

    def _share(self, name: str) -> float:
        phase = self._active[name]
        inside = [self._share(child) for child, other in self._active.items() if other.parent == name]
        return min(phase.done + max(inside, default=0.0), phase.steps) / phase.steps
