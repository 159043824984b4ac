"""Whose next piece is encoded, and how much memory decoded pictures take meanwhile."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from fakes.model import segment
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.prompt.encoded import EncodedImage
from orin_rerank.serving.fair_queue import FairQueue
from orin_rerank.serving.job import Job
from orin_rerank.serving.lookahead import Lookahead

RATION = 120
"""Bytes: new requests may fill 90 of them, and what is ahead 60."""


def picture(nbytes):
    return EncodedImage(b"", np.zeros((1, nbytes // 3, 3), dtype=np.uint8), (2, 2), 1)


class Desk:
    """A queue, and requests that come to it."""

    def __init__(self, ration=RATION, places=99):
        self.queue = FairQueue(TokenBudget.fixed(64), max_tokens=1000, max_documents=64, known=lambda _: False)
        self.lookahead = Lookahead(self.queue, ration, places)
        self.turns = {}

    def ask(self, job, nbytes, tokens=10):
        """Whether a job may have a piece encoded at once."""
        self.turns[job] = asyncio.get_running_loop().create_future()
        self.lookahead.ask(job, tokens, nbytes, self.turns[job])
        return self.may(job)

    def may(self, job):
        return self.turns[job].done()

    def job(self, documents=8):
        return Job(documents, 0, None, asyncio.get_running_loop().create_future())

    def feed(self, job, *documents, query=0, tokens=10):
        """A piece is encoded: the bytes of its documents' pictures."""
        if job not in self.queue:
            self.queue.add(job, tokens)
        prefix = job.prefix or segment([1], images=[picture(query)] if query else [])
        job.add(prefix, tuple(segment([2], images=[picture(nbytes)] if nbytes else []) for nbytes in documents))
        self.lookahead.encoded(job)
        self.lookahead.give_turns()

    def taken(self, job, count=1):
        """A pack takes documents."""
        taken = [job.take()[0] for _ in range(count)]
        self.lookahead.give_turns()
        return taken

    def scored(self, job, indices):
        for index in indices:
            job.score(index, 0.0)
        if job.complete:
            self.queue.remove(job)
            self.lookahead.forget(job)
            self.lookahead.give_turns()
        else:
            self.lookahead.recount(job)
        self.lookahead.give_turns()


async def test_texts_never_wait_for_pictures():
    desk = Desk()
    for _ in range(10):
        desk.ask(desk.job(), 60)
    assert desk.ask(desk.job(), 0)
    begun = desk.job()
    desk.ask(begun, 0)
    desk.feed(begun, 0, 0)
    assert desk.ask(begun, 0), "and is encoded ahead, too"


async def test_a_piece_is_reserved_at_its_most_and_held_at_what_it_is():
    desk = Desk()
    job = desk.job()
    assert desk.ask(job, 60)
    assert desk.lookahead.held_bytes == 60
    desk.feed(job, 9, 9, query=6)
    assert desk.lookahead.held_bytes == 24
    desk.scored(job, desk.taken(job))
    assert desk.lookahead.held_bytes == 15
    desk.lookahead.forget(job)
    assert desk.lookahead.held_bytes == 0


async def test_what_is_new_leaves_a_quarter_to_what_has_begun():
    desk = Desk()
    begun, *others = [desk.job() for _ in range(4)]
    assert desk.ask(begun, 30)
    desk.feed(begun, 30)
    assert desk.ask(others[0], 30, tokens=5)
    assert desk.ask(others[1], 30, tokens=5)
    assert not desk.ask(others[2], 30, tokens=5)
    desk.taken(begun)
    assert desk.ask(begun, 30), "its documents are being scored; it goes on"
    assert desk.lookahead.held_bytes == RATION


async def test_what_is_ahead_leaves_half_to_a_small_request_that_comes_in():
    desk = Desk()
    large = desk.job()
    assert desk.ask(large, 30, tokens=1000)
    desk.feed(large, 30, tokens=1000)
    assert desk.ask(large, 30)
    desk.feed(large, 30)
    assert not desk.ask(large, 30), "half of the ration is held ahead"
    late = desk.job()
    assert not desk.ask(late, 30, tokens=2000), "the engine turns to the other first"
    small = desk.job()
    assert desk.ask(small, 30, tokens=5)
    desk.scored(large, desk.taken(large))
    assert not desk.may(large), "the small one holds what was freed"
    desk.lookahead.forget(small)
    desk.lookahead.give_turns()
    assert desk.may(large)


async def test_turns_follow_the_order_of_the_queue_not_that_of_asking():
    desk = Desk()
    holder = desk.job()
    assert desk.ask(holder, 90)
    desk.feed(holder, 90, tokens=0)
    large, small = desk.job(), desk.job()
    assert not desk.ask(large, 60, tokens=500)
    assert not desk.ask(small, 60, tokens=5)
    desk.scored(holder, desk.taken(holder))
    assert desk.may(small)
    assert not desk.may(large)


