"""A power mode or clocks that something has changed are asked for: at once, then less and less where it is no use."""

from __future__ import annotations

import itertools
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from fakes.board import AGX_ORIN_64, NANO_8_SUPER, BoardSpec, make_board, make_pc
from orin_rerank.board.nvpmodel import STATUS, read_noted_mode
from orin_rerank.board.request import OUTCOME, REQUEST, BoardRequest, read_request
from orin_rerank.board.tuner import tune_board
from orin_rerank.board.tuning import KEEP, Tuning, TuningOutcome
from orin_rerank.lifecycle.board_watch import BoardWatch

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def apply(paths: BoardPaths, tuning: Tuning) -> TuningOutcome:
    """The root service, which is at boot, and whenever it is asked."""
    outcome = tune_board(paths, tuning, paths.root.parent / "state", lambda _: None)
    file = paths.at(str(OUTCOME))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(outcome.to_json())
    return outcome


def booted(tmp_path: Path, spec: BoardSpec, tuning: Tuning) -> BoardPaths:
    """A board that was tuned at boot, and where the daemon may ask."""
    paths = make_board(tmp_path / "board", spec)
    apply(paths, tuning)
    paths.at(str(REQUEST)).parent.mkdir(parents=True)
    return paths


@pytest.fixture
def board(tmp_path: Path) -> BoardPaths:
    return booted(tmp_path, AGX_ORIN_64, Tuning())


def run_nvpmodel(paths: BoardPaths, mode: int) -> None:
    """Somebody does, or an update of NVIDIA's."""
    program = paths.program("nvpmodel")
    assert program is not None
    subprocess.run([program, "-m", str(mode)], check=True, capture_output=True)


def undo(paths: BoardPaths) -> None:
    """Undoes the clocks; the mode stays."""
    run_nvpmodel(paths, AGX_ORIN_64.fastest)


def programs_run(paths: BoardPaths) -> int:
    return len((paths.text("/fake/calls") or "").splitlines())


def test_what_nvpmodel_undoes_is_asked_for_and_helps(board: BoardPaths) -> None:
    clock = Clock()
    watch = BoardWatch(board, Tuning(), clock=clock)
    assert not watch.look()
    assert watch.problems == ()
    undo(board)
    assert watch.look()
    assert watch.problems == ("clocks are not locked; `orin-rerank board show` says more",)
    assert read_request(board.at(str(REQUEST))) is BoardRequest.TUNE
    apply(board, Tuning())
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


def test_after_a_long_calm_it_is_asked_at_once_again(board: BoardPaths) -> None:
    clock = Clock()
    watch = BoardWatch(board, Tuning(), clock=clock)
    undo(board)
    assert watch.look()
    apply(board, Tuning())
    for seconds in (10, 11):
        clock.now = seconds
        assert not watch.look()
    undo(board)
    clock.now = 12
    assert not watch.look(), "too soon after the last time"
    apply(board, Tuning())
    watch.look()
    clock.now = 700
    watch.look()
    undo(board)
    clock.now = 701
    assert watch.look()


def test_the_calm_begins_anew_each_time(board: BoardPaths) -> None:
    clock = Clock()
    watch = BoardWatch(board, Tuning(), clock=clock)
    for clock.now in (0, 300):
        assert not watch.look()
    undo(board)
    clock.now = 310
    assert watch.look()
    apply(board, Tuning())
    for clock.now in (320, 640):
        assert not watch.look()
    undo(board)
    clock.now = 650
    assert watch.look(), "the first wait is over"
    apply(board, Tuning())
    clock.now = 660
    assert not watch.look()
    undo(board)
    clock.now = 700
    assert not watch.look(), "now it is a minute, though it was right for ten minutes in all"


def test_where_it_cannot_ask_that_is_no_failure(board: BoardPaths) -> None:
    board.at(str(REQUEST)).parent.rmdir()
    undo(board)
    watch = BoardWatch(board, Tuning())
    assert not watch.look()
    assert watch.problems


def test_a_power_mode_that_somebody_changes_is_asked_for_though_clocks_are_left_alone(tmp_path: Path) -> None:
    tuning = Tuning(lock_clocks=False)
    board = booted(tmp_path, AGX_ORIN_64, tuning)
    clock = Clock()
    watch = BoardWatch(board, tuning, clock=clock)
    assert not watch.look()
    run_nvpmodel(board, 1)
    before = programs_run(board)
    assert watch.look()
    assert programs_run(board) == before, "to look starts no program"
    (problem,) = watch.problems
    assert problem == (
        "the power mode is MODE_15W, though it should be MAXN; "
        'power_mode = "keep" in [board] of the settings leaves it alone'
    )
    assert read_request(board.at(str(REQUEST))) is BoardRequest.TUNE
    assert apply(board, tuning).changed == ("power mode MAXN",)
    clock.now += 10
    assert not watch.look()
    assert watch.problems == ()


def test_mode_and_clocks_are_one_request(board: BoardPaths) -> None:
    clock = Clock()
    watch = BoardWatch(board, Tuning(), clock=clock)
    run_nvpmodel(board, 1)
    assert watch.look()
    assert len(watch.problems) == 2
    assert apply(board, Tuning()).changed == ("power mode MAXN", "clocks locked")
    clock.now += 10
    assert not watch.look()


