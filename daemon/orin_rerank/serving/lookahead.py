"""How far ahead of the engine requests are encoded, so that it never waits and memory stays bounded.

A text is small once it is encoded. A picture is not: 3 KiB a token, 5.5 MB at 1,800 tokens, and a full queue of them
would be tens of gigabytes. So there is a ration for all requests together. A request takes the most that its next
piece could need before that is decoded, keeps what it really takes until its documents are scored (the query's pictures
until the request ends), and waits where the ration is used up. Requests without pictures never wait for it.

Nor is more given to the encoders' threads than they are at, and one piece, so that a small request that comes in is
encoded next, and not after all that the ration holds.

Who may take of it follows the order of the queue (`fair_queue`):

* What the engine would turn to next may fill the ration; a request that is new, to three quarters. So what has begun
  can go on beside any number of new ones, and comes to its end.
* What is merely encoded ahead may fill half of it. So a small request that comes in finds room, and need not wait until
  a large one before it is scored.

Where the ration is too small for anything, one piece is decoded at a time, of what has begun before what is new.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from orin_rerank.serving.fair_queue import FairQueue
    from orin_rerank.serving.job import Job

__all__ = ["Lookahead"]

_AHEAD_TOKENS: Final = 2**16
"""Encoded tokens that may wait for the engine before encoders pause; a text of that length is minutes of work for a
board. A request of which nothing waits is not held back by it, or a small one could not overtake."""
_NEW: Final = 0.75
_AHEAD: Final = 0.5
"""Shares of the ration; the module's first lines say of whom."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    """A request that wants its next piece encoded.

    Attributes:
        job: The request.
        picture_bytes: Most memory that the piece's pictures take.
        turn: Resolved, on the event loop, when it may.
    """

    job: Job
    picture_bytes: int
    turn: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _Share:
    """What is held of the ration: in all, and what of it is free again before its request ends."""

    held: int = 0
    passing: int = 0


def _tag(waiter: _Waiter) -> float:
    return waiter.job.finish_tag


class Lookahead:
    """Says whose next piece is encoded. Called on the event loop with the scheduler's lock held.

    Args:
        queue: Where encoded documents wait.
        picture_bytes: The ration.
        places: Pieces that may be on their way through the encoders' threads. Few: what comes next is decided late.
    """

    def __init__(self, queue: FairQueue, picture_bytes: int, places: int) -> None:
        self._queue = queue
        self._ration = picture_bytes
        self._places = places
        self._encoding: set[Job] = set()
        self._waiters: list[_Waiter] = []  # in the order of their tags
        self._waiting: dict[Job, _Waiter] = {}
        self._shares: dict[Job, _Share] = {}
        self._all = _Share()

    @property
    def held_bytes(self) -> int:
        """Memory of decoded pictures that wait or run, and what those that are being decoded may take."""
        return self._all.held

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._waiters)

    def ask(self, job: Job, tokens: int, picture_bytes: int, turn: asyncio.Future[None]) -> None:
        """Asks for a turn to have the next piece encoded.

        Args:
            job: Whose.
            tokens: About what its documents will take in all, by which one that is new finds its place in the order.
            picture_bytes: Most memory that the piece's pictures take.
            turn: Resolved when it may, or when the job is forgotten.
        """
        self._ended(job)
        if job.prefix is None:
            self._queue.expect(job, tokens)
        self._waiting[job] = _Waiter(job, picture_bytes, turn)
        insort(self._waiters, self._waiting[job], key=_tag)
        self.give_turns()

    def encoded(self, job: Job) -> None:
        """Takes note that a job's piece has come from the encoders."""
        self._ended(job)
        self.give_turns()

    def _ended(self, job: Job) -> None:
        self._encoding.discard(job)
        job.decoding_bytes = 0
        self.recount(job)

    def recount(self, job: Job) -> None:
        """Takes note that a job has other pictures than before."""
        passing = job.decoding_bytes + job.document_picture_bytes
        self._hold(job, _Share(passing + job.prefix_picture_bytes, passing))

    def forget(self, job: Job) -> None:
        """Takes back what a job holds, and ends its waiting; `give_turns` is for the caller, once for all that ended.

        What the encoders' threads still decode for a caller who left is not counted: a piece for each of them.
        """
        self._encoding.discard(job)
        self._hold(job, _Share())
        self._let_go(job)

    def give_turns(self) -> None:
        """Lets those go on who may; to be called when anything has moved."""
        if not self._waiters or len(self._encoding) >= self._places:
            return
        first_tag = self._queue.first_waiting_tag
        many_tokens = self._queue.waiting_tokens >= _AHEAD_TOKENS
        new_stopped = all_stopped = False
        for waiter in list(self._waiters):
            if len(self._encoding) >= self._places:
                return
            job, has_begun = waiter.job, waiter.job.prefix is not None
            pressing = not job.waiting and job.finish_tag <= first_tag
            if job.waiting and many_tokens:
                continue
            # What comes first in the order goes first: it is not passed by what takes less. Only what has begun goes
            # on beside a new request that must wait, since it is what gives memory back.
            if waiter.picture_bytes and (all_stopped or (new_stopped and not (pressing and has_begun))):
                continue
            if self._fits(waiter, pressing=pressing):
                self._encoding.add(job)
                job.decoding_bytes = waiter.picture_bytes
                self.recount(job)
                self._let_go(job)
            elif pressing:
                new_stopped, all_stopped = True, has_begun

    def _fits(self, waiter: _Waiter, *, pressing: bool) -> bool:
        """Whether the ration has room for a piece.

        Args:
            waiter: Whose.
            pressing: Whether the engine would turn to it next.
        """
        if not waiter.picture_bytes:
            return True
        wanted = self._all.held + waiter.picture_bytes
        if not pressing:
            return wanted <= _AHEAD * self._ration
        if waiter.job.prefix is None:
            return wanted <= _NEW * self._ration or not self._all.held
        return wanted <= self._ration or not self._all.passing

    def _let_go(self, job: Job) -> None:
        """Ends a job's waiting, if it waits."""
        waiter = self._waiting.pop(job, None)
        if waiter is None:
            return
        place = bisect_left(self._waiters, job.finish_tag, key=_tag)
        while self._waiters[place] is not waiter:  # others may have the same tag
            place += 1
        del self._waiters[place]
        if not waiter.turn.done():
            waiter.turn.set_result(None)

    def _hold(self, job: Job, share: _Share) -> None:
        before = self._shares.pop(job, _Share())
        self._all = _Share(
            self._all.held + share.held - before.held, self._all.passing + share.passing - before.passing
        )
        if share.held:
            self._shares[job] = share
