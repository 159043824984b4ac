"""Admission, the engine thread and every way in which a request can end. No test waits for time to pass."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest

from fakes.model import POISON, FakeModel, FakeRunner, expected_margin, segment
from orin_rerank.engines.port import EngineInfo
from orin_rerank.errors import (
    DeadlineError,
    DeviceLostError,
    EngineError,
    InternalError,
    NonFiniteScoreError,
    OverloadedError,
    UnavailableError,
)
from orin_rerank.prompt.content import RerankInput, TextPart
from orin_rerank.prompt.encoded import EncodedImage
from orin_rerank.serving.scheduler import Scheduler
from orin_rerank.telemetry.counters import Counters


class Clock:
    """A clock that a test turns."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Bench:
    """A scheduler with its engine thread."""

    def __init__(self, model, clock=None, **limits):
        self.model = model
        self.runner = model.runner
        self.counters = Counters()
        self.scheduler = Scheduler(
            model,
            **{"max_queued_documents": 1000, "max_queued_bytes": 10**6} | limits,
            counters=self.counters,
            loop=asyncio.get_running_loop(),
            **({"clock": clock} if clock else {}),
        )
        self.crash = None
        self.thread = threading.Thread(target=self._main)
        self.thread.start()

    def _main(self):
        try:
            self.scheduler.serve()
        except BaseException as error:  # noqa: BLE001
            self.crash = error

    def encode(self, query, documents):
        encoded = self.model.encoder.encode(
            RerankInput((TextPart(query),), tuple((TextPart(text),) for text in documents))
        )
        return encoded.prefix, encoded.documents

    def submit(self, query, documents, **admission):
        job = self.scheduler.admit(len(documents), **admission)
        try:
            self.scheduler.feed(job, *self.encode(query, documents))
        except BaseException:
            self.scheduler.withdraw(job)
            raise
        return job

    async def score(self, query, documents, **admission):
        job = self.submit(query, documents, **admission)
        try:
            return (await job.outcome).margins.tolist()
        finally:
            self.scheduler.withdraw(job)

    async def empty(self):
        """Waits until no request is left."""
        while self.scheduler.requests:  # noqa: ASYNC110  # requests end without an event of their own
            await asyncio.sleep(0.001)  # requests end without an event of their own

    async def arrived(self):
        """Waits until a pack stands at the runner's gate."""
        await asyncio.to_thread(self.runner.arrived.wait, 30)
        self.runner.arrived.clear()


@contextlib.asynccontextmanager
async def bench(slots=1, **kwargs):
    info = EngineInfo("fake-cpu", "fp32", 8192, 64, slots)
    it = Bench(FakeModel(info=info, runner=FakeRunner(slots=slots)), **kwargs)
    try:
        yield it
    finally:
        it.runner.gate.set()
        it.scheduler.stop(lambda: UnavailableError("the test is over"))
        await asyncio.to_thread(it.thread.join, 30)
        assert not it.thread.is_alive()


def expected(query, documents):
    return [expected_margin(query, document) for document in documents]


async def test_scores_come_back_in_the_request_s_order():
    async with bench() as it:
        documents = [f"document {i}" for i in range(100)]
        assert await it.score("q", documents) == expected("q", documents)
        assert it.scheduler.requests == it.scheduler.documents == 0
        counters = it.counters.snapshot()
        assert counters.documents == 100
        assert counters.packs == len(it.runner.packs)
        assert counters.packed_tokens == sum(pack.tokens for pack in it.runner.packs)


async def test_sixty_four_requests_at_once_get_their_own_scores():
    async with bench() as it:
        requests = {f"query {i}": [f"document {i} {j}" for j in range(1 + i % 9)] for i in range(64)}
        got = await asyncio.gather(*(it.score(query, documents) for query, documents in requests.items()))
        assert got == [expected(query, documents) for query, documents in requests.items()]
        assert any(len(pack.groups) > 1 for pack in it.runner.packs), "no pack was ever shared"


async def test_an_engine_of_two_slots_runs_two_packs_at_a_time():
    both = threading.Barrier(2)

    def meet(pack):
        if pack.documents > 1:
            both.wait(30)  # passes only if another thread is in here

    async with bench(slots=2) as it:
        await it.score("warm up the prefix", ["x"])
        it.runner.fail = meet
        documents = ["d" * 100] * 12  # six packs
        assert await it.score("warm up the prefix", documents) == expected("warm up the prefix", documents)
        assert len(it.runner.packs) == 7


