"""What the process that compiles is told, and what it says: plain values that travel as lines of JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from orin_rerank.engines.tensorrt.profiles import ShapeProfile
from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BuildDone",
    "BuildEvent",
    "BuildFailed",
    "BuildJob",
    "BuilderSaid",
    "Failure",
    "PhaseFinished",
    "PhaseStarted",
    "StepDone",
    "Watch",
    "event_from_line",
    "event_to_line",
]

DEFAULT_LEVEL: Final = 3
"""TensorRT's own default of how hard to look for fast kernels, from 0 to 5."""


@dataclass(frozen=True, slots=True)
class BuildJob:
    """One graph to compile.

    Attributes:
        graph: The ONNX file.
        plan: Where the plan goes; a file there is replaced, and only by a whole one.
        profiles: For which sizes to compile.
        workspace_bytes: What a kernel may use beside inputs and outputs.
        weights: Folder of the weight file; None where it lies beside the graph.
        timing_cache: File of measured kernels, read if it fits this compiler and GPU, and written afterwards.
        level: How hard to look for fast kernels, from 0 to 5.
        target: The GPU, such as `SM86`, where the compiler can choose; None means that of this machine.
    """

    graph: Path
    plan: Path
    profiles: tuple[ShapeProfile, ...]
    workspace_bytes: int
    weights: Path | None = None
    timing_cache: Path | None = None
    level: int = DEFAULT_LEVEL
    target: str | None = None

    def to_line(self) -> str:
        """One line of JSON."""
        value = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({**value, "profiles": [p.to_value() for p in self.profiles]}, default=str)

    @classmethod
    def from_line(cls, line: str) -> BuildJob:
        """From what `to_line` gave."""
        value: dict[str, Any] = json.loads(line)
        paths = {
            name: None if value[name] is None else Path(value[name])
            for name in ("graph", "plan", "weights", "timing_cache")
        }
        return cls(**{**value, **paths, "profiles": tuple(ShapeProfile.from_value(p) for p in value["profiles"])})


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A phase of the build began; phases nest."""

    phase: str
    parent: str | None
    steps: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step of a phase was done; steps count from 0."""

    phase: str
    step: int


@dataclass(frozen=True, slots=True)
class PhaseFinished:
    """A phase ended, perhaps before its last step."""

    phase: str


@dataclass(frozen=True, slots=True)
class BuilderSaid:
    """A warning or error of the compiler."""

    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class BuildDone:
    """The plan is on disk.

    Attributes:
        runtime: The compiler and its version, such as `tensorrt 10.3.0`.
        plan_bytes: Size of the plan.
        layers: Of the network, before anything was fused.
        seconds: From reading the graph to the plan on disk.
        peak_bytes: Most memory that the process held at a time.
        timing_cache_used: Whether the compiler took a file of kernels measured earlier; damaged ones it takes as empty.
    """

    runtime: str
    plan_bytes: int
    layers: int
    seconds: float
    peak_bytes: int
    timing_cache_used: bool


class Failure:
    """Why a build failed, as far as the process that compiles can tell."""

    REFUSED: Final = "refused"
    """The graph is not one that the compiler takes."""
    CANCELLED: Final = "cancelled"
    MEMORY: Final = "memory"
    MISSING: Final = "missing"
    """There is no compiler."""
    OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """There is no plan.

    Attributes:
        why: One of `Failure`.
        message: What is the matter, for people.
        item: The offending node or file.
        advice: What to do about it; None means what helps with such a failure as a rule.
    """

    why: str
    message: str
    item: str | None = None
    advice: str | None = None


BuildEvent: TypeAlias = "PhaseStarted | StepDone | PhaseFinished | BuilderSaid | BuildDone | BuildFailed"
Watch: TypeAlias = "Callable[[BuildEvent], None]"

_EVENTS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (PhaseStarted, StepDone, PhaseFinished, BuilderSaid, BuildDone, BuildFailed)
}


def event_to_line(event: BuildEvent) -> str:
    """One line of JSON."""
    return json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)})


def event_from_line(line: str | bytes) -> BuildEvent:
    """From what `event_to_line` gave.

    Raises:
        InternalError: If it is no event.
    """
    try:
        value = json.loads(line)
        event: BuildEvent = _EVENTS[value.pop("event")](**value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InternalError(f"the process that compiles wrote what is no event: {error}") from error
    return event
