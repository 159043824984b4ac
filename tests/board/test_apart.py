"""Foreign libraries in processes of their own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orin_rerank.board.apart import Told, run_apart

FIRST = {"step": 1, "path": []}


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("apart_modules")))


def test_what_is_found_is_told() -> None:
    assert run_apart("telling", "well", timeout_s=60) == Told((FIRST, {"step": 2, "text": "ä"}))


@pytest.mark.parametrize(
    ("how", "problem"),
    [("crashes", "ended by signal 9"), ("raises", "ended by exit code 1"), ("half", "ended by exit code 5")],
)
def test_one_that_dies_tells_how_far_it_came(how: str, problem: str) -> None:
    assert run_apart("telling", how, timeout_s=60) == Told((FIRST,), problem)


def test_one_that_hangs_is_ended() -> None:
    started = time.monotonic()
    assert run_apart("telling", "hangs", timeout_s=3) == Told((FIRST,), "did not end within 3 s")
    assert time.monotonic() - started < 20


def test_a_module_that_is_not_there() -> None:
    assert run_apart("no_such_module", timeout_s=60) == Told((), "ended by exit code 1")
