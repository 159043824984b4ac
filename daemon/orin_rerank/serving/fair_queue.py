"""Which documents go into the next pack.

Requests are served in the order in which they would *end* if the engine were shared equally among them all: the Fair
Sojourn Protocol (Friedman and Henderson, SIGMETRICS 2003). A request of three documents overtakes one of a thousand;
equal ones are served one after the other rather than all of them slowly; and none ends later than it would under equal
sharing, so nothing starves.

Equal sharing is simulated in virtual time: while n requests share, virtual time goes by one unit for n tokens of work,
so a request of k tokens that arrives at V would end at V + k, whoever comes or goes afterwards.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final, cast

from orin_rerank.packing.pack import PackBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.packing.budget import TokenBudget
    from orin_rerank.packing.pack import Pack
    from orin_rerank.prompt.encoded import EncodedSegment
    from orin_rerank.serving.job import Job

__all__ = ["FairQueue", "part_of", "tags_of"]

_JOBS_LOOKED_AT: Final = 32
"""How far down the order the rest of a pack is offered; a bound on the work per pack."""


def _tag(job: Job) -> float:
    return job.finish_tag


class FairQueue:
    """The jobs that have, or will have, documents for the engine. Not thread-safe.

    Args:
        budget: How long packs should be.
        max_tokens: Longest pack that the engine takes.
        max_documents: Most documents that the engine takes in one pack.
        known: Whether a prefix need not be computed again.
    """

    def __init__(
        self,
        budget: TokenBudget,
        *,
        max_tokens: int,
        max_documents: int,
        known: Callable[[EncodedSegment], bool],
    ) -> None:
        self._budget = budget
        self._max_tokens = max_tokens
        self._max_documents = max_documents
        self._known = known
        self._jobs: list[Job] = []
        self._virtual_now = 0.0
        # Tags of the requests that equal sharing would still be busy with; some of them may have ended in truth.
        self._sharing: list[float] = []
        # How long those were taken to be that are expected, and have no document here yet.
        self._expected: dict[Job, int] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    @property
    def has_work(self) -> bool:
        """Whether a document waits."""
        return any(job.waiting for job in self._jobs)

    @property
    def waiting_tokens(self) -> int:
        """Length of all documents that wait."""
        return sum(job.waiting_tokens for job in self._jobs)

    @property
    def first_waiting_tag(self) -> float:
        """The finish tag of the request whose document is served next; infinite if none waits."""
        return next((job.finish_tag for job in self._jobs if job.waiting), math.inf)

    def tag_for(self, tokens: int) -> float:
        """The finish tag that a request of so many tokens would get now."""
        return self._virtual_now + tokens

    def tokens_ahead(self, tag: float) -> int:
        """Tokens of waiting documents that are served before a request with this tag."""
        return sum(job.waiting_tokens for job in self._jobs if job.finish_tag <= tag)

    def expect(self, job: Job, tokens: int) -> None:
        """Gives a job its place before its documents come: what it waits until then counts for it.

        Args:
            job: The job.
            tokens: About how long it will be.
        """
        if job not in self._expected and job not in self._jobs:
            self._expected[job] = tokens
            self._share(job, self.tag_for(tokens))

    def add(self, job: Job, tokens: int) -> None:
        """Takes in a job whose total length is about so many tokens."""
        expected = self._expected.pop(job, None)
        if expected is None:
            self._share(job, self.tag_for(tokens))
        else:
            self._leave_sharing(job)
            self._share(job, job.finish_tag + tokens - expected)
        insort(self._jobs, job, key=_tag)

    def remove(self, job: Job) -> None:
        """Lets go of a job that ended; early or not at all served, it also leaves the simulated sharing."""
        if self._expected.pop(job, None) is not None:
            self._leave_sharing(job)
        elif job in self._jobs:
            self._jobs.remove(job)
            if not job.complete:
                self._leave_sharing(job)
        if not self._jobs and not self._expected:
            self._sharing.clear()
            self._virtual_now = 0.0

    def _share(self, job: Job, tag: float) -> None:
        job.finish_tag = tag
        if tag > self._virtual_now:
            insort(self._sharing, tag)

    def _leave_sharing(self, job: Job) -> None:
        place = bisect_left(self._sharing, job.finish_tag)
        if place < len(self._sharing) and self._sharing[place] == job.finish_tag:
            del self._sharing[place]

    def worked(self, tokens: int) -> None:
        """Advances virtual time by tokens that the engine has computed."""
        left = float(tokens)
        while self._sharing and left > 0:
            needed = (self._sharing[0] - self._virtual_now) * len(self._sharing)
            if needed > left:
                self._virtual_now += left / len(self._sharing)
                return
            left -= needed
            self._virtual_now = self._sharing.pop(0)

    def next_pack(self) -> Pack | None:
        """Takes the documents of the next pack; None if none waits. Tags are `(job, index)`.

        The first job in the order fills the pack as far as its documents go; what is left is offered to the next ones.
        """
        builder = PackBuilder(self._max_documents, self._known)
        budget = 0
        offered = 0
        for job in self._jobs:
            if not job.waiting or job.prefix is None:
                continue
            if builder.documents == 0:
                prefix_tokens = 0 if self._known(job.prefix) else len(job.prefix)
                budget = min(self._budget.for_prefix(prefix_tokens), self._max_tokens)
            while job.waiting and builder.fits(job.prefix, job.waiting[0][1], budget):
                index, document = job.take()
                builder.add(job.prefix, document, (job, index))
            offered += 1
            if offered == _JOBS_LOOKED_AT:
                break
        return builder.build() if builder.documents else None


def tags_of(pack: Pack) -> list[tuple[Job, int]]:
    """Whose document each one of a pack is, and its place in the request."""
    return cast("list[tuple[Job, int]]", list(pack.tags))


def part_of(pack: Pack, job: Job) -> Pack:
    """The documents of one request, as a pack of their own."""
    builder = PackBuilder(pack.documents)
    places = [(group.prefix, document) for group in pack.groups for document in group.documents]
    for (prefix, document), tag in zip(places, tags_of(pack), strict=True):
        if tag[0] is job:
            builder.add(prefix, document, tag)
    return builder.build()
