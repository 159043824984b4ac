"""Compiles graphs in processes of their own, and makes an error with a name of whatever becomes of these."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.durable import part_of
from orin_rerank.engines.tensorrt.job import BuildDone, BuilderSaid, BuildFailed, Failure
from orin_rerank.engines.tensorrt.process import BuildProcess
from orin_rerank.engines.tensorrt.symptoms import advice_on
from orin_rerank.errors import (
    BuildCancelledError,
    BuildError,
    BuildOutOfMemoryError,
    BuildTimeoutError,
    GraphRefusedError,
    TensorRtMissingError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orin_rerank.engines.tensorrt.job import BuildJob, Watch

__all__ = ["CHILD", "BuildLimits", "BuildReport", "PlanBuilder"]

CHILD: Final = (
    sys.executable,
    "-c",
    "import sys; sys.path[:] = filter(None, sys.path); from orin_rerank.engines.tensorrt.child import run; run()",
)
"""What runs as the process that compiles.

What lies in the folder that this was started in is no module of ours, so the empty entry that stands for it goes before
anything is imported. PYTHONSAFEPATH would do the same, but not for Python 3.10; isolation (`-I`) would also pass over
PYTHONPATH and the user's packages, where a board may have its TensorRT.
"""

_POLL_S: Final = 0.1
_ERRORS: Final[dict[str, type[BuildError]]] = {
    Failure.REFUSED: GraphRefusedError,
    Failure.CANCELLED: BuildCancelledError,
}


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """How long to wait, and how small a workspace to try.

    Attributes:
        total_s: For one attempt.
        silence_s: Without any event: a board that is out of memory may hang rather than fail.
        grace_s: From asking a process to stop until it is killed.
        attempts: How many are made where memory is short. Most of it goes to weights, which no workspace changes.
        least_workspace_bytes: No attempt is made with less.
    """

    total_s: float = 6 * 3600.0
    silence_s: float = 1800.0
    grace_s: float = 3.0
    attempts: int = 3
    least_workspace_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class BuildReport:
    """A plan that was compiled.

    Attributes:
        done: What the process said at its end.
        attempts: How many there were.
        workspace_bytes: That of the attempt that succeeded.
    """

    done: BuildDone
    attempts: int
    workspace_bytes: int


class PlanBuilder:
    """Compiles graphs.

    Args:
        limits: See there.
        command: What to run as the process that compiles.
    """

    def __init__(self, limits: BuildLimits | None = None, command: Sequence[str] = CHILD) -> None:
        self._limits = limits or BuildLimits()
        self._command = tuple(command)

    def build(
        self,
        job: BuildJob,
        watch: Watch = lambda _event: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> BuildReport:
        """Compiles a graph; where memory was short, again with half the workspace.

        Args:
            job: What to compile.
            watch: Told of phases, steps and warnings, in this thread; a new attempt begins with its first phase.
            is_cancelled: Whether to stop; asked several times a second.

        Raises:
            GraphRefusedError: If the compiler does not take the graph; the item names graph and node.
            BuildOutOfMemoryError: If memory is short with the smallest workspace too.
            BuildTimeoutError: If it takes too long or falls silent.
            BuildCancelledError: If `is_cancelled` said so; Ctrl-C stops it likewise, and stays a KeyboardInterrupt.
            TensorRtMissingError: If there is no compiler.
            BuildError: If the compiler fails otherwise.
        """
        attempts = 1
        while True:
            done = self._attempt(job, watch, is_cancelled)
            if not isinstance(done, BuildOutOfMemoryError):
                return BuildReport(done, attempts, job.workspace_bytes)
            half = job.workspace_bytes // 2
            if attempts == self._limits.attempts or half < self._limits.least_workspace_bytes:
                tried = f"in {attempts} attempts, the last with a workspace of {job.workspace_bytes >> 20} MiB"
                raise BuildOutOfMemoryError(f"{done.message} ({tried})", item=done.item)
            watch(BuilderSaid("WARNING", f"{done}; trying again with a workspace of {half >> 20} MiB"))
            job = dataclasses.replace(job, workspace_bytes=half)
            attempts += 1

    def _attempt(
        self, job: BuildJob, watch: Watch, is_cancelled: Callable[[], bool]
    ) -> BuildDone | BuildOutOfMemoryError:
        """One attempt; that memory ran out is returned, for it may be worth another."""
        try:
            with contextlib.closing(BuildProcess(self._command, job, self._limits.grace_s)) as child:
                try:
                    outcome = self._follow(child, watch, is_cancelled)
                except KeyboardInterrupt:
                    child.stop()  # rather than kill it: after its step it keeps what it has measured
                    raise
        except BuildOutOfMemoryError as error:
            return error
        finally:
            part_of(job.plan).unlink(missing_ok=True)
        if isinstance(outcome, BuildDone):
            return outcome
        if outcome.why == Failure.MEMORY:
            return BuildOutOfMemoryError(outcome.message, item=outcome.item)
        if outcome.why == Failure.MISSING:
            raise TensorRtMissingError(outcome.message, item=outcome.item)
        advice = outcome.advice or (advice_on(outcome.message) if outcome.why == Failure.OTHER else None)
        raise _ERRORS.get(outcome.why, BuildError)(outcome.message, item=outcome.item, advice=advice)

    def _follow(self, child: BuildProcess, watch: Watch, is_cancelled: Callable[[], bool]) -> BuildDone | BuildFailed:
        """Passes events on until there is an outcome."""
        graph = child.job.graph.name
        begin = heard = time.monotonic()
        while True:
            if is_cancelled():
                child.stop()
                raise BuildCancelledError("the build was cancelled", item=graph)
            event = child.next_event(_POLL_S)
            now = time.monotonic()
            if isinstance(event, BuildFailed) and event.why == Failure.OTHER:
                return child.reconsidered(event)
            if isinstance(event, (BuildDone, BuildFailed)):
                return event
            if event is not None:
                heard = now
                watch(event)
            elif child.has_ended:
                if is_cancelled():  # whatever asked for that may have ended the child, too
                    raise BuildCancelledError("the build was cancelled", item=graph)
                raise child.death()
            for limit, since, what in (
                (self._limits.total_s, begin, "has taken longer than"),
                (self._limits.silence_s, heard, "has not moved for"),
            ):
                if now - since > limit:
                    raise BuildTimeoutError(f"the build {what} {limit:g} s and was stopped", item=graph)
