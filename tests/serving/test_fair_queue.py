"""Which documents go into the next pack."""

import asyncio
import itertools
from unittest.mock import sentinel

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.model import segment
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.serving.fair_queue import FairQueue
from orin_rerank.serving.job import Job

BUDGET = 100
_numbers = itertools.count(1000)


def _queue(budget=BUDGET, *, max_tokens=1000, max_documents=50, known=None):
    """A queue whose engine forgets every prefix at once, unless `known` says otherwise."""
    return FairQueue(
        TokenBudget.fixed(budget), max_tokens=max_tokens, max_documents=max_documents, known=known or (lambda _: False)
    )


def _prefix(length):
    """A prefix that no other request has."""
    return segment([next(_numbers), *range(length - 1)])


def _job(queue, documents, *, prefix=5, length=10, encoded=None, known=False):
    """A job of equal documents; its outcome plays no part here."""
    job = Job(documents, 0, None, sentinel.outcome)
    job.add(_prefix(prefix), tuple(segment(range(length)) for _ in range(encoded or documents)))
    queue.add(job, (0 if known else prefix) + documents * length)
    return job


def _serve(queue):
    """Runs one pack; returns how many documents of each job it held, in the pack's order."""
    pack = queue.next_pack()
    if pack is None:
        return None
    queue.worked(pack.tokens)
    counts = {}
    for job, index in pack.tags:
        job.score(index, 0.0)
        counts[job] = counts.get(job, 0) + 1
        if job.complete:
            queue.remove(job)
    return counts


def _completion_order(queue):
    order = []
    while (counts := _serve(queue)) is not None:
        order += [job for job in counts if job.complete]
    return order


def test_nothing_waits_nothing_is_packed():
    queue = _queue()
    assert queue.next_pack() is None
    assert not queue.has_work


def test_a_pack_is_filled_up_to_the_budget_in_order():
    queue = _queue()
    job = _job(queue, 20)
    pack = queue.next_pack()
    assert pack.tokens == 95  # a prefix of 5 and nine documents of 10
    assert pack.tags == tuple((job, index) for index in range(9))
    assert [index for _, index in queue.next_pack().tags] == list(range(9, 18))


def test_a_document_longer_than_the_budget_has_a_pack_of_its_own():
    queue = _queue()
    _job(queue, 2, length=300)
    assert [queue.next_pack().documents for _ in range(2)] == [1, 1]
    assert queue.next_pack() is None


def test_the_engine_bounds_tokens_and_documents():
    queue = _queue(budget=500, max_tokens=50, max_documents=3)
    _job(queue, 10)
    assert queue.next_pack().documents == 3
    queue = _queue(budget=500, max_tokens=30, max_documents=30)
    _job(queue, 10)
    assert queue.next_pack().tokens == 25


def test_small_requests_share_one_pack():
    queue = _queue()
    jobs = [_job(queue, 2) for _ in range(4)]
    pack = queue.next_pack()
    assert pack.tokens == 100
    assert [job for job, _ in pack.tags] == [job for job in jobs for _ in range(2)]
    assert len(pack.groups) == 4


def test_a_small_request_overtakes_a_large_one():
    queue = _queue()
    large = _job(queue, 1000)
    assert list(_serve(queue)) == [large]
    small = _job(queue, 3)
    assert next(iter(_serve(queue))) is small
    assert small.complete
    assert not large.complete


def test_a_large_request_near_its_end_is_finished_first():
    queue = _queue()
    large = _job(queue, 30)
    for _ in range(3):
        _serve(queue)
    other = _job(queue, 25)
    assert _completion_order(queue) == [large, other]


def test_equal_requests_are_served_one_after_the_other():
    queue = _queue()
    jobs = [_job(queue, 30) for _ in range(5)]
    assert _completion_order(queue) == jobs


def test_a_stream_of_small_requests_does_not_starve_a_large_one():
    queue = _queue()
    large = _job(queue, 90)  # ten packs
    packs = 0
    while not large.complete:
        _job(queue, 9)  # for every pack that is done a pack's worth comes in: the engine is never free
        _serve(queue)
        packs += 1
        # Equal sharing among ever more requests would take 905**2 / 95 tokens; shortest first would take for ever.
        assert packs <= 100


def test_what_is_left_of_a_pack_goes_to_the_next_requests():
    queue = _queue()
    first, second, third = _job(queue, 6), _job(queue, 30, prefix=30), _job(queue, 40)
    assert _serve(queue) == {first: 6, third: 3}, "second has a prefix that does not fit"
    assert next(iter(_serve(queue))) is second


def test_a_known_prefix_takes_no_room():
    queue = _queue(known=lambda _: True)
    job = _job(queue, 20, prefix=90)
    pack = queue.next_pack()
    assert (pack.tokens, pack.documents) == (100, 10)
    assert next(iter(_serve(queue))) is job


def test_a_long_prefix_that_must_be_computed_leaves_room_for_documents():
    queue = _queue()
    _job(queue, 20, prefix=90)
    assert queue.next_pack().tokens == 140