async def test_with_many_slots_every_request_gets_its_own_scores():
    async with bench(slots=4) as it:
        requests = {f"query {i}": [f"document {i} {j}" for j in range(1 + i % 20)] for i in range(64)}
        got = await asyncio.gather(*(it.score(query, documents) for query, documents in requests.items()))
        assert got == [expected(query, documents) for query, documents in requests.items()]


async def test_one_poisonous_document_spares_a_request_with_the_same_query():
    async with bench() as it:
        it.runner.gate.clear()
        first = asyncio.ensure_future(it.score("first", ["x"]))
        await it.arrived()
        innocent = asyncio.ensure_future(it.score("same", ["a", "b"]))
        guilty = asyncio.ensure_future(it.score("same", [POISON, "b"]))
        await asyncio.sleep(0)
        it.runner.gate.set()
        with pytest.raises(NonFiniteScoreError):
            await guilty
        assert await innocent == expected("same", ["a", "b"])
        await first
        assert [len(pack.groups) for pack in it.runner.packs] == [1, 1, 1, 1], "the two were meant to share a prefix"


async def test_a_lone_request_runs_at_once():
    async with bench() as it:
        it.runner.gate.clear()
        job = it.submit("q", ["only"])
        await it.arrived()  # nothing else had to happen
        it.runner.gate.set()
        await job.outcome
        assert [pack.documents for pack in it.runner.packs] == [1]
        it.scheduler.withdraw(job)


async def test_a_small_request_overtakes_a_large_one_that_runs():
    async with bench() as it:
        it.runner.gate.clear()
        large = asyncio.ensure_future(it.score("large", [f"document {i}" for i in range(500)]))
        await it.arrived()
        small = asyncio.ensure_future(it.score("small", ["a", "b", "c"]))
        await asyncio.sleep(0)
        it.runner.gate.set()
        await asyncio.gather(small, large)
        queries = [{bytes(group.prefix.ids[-5:].tolist()) for group in pack.groups} for pack in it.runner.packs]
        assert queries[:2] == [{b"large"}, {b"small", b"large"}]
        assert not any(b"small" in pack for pack in queries[2:])
        assert len(queries) > 10


async def test_fed_in_pieces_it_is_one_request():
    async with bench() as it:
        documents = [f"document {i}" for i in range(10)]
        job = it.scheduler.admit(10)
        prefix, segments = it.encode("q", documents)
        for start in range(0, 10, 3):
            await it.scheduler.turn(job)
            it.scheduler.feed(job, prefix, segments[start : start + 3])
        assert (await job.outcome).margins.tolist() == expected("q", documents)
        it.scheduler.withdraw(job)


async def test_a_full_queue_refuses_and_says_when_to_come_back():
    async with bench(max_queued_documents=10) as it:
        await it.score("warm", ["up"])
        it.runner.gate.clear()
        running = asyncio.ensure_future(it.score("q", ["x"] * 8))
        await it.arrived()
        with pytest.raises(OverloadedError) as caught:
            it.scheduler.admit(3)
        assert 0.05 <= caught.value.retry_after_s <= 60
        fits = asyncio.ensure_future(it.score("q", ["y"] * 2))
        await asyncio.sleep(0)
        it.runner.gate.set()
        await asyncio.gather(running, fits)
        assert it.scheduler.documents == 0


async def test_messages_count_too():
    async with bench(max_queued_bytes=100) as it:
        first = it.scheduler.admit(1, message_bytes=80)
        with pytest.raises(OverloadedError, match="bytes"):
            it.scheduler.admit(1, message_bytes=30)
        it.scheduler.withdraw(first)
        it.scheduler.withdraw(it.scheduler.admit(1, message_bytes=1000))


async def test_a_request_larger_than_the_queue_is_taken_when_alone():
    async with bench(max_queued_documents=10) as it:
        documents = [f"document {i}" for i in range(30)]
        assert await it.score("q", documents) == expected("q", documents)