async def test_what_comes_first_is_not_passed_by_what_takes_less():
    desk = Desk()
    holder = desk.job()
    assert desk.ask(holder, 60)
    desk.feed(holder, 60, tokens=0)
    desk.taken(holder)
    first, second = desk.job(), desk.job()
    assert not desk.ask(first, 45, tokens=5)
    assert not desk.ask(second, 9, tokens=10)
    desk.scored(holder, [0])
    assert desk.may(first)
    assert desk.may(second)


async def test_too_small_a_ration_lets_one_piece_through_at_a_time():
    desk = Desk(ration=1)
    jobs = [desk.job(2) for _ in range(3)]
    assert desk.ask(jobs[0], 50)
    assert not desk.ask(jobs[1], 50)
    desk.feed(jobs[0], 50, query=30)
    assert not desk.ask(jobs[0], 50)
    desk.scored(jobs[0], desk.taken(jobs[0]))
    assert desk.may(jobs[0]), "what has begun goes before what is new"
    assert not desk.may(jobs[1])
    desk.feed(jobs[0], 50)
    desk.scored(jobs[0], desk.taken(jobs[0]))
    assert desk.may(jobs[1])
    assert not desk.ask(jobs[2], 50)


async def test_the_encoders_are_given_no_more_than_they_are_at():
    desk = Desk(places=2)
    first, second, third, text = [desk.job() for _ in range(4)]
    assert desk.ask(first, 9, tokens=100)
    assert desk.ask(second, 9, tokens=100)
    assert not desk.ask(third, 9, tokens=100)
    assert not desk.ask(text, 0, tokens=2)
    desk.feed(first, 9, tokens=100)
    assert desk.may(text), "it was not behind what came before it"
    assert not desk.may(third)
    desk.lookahead.forget(second)
    desk.lookahead.give_turns()
    assert desk.may(third)


async def test_what_waits_keeps_its_place_though_the_queue_runs_empty():
    """Virtual time must not begin again while somebody waits with a place in it."""
    desk = Desk()
    holder, waiting = desk.job(1), desk.job()
    assert desk.ask(holder, 90, tokens=1000)
    desk.feed(holder, 90, tokens=1000)
    desk.queue.worked(900)
    assert not desk.ask(waiting, 60, tokens=50)
    desk.queue.worked(100)
    desk.taken(holder)
    late = desk.job()
    assert not desk.ask(late, 60, tokens=50)
    assert waiting.finish_tag < late.finish_tag
    desk.scored(holder, [0])
    assert desk.may(waiting)
    assert not desk.may(late)
    place = waiting.finish_tag
    desk.feed(waiting, 60, tokens=30)
    assert waiting.finish_tag == place - 20, "what it waited counts, and what it takes is known now"


async def test_who_leaves_is_woken_and_gives_back_what_it_holds():
    desk = Desk()
    leaving, waiting = desk.job(), desk.job()
    assert desk.ask(leaving, 90)
    assert not desk.ask(waiting, 90)
    desk.lookahead.forget(waiting)
    assert desk.may(waiting)
    assert desk.lookahead.waiting == 0
    desk.lookahead.give_turns()
    assert not desk.ask(waiting, 90)
    desk.lookahead.forget(leaving)
    desk.lookahead.give_turns()
    assert desk.may(waiting)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("ration", [1, 60, 300, 3000])
async def test_whatever_comes_ends_within_the_bound(seed, ration):
    """Requests at random, and an engine that takes documents in order: all are scored, and memory is bounded."""
    random = np.random.default_rng(seed)
    desk = Desk(ration)
    most_query, most_piece = 30, 90
    left = {desk.job(int(random.integers(1, 12))): 3 * int(random.integers(0, 11)) for _ in range(40)}
    asking = {}
    inflight = []
    most = 0

    def need(job):
        return asking[job] + (left[job] if job.prefix is None else 0)

    for _ in range(20_000):
        for job in left:
            if job not in asking and job.encoded < job.documents and not job.complete:
                asking[job] = 30 * min(3, job.documents - job.encoded)
                desk.ask(job, need(job), tokens=job.documents)
        most = max(most, desk.lookahead.held_bytes)
        ready = [job for job in asking if desk.may(job)]
        what = random.integers(0, 3)
        if what == 0 and ready:
            job = ready[int(random.integers(len(ready)))]
            sizes = [3 * int(random.integers(0, 11)) for _ in range(asking.pop(job) // 30)]
            desk.feed(job, *sizes, query=left[job], tokens=job.documents)
        elif what == 1 and (waiting := next((job for job in desk.queue._jobs if job.waiting), None)):
            inflight.append((waiting, desk.taken(waiting)))
        elif inflight:
            desk.scored(*inflight.pop(0))
        if all(job.complete for job in left):
            break
    assert all(job.complete for job in left)
    assert desk.lookahead.held_bytes == 0
    assert most <= max(ration, 0.75 * ration + most_piece, most_query + most_piece)
