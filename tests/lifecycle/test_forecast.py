"""What remains of several builds, from how far they are."""

from __future__ import annotations

import pytest

from orin_rerank.lifecycle.forecast import Forecast


def test_the_rest_goes_as_fast_as_what_is_done() -> None:
    forecast = Forecast({"text": 3.0, "vision": 1.0})
    assert forecast.remaining_s(10.0) is None
    forecast.moved("text", 0.5)
    assert forecast.fraction == pytest.approx(1.5 / 4)
    assert forecast.remaining_s(30.0) == pytest.approx(30 / 1.5 * 2.5)
    forecast.moved("text", 1.0)
    assert forecast.remaining_s(60.0) == pytest.approx(20.0)
    forecast.moved("vision", 1.0)
    assert (forecast.remaining_s(80.0), forecast.fraction) == (0.0, 1.0)


def test_what_is_skipped_is_neither_done_nor_to_do() -> None:
    forecast = Forecast({"text": 3.0, "vision": 1.0})
    forecast.skip("text")
    forecast.moved("text", 0.5)
    forecast.moved("vision", 0.25)
    assert forecast.remaining_s(5.0) == pytest.approx(15.0)
    forecast.skip("vision")
    assert (forecast.remaining_s(5.0), forecast.fraction) == (0.0, 1.0)


def test_of_what_ends_early_only_the_rest_is_not_to_do() -> None:
    forecast = Forecast({"text": 4.0, "vision": 2.0})
    forecast.moved("text", 0.5)
    forecast.ended("text")
    assert forecast.fraction == 0.5
    assert forecast.remaining_s(30.0) == pytest.approx(30.0)
    forecast.ended("vision")
    assert forecast.fraction == 1.0


def test_seconds_of_an_earlier_build_are_a_forecast_at_once() -> None:
    forecast = Forecast({"text": 100.0, "vision": 40.0}, in_seconds=True)
    assert forecast.remaining_s(0.0) == 140.0
    assert forecast.remaining_s(150.0) == 0.0
    forecast.moved("text", 0.5)  # twice as slow as then
    assert forecast.remaining_s(100.0) == pytest.approx(180.0)


def test_another_attempt_begins_anew() -> None:
    forecast = Forecast({"text": 1.0})
    forecast.moved("text", 0.8)
    forecast.moved("text", 0.1)
    assert forecast.remaining_s(10.0) == pytest.approx(90.0)
