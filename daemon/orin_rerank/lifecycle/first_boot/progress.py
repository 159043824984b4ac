"""What a machine that is being prepared is at, for everyone who waits for it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["AGAIN", "Listener", "Progress", "Step", "span"]

AGAIN: Final = "`orin-rerank prepare --again` tries it at once"
"""What a person can do about everything that waits."""


class Step(str, enum.Enum):
    """A step on the way to serving, by the name that the journal, the protocol and people have for it."""

    BOARD = "board"
    MEMORY = "memory"
    POWER_MODE = "power-mode"
    CLOCKS = "clocks"
    GPU = "gpu"
    CALIBRATE = "calibrate"
    BUILD_INT8 = "build-int8"
    GATE = "gate"
    BUILD_FULL = "build-full"
    LOAD = "load"
    WAIT = "wait"
    """Nothing can be served yet, and what failed, or ended the process, is tried again later."""


_PATIENCE_S: Final = {
    # The compiler may be silent for half an hour before it is given up (`BuildLimits`); then a plan is hashed.
    Step.BUILD_INT8: 2400.0,
    Step.BUILD_FULL: 2400.0,
    # Weights of 16 GB are read twice in one stage, and one pack of the 8B takes a processor a minute.
    Step.CALIBRATE: 1800.0,
    Step.GATE: 900.0,
    Step.LOAD: 900.0,
}
_USUAL_PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step is.

    Attributes:
        step: Which.
        detail: What is being done, for people.
        fraction: How much of the step is done, from 0 to 1; None where that is not known.
        seconds_left: How long the step will still take; None likewise.
        reason: Why the step is taken, for people.
    """

    step: Step
    detail: str
    fraction: float | None = None
    seconds_left: float | None = None
    reason: str = ""

    @property
    def patience_s(self) -> float:
        """How long nothing may be heard of this step before it counts as hung."""
        return _PATIENCE_S.get(self.step, _USUAL_PATIENCE_S)

    def __str__(self) -> str:
        share = "" if self.fraction is None else f", {self.fraction:.0%}"
        left = "" if self.seconds_left is None else f", about {span(self.seconds_left)} left"
        why = f" ({self.reason})" if self.step is Step.WAIT and self.reason else ""
        return f"{self.step.value}: {self.detail}{share}{left}{why}"


class Listener(Protocol):
    """Who is told how it gets on, and may want it to end."""

    def __call__(self, progress: Progress, /) -> None:
        """Takes note.

        Raises:
            UnavailableError: If it is to end here.
        """

    @property
    def stopping(self) -> bool:
        """Whether it is to end."""


def span(seconds: float) -> str:
    """A rough span of time: `40 s`, `12 min`, `2 h 10 min`."""
    if seconds < 60:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    return " ".join(part for number, part in ((hours, f"{hours} h"), (minutes, f"{minutes} min")) if number)
