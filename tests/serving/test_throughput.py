"""Measured rates."""

import pytest

from orin_rerank.serving.throughput import Throughput


class Engine:
    """One pack after the other, on a clock of its own."""

    def __init__(self):
        self.rate = Throughput()
        self.now = 50.0

    def pack(self, *, tokens, documents, seconds):
        started, self.now = self.now, self.now + seconds
        self.rate.observe(tokens=tokens, documents=documents, started=started, ended=self.now)


def test_nothing_is_known_before_the_first_pack():
    assert Throughput().seconds_for_tokens(10) is None
    assert Throughput().seconds_for_documents(10) is None
    assert Throughput().seconds_for_pack(10) is None


def test_a_constant_rate_is_found():
    engine = Engine()
    rate = engine.rate
    for tokens in (100, 500, 300):
        engine.pack(tokens=tokens, documents=tokens // 50, seconds=tokens / 1000)
        engine.now += 7  # nothing to do
    assert rate.seconds_for_tokens(2000) == pytest.approx(2.0)
    assert rate.seconds_for_documents(20) == pytest.approx(1.0)


def test_a_change_of_speed_is_followed():
    engine = Engine()
    for seconds in (0.1, 0.2):
        for _ in range(50):
            engine.pack(tokens=100, documents=1, seconds=seconds)
    assert engine.rate.seconds_for_tokens(1000) == pytest.approx(2.0, rel=0.02)


def test_packs_side_by_side_count_for_the_time_that_they_took_together():
    rate = Throughput()
    for number in range(100):
        rate.observe(tokens=100, documents=1, started=number / 2, ended=number / 2 + 1)
    assert rate.seconds_for_tokens(100) == pytest.approx(0.5, rel=0.01)
    assert rate.seconds_for_pack(100) == pytest.approx(1.0), "each took a second all the same"
