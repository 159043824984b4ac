"""Who is let in, and what the others are told."""

from __future__ import annotations

import asyncio

import pytest

from orin_rerank.errors import DeadlineError, OverloadedError
from orin_rerank.serving.admission import Admission, open_documents
from orin_rerank.serving.job import Job
from orin_rerank.serving.throughput import Throughput

NOW = 100.0


def admission(throughput: Throughput | None = None) -> Admission:
    return Admission(
        max_queued_documents=10,
        max_queued_bytes=1000,
        throughput=throughput or Throughput(),
        clock=lambda: NOW,
    )


def measured(*, tokens: int = 100, documents: int = 10, seconds: float = 2.0) -> Throughput:
    throughput = Throughput()
    throughput.observe(tokens=tokens, documents=documents, started=0.0, ended=seconds)
    return throughput


@pytest.fixture
def waiting() -> list[Job]:
    """Eight documents, of which three are scored, and 400 bytes."""
    loop = asyncio.new_event_loop()
    jobs = [Job(count, 200, None, loop.create_future()) for count in (5, 3)]
    jobs[0].scored = 3
    loop.close()
    return jobs


def test_documents_that_are_scored_wait_no_more(waiting: list[Job]) -> None:
    assert open_documents(waiting) == 5
    admission().check_room(waiting, 5, 0)
    with pytest.raises(OverloadedError, match="5 documents wait; at most 10 may"):
        admission().check_room(waiting, 6, 0)


def test_bytes_are_counted(waiting: list[Job]) -> None:
    admission().check_room(waiting, 1, 600)
    with pytest.raises(OverloadedError, match="requests of 400 bytes wait; at most 1000 may"):
        admission().check_room(waiting, 1, 601)


def test_who_is_alone_may_be_as_large_as_he_likes() -> None:
    admission().check_room([], 10_000, 10**9)


@pytest.mark.parametrize(
    ("documents", "throughput", "seconds"),
    [
        (6, None, 1.0),  # nothing is known yet
        (6, measured(), 0.2),  # until one document is done
        (100, measured(), 1.0),  # no more can be done than waits
        (6, measured(seconds=1e-6), 0.05),
        (6, measured(seconds=1e6), 60.0),
    ],
)
def test_who_is_turned_away_is_told_when_there_is_room(
    waiting: list[Job], documents: int, throughput: Throughput | None, seconds: float
) -> None:
    with pytest.raises(OverloadedError) as caught:
        admission(throughput).check_room(waiting, documents, 0)
    assert caught.value.retry_after_s == pytest.approx(seconds)


@pytest.mark.parametrize(("deadline", "passed"), [(None, False), (NOW + 0.01, False), (NOW, True), (NOW - 1, True)])
def test_a_deadline_that_has_passed(deadline: float | None, passed: bool) -> None:
    if not passed:
        admission().check_deadline(deadline)
        return
    with pytest.raises(DeadlineError) as caught:
        admission().check_deadline(deadline)
    assert caught.value.item == "deadline"


def test_a_deadline_is_impossible_only_beyond_doubt() -> None:
    rules = admission(measured())  # 50 tokens a second
    rules.check_feasible(NOW + 1.0, 100)  # two seconds of work may be one
    with pytest.raises(DeadlineError, match=r"0\.90 s are left for about 2\.00 s of work"):
        rules.check_feasible(NOW + 0.9, 100)
    rules.check_feasible(None, 10**9)
    admission().check_feasible(NOW + 0.001, 10**9)  # nothing is known yet