async def test_a_caller_who_leaves_frees_the_queue_and_costs_no_more_work():
    async with bench(max_queued_documents=100) as it:
        it.runner.gate.clear()
        leaving = asyncio.ensure_future(it.score("leaving", ["some text of a document"] * 100))
        await it.arrived()
        assert it.scheduler.documents == 100
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert it.scheduler.documents == it.scheduler.requests == 0
        staying = asyncio.ensure_future(it.score("staying", ["a"] * 3))
        await asyncio.sleep(0)
        it.runner.gate.set()
        assert await staying == expected("staying", ["a"] * 3)
        assert len(it.runner.packs) == 2, "packs of a caller who had left were run"


async def test_a_deadline_that_has_passed_is_refused_at_admission():
    clock = Clock()
    async with bench(clock=clock) as it:
        with pytest.raises(DeadlineError):
            it.scheduler.admit(1, deadline=clock.now)
        assert it.scheduler.requests == 0


async def test_a_deadline_that_passes_in_the_queue_ends_the_request_before_any_work():
    clock = Clock()
    async with bench(clock=clock) as it:
        it.runner.gate.clear()
        running = asyncio.ensure_future(it.score("running", ["x"]))
        await it.arrived()
        waiting = asyncio.ensure_future(it.score("waiting", ["y"], deadline=clock.now + 5))
        await asyncio.sleep(0)
        clock.now += 6
        it.runner.gate.set()
        await running
        with pytest.raises(DeadlineError):
            await waiting
        assert len(it.runner.packs) == 1
        assert it.scheduler.documents == 0


async def test_a_deadline_that_passes_while_encoding_ends_the_request():
    clock = Clock()
    async with bench(clock=clock) as it:
        job = it.scheduler.admit(1, deadline=clock.now + 5)
        encoded = it.encode("q", ["x"])
        clock.now += 6
        with pytest.raises(DeadlineError):
            it.scheduler.feed(job, *encoded)
        it.scheduler.withdraw(job)
        assert it.runner.packs == []


async def test_a_deadline_that_cannot_be_met_is_refused_but_a_tight_one_is_tried():
    clock = Clock()
    async with bench(clock=clock) as it:
        document = "x" * 95
        it.runner.fail = lambda pack: setattr(clock, "now", clock.now + pack.tokens / 100)  # 100 tokens a second
        await it.score("q", [document] * 4)
        it.runner.fail = None
        with pytest.raises(DeadlineError, match="cannot be met"):
            await it.score("q", [document] * 100, deadline=clock.now + 10)  # takes about 100 s
        assert it.scheduler.documents == 0
        await it.score("q", [document] * 10, deadline=clock.now + 9)  # about 10 s: worth a try


async def test_one_poisonous_document_fails_its_own_request_only():
    async with bench() as it:
        it.runner.gate.clear()
        first = asyncio.ensure_future(it.score("first", ["x"]))
        await it.arrived()
        neighbours = [asyncio.ensure_future(it.score(f"n{i}", ["a", "b"])) for i in range(3)]
        guilty = asyncio.ensure_future(it.score("guilty", ["a", POISON]))
        await asyncio.sleep(0)
        it.runner.gate.set()
        with pytest.raises(NonFiniteScoreError):
            await guilty
        for i, neighbour in enumerate(neighbours):
            assert await neighbour == expected(f"n{i}", ["a", "b"])
        await first
        assert len(it.runner.packs[1].groups) == 4, "the request was meant to share a pack"
        assert it.scheduler.documents == 0
        assert await it.score("later", ["z"]) == expected("later", ["z"])


async def test_a_failing_engine_fails_requests_and_the_loop_goes_on():
    async with bench() as it:

        def fail(pack):
            raise EngineError("the engine is out of order")

        it.runner.fail = fail
        with pytest.raises(EngineError):
            await it.score("q", ["x"])
        it.runner.fail = lambda _: {}["somebody's document"]
        with pytest.raises(KeyError):
            await it.score("q", ["x"])
        it.runner.fail = None
        assert await it.score("q", ["x"]) == expected("q", ["x"])


async def test_the_rest_of_a_failed_request_is_not_run():
    async with bench() as it:
        with pytest.raises(NonFiniteScoreError):
            await it.score("q", [POISON, *("some text of a document" for _ in range(100))])
        await it.score("q", ["x"])
        assert len(it.runner.packs) == 2


