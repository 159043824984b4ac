"""Clocks that something has undone are asked for: at once, then less and less often where that does not help."""

from __future__ import annotations

import itertools
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from fakes.board import AGX_ORIN_64, make_board, make_pc
from orin_rerank.board.request import REQUEST, BoardRequest, read_request
from orin_rerank.board.tuning import Tuning, tune_board
from orin_rerank.lifecycle.board_watch import BoardWatch

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def board(tmp_path: Path) -> BoardPaths:
    """A board that is tuned, and where the daemon may ask."""
    paths = make_board(tmp_path / "board", AGX_ORIN_64)
    tune_board(paths, Tuning(), tmp_path / "state", lambda _: None)
    paths.at(str(REQUEST)).parent.mkdir(parents=True)
    return paths


def undo(paths: BoardPaths) -> None:
    """Anybody runs nvpmodel."""
    program = paths.program("nvpmodel")
    assert program is not None
    subprocess.run([program, "-m", "2"], check=True, capture_output=True)


def test_what_nvpmodel_undoes_is_asked_for_and_helps(board: BoardPaths, tmp_path: Path) -> None:
    clock = Clock()
    watch = BoardWatch(board, Tuning(), clock=clock)
    assert not watch.look()
    assert watch.problems == ()
    undo(board)
    assert watch.look()
    assert "clocks are not locked" in watch.problems[0]
    assert read_request(board.at(str(REQUEST))) is BoardRequest.TUNE
    tune_board(board, Tuning(), tmp_path / "state", lambda _: None)
    clock.now += 10
    assert not watch.look()
    assert watch.problems == ()


def test_what_does_not_help_is_asked_for_less_and_less(board: BoardPaths) -> None:
    clock = Clock()
    watch = BoardWatch(board, Tuning(), clock=clock)
    undo(board)
    asked = []
    for _ in range(2400):
        clock.now += 10
        if watch.look():
            asked.append(clock.now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps[:6] == [30, 60, 120, 240, 480, 960]
    assert max(gaps) == 3600
    assert len(asked) < 15


def test_after_a_long_calm_it_is_asked_at_once_again(board: BoardPaths, tmp_path: Path) -> None:
    clock = Clock()
    watch = BoardWatch(board, Tuning(), clock=clock)
    undo(board)
    assert watch.look()
    tune_board(board, Tuning(), tmp_path / "state", lambda _: None)
    for seconds in (10, 11):
        clock.now = seconds
        assert not watch.look()
    undo(board)
    clock.now = 12
    assert not watch.look(), "too soon after the last time"
    tune_board(board, Tuning(), tmp_path / "state", lambda _: None)
    watch.look()
    clock.now = 700
    watch.look()
    undo(board)
    clock.now = 701
    assert watch.look()


def test_where_it_cannot_ask_that_is_no_failure(board: BoardPaths) -> None:
    board.at(str(REQUEST)).parent.rmdir()
    undo(board)
    watch = BoardWatch(board, Tuning())
    assert not watch.look()
    assert watch.problems


def test_nothing_is_watched_where_nothing_shall_be_locked(board: BoardPaths, tmp_path: Path) -> None:
    undo(board)
    assert not BoardWatch(board, Tuning(lock_clocks=False)).look()
    assert not BoardWatch(make_pc(tmp_path / "pc"), Tuning()).look()


def test_in_a_thread_of_its_own(board: BoardPaths) -> None:
    undo(board)
    with BoardWatch(board, Tuning(), period_s=0.01) as watch:
        deadline = time.monotonic() + 10
        while not board.at(str(REQUEST)).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert watch.problems
