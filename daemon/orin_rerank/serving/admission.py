"""Whether a request may come in, and what it is told where it may not. Nothing is locked, changed or waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orin_rerank.errors import DeadlineError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from orin_rerank.serving.job import Job
    from orin_rerank.serving.throughput import Throughput

__all__ = ["Admission", "open_documents"]

_RETRY_S: Final = (0.05, 60.0)
_RETRY_UNKNOWN_S: Final = 1.0
_DOUBT: Final = 0.5
"""A deadline counts as impossible to meet only if even this share of the estimated time is over it."""


def open_documents(jobs: Iterable[Job]) -> int:
    """How many documents wait or run."""
    return sum(job.documents - job.scored for job in jobs)


class Admission:
    """The rules. Called with the scheduler's lock held, since it reads what that guards.

    Args:
        max_queued_documents: Documents that may wait or run; a larger request is taken if it is alone.
        max_queued_bytes: The same for the messages' size.
        throughput: How fast the engine has been; measured by whoever runs it.
        clock: Monotonic seconds, on which deadlines are.
    """

    def __init__(
        self, *, max_queued_documents: int, max_queued_bytes: int, throughput: Throughput, clock: Callable[[], float]
    ) -> None:
        self._max_queued_documents = max_queued_documents
        self._max_queued_bytes = max_queued_bytes
        self._throughput = throughput
        self._clock = clock

    def limit(self, *, max_queued_documents: int, max_queued_bytes: int) -> None:
        """Changes how much may wait or run."""
        self._max_queued_documents = max_queued_documents
        self._max_queued_bytes = max_queued_bytes

    def check_deadline(self, deadline: float | None) -> None:
        """Makes sure that a deadline has not passed.

        Raises:
            DeadlineError: If it has.
        """
        if deadline is not None and deadline <= self._clock():
            raise DeadlineError("passed before the request was scored", item="deadline")

    def check_room(self, jobs: Collection[Job], documents: int, message_bytes: int) -> None:
        """Makes sure that there is room for a request beside others.

        Args:
            jobs: Those that wait or run.
            documents: How many the request has.
            message_bytes: Size of its message.

        Raises:
            OverloadedError: If there is none; says when there will be.
        """
        if not jobs:
            return
        waiting = open_documents(jobs)
        excess = waiting + documents - self._max_queued_documents
        if excess > 0:
            raise OverloadedError(
                f"{waiting} documents wait; at most {self._max_queued_documents} may",
                retry_after_s=self._retry_after(min(excess, waiting)),
            )
        waiting_bytes = sum(job.message_bytes for job in jobs)
        if waiting_bytes + message_bytes > self._max_queued_bytes:
            raise OverloadedError(
                f"requests of {waiting_bytes} bytes wait; at most {self._max_queued_bytes} may",
                retry_after_s=self._retry_after(waiting),
            )

    def check_feasible(self, deadline: float | None, tokens: int) -> None:
        """Makes sure that a deadline can be met.

        Args:
            deadline: Of the request.
            tokens: That will have been computed when it is done: its own and those that come before.

        Raises:
            DeadlineError: If it cannot, by the engine's measured speed.
        """
        seconds = self._throughput.seconds_for_tokens(tokens)
        if deadline is None or seconds is None:
            return
        left = deadline - self._clock()
        if seconds * _DOUBT > left:
            raise DeadlineError(
                f"cannot be met: {left:.2f} s are left for about {seconds:.2f} s of work", item="deadline"
            )

    def _retry_after(self, documents: int) -> float:
        seconds = self._throughput.seconds_for_documents(documents)
        low, high = _RETRY_S
        return _RETRY_UNKNOWN_S if seconds is None else min(max(seconds, low), high)
