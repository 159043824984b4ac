"""Bulk scoring gives what one pack after the other gives, and reads no further ahead than it must."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from engines.fake_engine import FakeEngine
from orin_rerank.engines.bulk import score_requests
from orin_rerank.engines.runner import Runner
from orin_rerank.errors import EngineError
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.prompt.encoded import EncodedRequest
from packing.segments import MAX_POSITION, image, segment

GALLERY = [image(n, 3) for n in range(5)]


def _runner(engine: FakeEngine) -> Runner:
    rotary = RotaryTable(4, 1e4, (1, 1, 0), MAX_POSITION)
    return Runner(engine, rotary, feature_bytes=1 << 20, prefix_bytes=0, vision_patches=1 << 20)


def _requests(count: int) -> list[EncodedRequest]:
    rng = random.Random(3)

    def some():
        return segment(rng, rng.sample(GALLERY, rng.randint(0, 2)))

    return [EncodedRequest(some(), tuple(some() for _ in range(rng.randint(1, 5)))) for _ in range(count)]


def _expected(request: EncodedRequest) -> list[float]:
    def value(part) -> float:
        return float(part.ids.sum()) + sum(picture.tokens * picture.digest[0] for picture in part.images)

    return [value(request.prefix) + value(document) for document in request.documents]


@pytest.mark.parametrize("slots", [1, 3])
def test_every_margin_comes_back_in_its_place(slots: int) -> None:
    engine = FakeEngine(slots=slots)
    requests = _requests(60)
    scores = score_requests(_runner(engine), iter(requests), TokenBudget.fixed(60))
    assert [margins.tolist() for margins in scores.margins] == [_expected(request) for request in requests]
    assert all(margins.dtype == np.float32 for margins in scores.margins)
    assert scores.images == sum(len(batch) for batch in engine.encoded)
    assert scores.tokens == sum(engine.computed)
    assert len(engine.computed) < sum(len(request.documents) for request in requests)


def test_margins_that_are_handed_over_are_not_kept() -> None:
    requests = _requests(60)
    done = {}
    scores = score_requests(_runner(FakeEngine(slots=2)), requests, TokenBudget.fixed(60), done.__setitem__)
    assert {n: margins.tolist() for n, margins in done.items()} == dict(enumerate(map(_expected, requests)))
    assert scores.margins == []


def test_it_reads_only_a_little_ahead() -> None:
    engine = FakeEngine(slots=2)
    read = finished = 0
    furthest = 0

    def source() -> Iterator[EncodedRequest]:
        nonlocal read, furthest
        for request in _requests(200):
            read += len(request.documents)
            furthest = max(furthest, read - finished)
            yield request

    def on_request(_: int, margins: np.ndarray) -> None:
        nonlocal finished
        finished += len(margins)

    score_requests(_runner(engine), source(), TokenBudget.fixed(60), on_request)
    assert finished == read
    assert furthest < 120


def test_a_failure_is_raised() -> None:
    engine = FakeEngine(slots=2)

    def fail(_: object) -> None:
        raise EngineError("broke")

    engine.before_run = fail
    with pytest.raises(EngineError, match="broke"):
        score_requests(_runner(engine), _requests(20), TokenBudget.fixed(60))