@pytest.mark.parametrize("slots", [1, 3])
async def test_a_crash_of_the_loop_fails_every_request_and_is_passed_on(slots):
    async with bench(slots=slots) as it:
        it.runner.gate.clear()
        running = [asyncio.ensure_future(it.score(f"q{i}", ["x" * 90] * 5)) for i in range(3)]
        await it.arrived()

        class Crash(BaseException):
            pass

        def crash(pack):
            raise Crash

        it.runner.fail = crash
        it.runner.gate.set()
        for request in running:
            with pytest.raises(InternalError):
                await request
        await asyncio.to_thread(it.thread.join, 30)
        assert isinstance(it.crash, Crash)
        with pytest.raises(InternalError):
            it.scheduler.admit(1)
        assert it.scheduler.requests == 0


@pytest.mark.parametrize("slots", [1, 3])
async def test_a_lost_gpu_ends_the_scheduler_and_no_request_gets_a_score(slots):
    async with bench(slots=slots) as it:
        it.runner.gate.clear()
        running = [asyncio.ensure_future(it.score(f"q{i}", ["x" * 90] * 5)) for i in range(3)]
        await it.arrived()

        def lose(pack):
            raise DeviceLostError("CUDA failure 700: an illegal memory access was encountered")

        it.runner.fail = lose
        it.runner.gate.set()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(outcome, DeviceLostError | InternalError) for outcome in outcomes)
        assert any(isinstance(outcome, DeviceLostError) for outcome in outcomes)
        await asyncio.to_thread(it.thread.join, 30)
        assert isinstance(it.crash, DeviceLostError)


async def test_stop_ends_every_request_once_and_refuses_later_ones():
    async with bench() as it:
        it.runner.gate.clear()
        requests = [asyncio.ensure_future(it.score(f"q{i}", ["x" * 90] * 5)) for i in range(5)]
        await it.arrived()
        it.scheduler.stop(lambda: UnavailableError("stopped"))
        it.runner.gate.set()
        assert all(isinstance(r, UnavailableError) for r in await asyncio.gather(*requests, return_exceptions=True))
        await it.empty()
        with pytest.raises(UnavailableError):
            it.scheduler.admit(1)
        await asyncio.to_thread(it.thread.join, 30)
        assert len(it.runner.packs) == 1


async def test_encoding_pauses_while_much_waits_and_goes_on_when_it_does_not():
    async with bench() as it:
        it.runner.gate.clear()
        job = it.scheduler.admit(40)
        prefix, segments = it.encode("q", ["x" * 4000] * 40)
        it.scheduler.feed(job, prefix, segments[:30])
        await it.arrived()
        turn = asyncio.ensure_future(it.scheduler.turn(job))
        await asyncio.sleep(0)
        assert not turn.done(), "116,000 tokens wait already"
        it.runner.gate.set()
        await turn
        it.scheduler.feed(job, prefix, segments[30:])
        assert len(set((await job.outcome).margins.tolist())) == 1
        it.scheduler.withdraw(job)


async def test_a_paused_encoder_is_woken_when_its_request_ends():
    async with bench() as it:
        it.runner.gate.clear()
        job = it.scheduler.admit(40)
        prefix, segments = it.encode("q", ["x" * 4000] * 40)
        it.scheduler.feed(job, prefix, segments[:30])
        turn = asyncio.ensure_future(it.scheduler.turn(job))
        await asyncio.sleep(0)
        assert not turn.done(), "the encoder was meant to pause"
        it.scheduler.withdraw(job)
        await turn


async def test_the_next_piece_is_encoded_while_the_last_of_the_one_before_runs():
    it = Bench(FakeModel(picture_bytes=100))
    document = segment([2], images=[EncodedImage(b"", np.zeros((1, 20, 3), dtype=np.uint8), (2, 2), 1)])
    turn = asyncio.get_running_loop().create_future()
    try:
        it.runner.gate.clear()
        job = it.scheduler.admit(2)
        with it.scheduler._wake:  # the engine's thread cannot take it yet
            it.scheduler.feed(job, segment([1]), (document,))
            it.scheduler._lookahead.ask(job, 0, 30, turn)
            assert not turn.done(), "what waits is more than half of what there may be"
        await asyncio.wait_for(turn, 10)
        assert it.scheduler.documents == 2, "the first is at the gate"
        it.scheduler.withdraw(job)
    finally:
        it.runner.gate.set()
        it.scheduler.stop(lambda: UnavailableError("the test is over"))
        await asyncio.to_thread(it.thread.join, 30)
