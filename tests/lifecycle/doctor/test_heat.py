"""Checks of heat and current."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.board import make_pc
from lifecycle.doctor.places import board, context_of, said
from orin_rerank.lifecycle.doctor.finding import Verdict
from orin_rerank.lifecycle.doctor.heat import check_current, check_temperature, check_throttling


@pytest.mark.parametrize(
    ("celsius", "verdict", "text"),
    [
        (50, Verdict.OK, "50 °C (tj), 49 degrees below the limit"),
        (92, Verdict.WARN, "92 °C (tj), 7 degrees below the limit"),
        (99, Verdict.FAIL, "99 °C (tj), at or over the limit of 99 °C"),
    ],
)
def test_how_far_the_limit_is(tmp_path: Path, celsius: int, verdict: Verdict, text: str) -> None:
    paths = board(tmp_path)
    paths.at("/sys/class/thermal/thermal_zone8/temp").write_text(f"{celsius * 1000}")
    assert said(check_temperature(paths, context_of(tmp_path))) == (verdict, text)


def test_a_board_without_sensors(tmp_path: Path) -> None:
    paths = board(tmp_path)
    for file in paths.glob("/sys/class/thermal/thermal_zone*/temp"):
        file.unlink()
    assert said(check_temperature(paths, context_of(tmp_path)))[0] is Verdict.WARN


def test_what_is_slowed_down(tmp_path: Path) -> None:
    paths, context = board(tmp_path), context_of(tmp_path)
    assert said(check_throttling(paths, context))[0] is Verdict.OK
    paths.at("/sys/class/thermal/cooling_device1/cur_state").write_text("2")
    assert said(check_throttling(paths, context)) == (Verdict.WARN, "slowed down for heat now: gpu")


@pytest.mark.parametrize(("limit", "verdict"), [("oc1", Verdict.WARN), ("oc2", Verdict.WARN), ("oc3", Verdict.OK)])
def test_limits_of_current_count_by_their_rate(tmp_path: Path, limit: str, verdict: Verdict) -> None:
    paths = board(tmp_path)
    counter = paths.at(f"/sys/class/hwmon/hwmon2/{limit}_event_cnt")
    counter.write_text("70000")
    assert said(check_current(paths, context_of(tmp_path)))[0] is Verdict.OK
    rising = context_of(tmp_path, sleep=lambda _: counter.write_text("70005"))
    assert said(check_current(paths, rising))[0] is verdict


def test_a_pc(tmp_path: Path) -> None:
    paths, context = make_pc(tmp_path / "pc"), context_of(tmp_path)
    assert said(check_temperature(paths, context)) == (
        Verdict.OK,
        "47 °C (coretemp), 53 degrees below the limit",
    )
    assert check_throttling(paths, context) is None
    assert check_current(paths, context) is None
