"""Measured rates."""

import pytest

from orin_rerank.serving.throughput import Throughput


def test_nothing_is_known_before_the_first_pack():
    assert Throughput().seconds_for_tokens(10) is None
    assert Throughput().seconds_for_documents(10) is None


def test_a_constant_rate_is_found():
    rate = Throughput()
    for tokens in (100, 500, 300):
        rate.observe(tokens=tokens, documents=tokens // 50, seconds=tokens / 1000)
    assert rate.seconds_for_tokens(2000) == pytest.approx(2.0)
    assert rate.seconds_for_documents(20) == pytest.approx(1.0)


def test_a_change_of_speed_is_followed():
    rate = Throughput()
    for _ in range(50):
        rate.observe(tokens=100, documents=1, seconds=0.1)
    for _ in range(50):
        rate.observe(tokens=100, documents=1, seconds=0.2)
    assert rate.seconds_for_tokens(1000) == pytest.approx(2.0, rel=0.02)