def test_a_mode_that_somebody_sets_again_and_again_is_asked_for_less_and_less(tmp_path: Path) -> None:
    tuning = Tuning(lock_clocks=False)
    board = booted(tmp_path, AGX_ORIN_64, tuning)
    clock = Clock()
    watch = BoardWatch(board, tuning, clock=clock)
    asked = []
    for _ in range(1000):
        clock.now += 10
        board.at(STATUS).write_text("pmode:0001 fmode:quiet\n")
        if watch.look():
            asked.append(clock.now)
            board.at(STATUS).write_text("pmode:0000 fmode:quiet\n")
            clock.now += 10
            assert not watch.look()
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps[:5] == [30, 60, 120, 240, 480]


@pytest.mark.parametrize("kept", [Tuning(power_mode=KEEP, lock_clocks=False), Tuning(power_mode=KEEP)])
def test_a_mode_that_the_settings_leave_alone_is_left_alone(tmp_path: Path, kept: Tuning) -> None:
    board = booted(tmp_path, AGX_ORIN_64, kept)
    watch = BoardWatch(board, kept)
    run_nvpmodel(board, 1)
    assert watch.look() is kept.lock_clocks
    assert not any("power mode" in problem for problem in watch.problems)
    assert apply(board, kept).mode == "MODE_15W"


def test_a_mode_that_waits_for_a_reboot_is_not_asked_for(tmp_path: Path) -> None:
    board = make_board(tmp_path / "board", NANO_8_SUPER)
    board.at("/fake/needs_reboot").write_text("2\n")
    tuning = Tuning(lock_clocks=False)
    assert apply(board, tuning).reboot_needed
    board.at(str(REQUEST)).parent.mkdir(parents=True)
    clock = Clock()
    watch = BoardWatch(board, tuning, clock=clock)
    assert not watch.look()
    # Whoever changes the mode meanwhile is heard once: the root service finds out that it takes a reboot still.
    run_nvpmodel(board, 3)
    asked = []
    for _ in range(1000):
        clock.now += 10
        if watch.look():
            asked.append(clock.now)
            assert apply(board, tuning).reboot_needed
    assert asked == [10]
    assert watch.problems == ()
    noted = read_noted_mode(board)
    assert noted is not None
    assert noted.id == 3


def test_a_mode_that_the_driver_did_not_take_at_boot_is_asked_for_later(tmp_path: Path) -> None:
    board = make_board(tmp_path / "board", AGX_ORIN_64)
    board.at("/fake/fail_times").write_text("5")
    tuning = Tuning(lock_clocks=False)
    assert apply(board, tuning).mode == "MODE_30W"
    board.at(str(REQUEST)).parent.mkdir(parents=True)
    watch = BoardWatch(board, tuning)
    assert watch.look()
    assert "though it should be MAXN: power mode MAXN: nvpmodel failed: NVPM ERROR" in watch.problems[0]
    assert apply(board, tuning).mode == "MAXN"
    assert not watch.look()


def test_a_mode_that_the_board_has_not_is_not_asked_for(tmp_path: Path) -> None:
    tuning = Tuning(power_mode="1000W", lock_clocks=False)
    board = booted(tmp_path, AGX_ORIN_64, tuning)
    assert not BoardWatch(board, tuning).look()


def test_the_root_service_has_the_last_word_on_which_mode_it_should_be(board: BoardPaths) -> None:
    """It has read the settings since, and was started again; the daemon has not."""
    clock = Clock()
    watch = BoardWatch(board, Tuning(lock_clocks=False), clock=clock)
    assert apply(board, Tuning(power_mode="MODE_50W")).mode == "MODE_50W"
    assert not watch.look()
    board.at(str(OUTCOME)).unlink()
    assert not watch.look(), "nothing is known of it"


def test_clocks_that_the_root_service_was_told_to_leave_alone_are_not_asked_for(board: BoardPaths) -> None:
    watch = BoardWatch(board, Tuning(), clock=Clock())
    apply(board, Tuning(lock_clocks=False))
    undo(board)
    assert not watch.look()
    assert watch.problems == ()


def test_a_gpu_whose_clock_only_root_sees_is_not_asked_for(board: BoardPaths) -> None:
    board.at("/sys/class/devfreq/17000000.gpu").rename(board.at("/sys/class/devfreq/elsewhere"))
    clock = Clock()
    watch = BoardWatch(board, Tuning(), clock=clock)
    assert not watch.look()
    board.at("/sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq").write_text("729600")
    assert watch.look()


def test_nothing_is_seen_where_nothing_can_be_read(tmp_path: Path) -> None:
    tuning = Tuning(lock_clocks=False)
    board = booted(tmp_path, AGX_ORIN_64, tuning)
    watch = BoardWatch(board, tuning)
    run_nvpmodel(board, 1)
    conf = board.at("/etc/nvpmodel.conf").read_text()
    board.at("/etc/nvpmodel.conf").write_text("")
    assert not watch.look()
    board.at("/etc/nvpmodel.conf").write_text(conf)
    board.at(STATUS).write_text("")
    assert not watch.look()
    board.at(STATUS).write_text("pmode:0009\n")
    assert watch.look()
    assert watch.problems[0].startswith("the power mode is 9, though it should be MAXN")


def test_nothing_is_watched_where_nothing_shall_be_set(board: BoardPaths, tmp_path: Path) -> None:
    undo(board)
    assert not BoardWatch(board, Tuning(power_mode=KEEP, lock_clocks=False)).look()
    assert not BoardWatch(make_pc(tmp_path / "pc"), Tuning()).look()


def test_in_a_thread_of_its_own(board: BoardPaths) -> None:
    undo(board)
    with BoardWatch(board, Tuning(), period_s=0.01) as watch:
        deadline = time.monotonic() + 10
        while not board.at(str(REQUEST)).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert watch.problems