def test_requests_with_an_equal_prefix_share_it():
    queue = _queue()
    prefix = _prefix(40)
    jobs = []
    for _ in range(3):
        job = Job(2, 0, None, sentinel.outcome)
        job.add(prefix, (segment(range(10)), segment(range(10))))
        queue.add(job, 60)
        jobs.append(job)
    pack = queue.next_pack()
    assert (pack.tokens, len(pack.groups)) == (100, 1)
    assert [job for job, _ in pack.tags] == [job for job in jobs for _ in range(2)]


def test_a_request_that_is_still_being_encoded_is_no_obstacle():
    queue = _queue()
    slow = _job(queue, 12, encoded=2)
    _serve(queue)
    other = _job(queue, 20)
    assert list(_serve(queue)) == [other]
    slow.add(slow.prefix, tuple(segment(range(10)) for _ in range(10)))
    assert next(iter(_serve(queue))) is slow


def test_removed_jobs_leave_nothing_behind():
    queue = _queue()
    gone, stays = _job(queue, 50), _job(queue, 60)
    _serve(queue)
    queue.remove(gone)
    queue.remove(gone)
    assert queue.tokens_ahead(float("inf")) == stays.waiting_tokens == queue.waiting_tokens
    assert _completion_order(queue) == [stays]
    assert queue.tag_for(7) == 7, "an empty queue starts its virtual time again"


def test_tokens_ahead_counts_only_what_goes_first():
    queue = _queue()
    _job(queue, 100)
    small = _job(queue, 2)
    assert queue.tokens_ahead(queue.tag_for(50)) == small.waiting_tokens


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),  # packs served before it arrives
            st.lists(st.integers(1, 60), min_size=1, max_size=12),  # its documents' lengths
            st.integers(1, 30),  # its prefix's length
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_document_is_served_once_in_order_within_the_budget(arrivals):
    queue = _queue()
    served: dict[Job, list[int]] = {}
    packs = []

    def serve():
        pack = queue.next_pack()
        if pack is not None:
            packs.append(pack)
            queue.worked(pack.tokens)
            for job, index in pack.tags:
                served[job].append(index)
                job.score(index, 0.0)
                if job.complete:
                    queue.remove(job)
        return pack

    for before, lengths, prefix in arrivals:
        for _ in range(before):
            serve()
        job = Job(len(lengths), 0, None, sentinel.outcome)
        job.add(_prefix(prefix), tuple(segment(range(length)) for length in lengths))
        served[job] = []
        queue.add(job, prefix + sum(lengths))
    while serve() is not None:
        pass
    assert len(queue) == 0
    for job, indexes in served.items():
        assert indexes == list(range(job.documents))
    for pack in packs:
        assert pack.tokens <= BUDGET or pack.documents == 1
        assert pack.tokens == sum(len(part) for part in pack.segments())


class EqualSharing:
    """What the order is measured against: all requests that are there get the same share of every unit of work."""

    def __init__(self):
        self.left = {}
        self.ended = {}

    def work(self, start, amount):
        while self.left and amount > 0:
            step = min(min(self.left.values()) * len(self.left), amount)
            share = step / len(self.left)
            amount -= step
            start += step
            self.left = {job: left - share for job, left in self.left.items()}
            for job in [job for job, left in self.left.items() if left <= 1e-9]:
                del self.left[job]
                self.ended[job] = start


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), min_size=1, max_size=10))
def test_nobody_ends_later_than_under_equal_sharing(arrivals):
    """The promise of the order, up to the pack that runs when a request comes in.

    Documents are one token long and prefixes are known, so that work and size are the same thing.
    """
    queue = _queue(budget=50, known=lambda _: True)
    sharing = EqualSharing()
    ended = {}
    now = 0.0

    def serve():
        nonlocal now
        counts = _serve(queue)
        if counts is None:
            return False
        work = sum(counts.values())
        sharing.work(now, work)
        now += work
        ended.update((job, now) for job in counts if job.complete)
        return True

    for packs_before, documents in arrivals:
        for _ in range(packs_before):
            serve()
        job = _job(queue, documents, prefix=1, length=1, known=True)
        sharing.left[job] = float(documents)
    while serve():
        pass
    assert len(ended) == len(arrivals)
    assert all(end <= sharing.ended.get(job, now) + 50 for job, end in ended.items())


def test_jobs_are_told_apart_by_identity():
    async def outcomes():
        return [asyncio.get_running_loop().create_future() for _ in range(2)]

    first, second = (Job(1, 0, None, outcome) for outcome in asyncio.run(outcomes()))
    assert first != second
    assert len({first, second}) == 2


def test_a_job_refuses_more_documents_than_it_has():
    job = Job(1, 0, None, sentinel.outcome)
    with pytest.raises(Exception, match="more documents"):
        job.add(segment(range(3)), (segment(range(2)), segment(range(2))))
