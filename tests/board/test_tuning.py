"""Power mode and clocks set on every board, with programs that answer as the real ones do."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.board import (
    AGX_ORIN_64,
    BOARDS,
    NANO_8,
    NANO_8_SUPER,
    NX_16,
    NX_16_SUPER,
    BoardSpec,
    make_board,
    make_pc,
    reboot_board,
)
from fakes.locks import locked_by_another
from orin_rerank.board.clocks import Clock, read_clocks
from orin_rerank.board.found import exclusively
from orin_rerank.board.nvpmodel import read_current_mode, set_mode
from orin_rerank.board.power_modes import read_power_modes
from orin_rerank.board.programs import run_program
from orin_rerank.board.request import BoardRequest, read_request, write_request
from orin_rerank.board.tuner import LONGEST_S, tune_board
from orin_rerank.board.tuning import (
    KEEP,
    Tuning,
    TuningOutcome,
    are_clocks_locked,
    read_outcome,
)
from orin_rerank.errors import BoardBusyError, BoardError, RebootNeededError, SettingsError

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths

FAN = "/sys/class/hwmon/hwmon0/pwm1"
UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


def calls(paths: BoardPaths) -> list[str]:
    """What was asked of the board's programs, but for questions."""
    lines = (paths.text("/fake/calls") or "").splitlines()
    return [line for line in lines if line.split()[1:2] not in (["-q"], ["--show"])]


def mode_of(paths: BoardPaths) -> int | None:
    mode = read_current_mode(paths)
    assert mode is not None
    return mode.id


def tune(paths: BoardPaths, tmp_path: Path, tuning: Tuning | None = None) -> tuple[TuningOutcome, list[float]]:
    waits: list[float] = []
    return tune_board(paths, tuning or Tuning(), tmp_path / "state", waits.append), waits


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_every_board_gets_its_fastest_mode_and_locked_clocks(tmp_path: Path, spec: BoardSpec) -> None:
    paths = make_board(tmp_path / "board", spec)
    outcome, _ = tune(paths, tmp_path)
    assert outcome.problem is None
    assert mode_of(paths) == spec.fastest
    assert read_clocks(paths).locked
    gpu = read_clocks(paths).gpu
    assert gpu is not None
    assert gpu.lowest == max(spec.gpu_clocks)
    assert paths.number(FAN) == 102
    again, _ = tune(paths, tmp_path)
    assert again.changed == ()
    assert (again.mode, again.clocks_locked) == (outcome.mode, True)
    assert [call for call in calls(paths) if "--store" not in call] == [
        *([] if spec.fastest == spec.default else [f"nvpmodel -m {spec.fastest}"]),
        "jetson_clocks ",
    ]


def test_a_mode_that_was_asked_for(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    outcome, _ = tune(paths, tmp_path, Tuning(power_mode="25w"))
    assert (outcome.mode, outcome.wanted) == ("25W", "25W")
    kept, _ = tune(paths, tmp_path, Tuning(power_mode=KEEP, lock_clocks=False))
    assert kept == TuningOutcome("25W", "25W", clocks_locked=True, lock_clocks=False)


def test_a_mode_that_the_board_has_not_is_told_and_clocks_are_locked_all_the_same(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NANO_8)
    outcome, _ = tune(paths, tmp_path, Tuning(power_mode="MAXN"))
    assert (outcome.mode, outcome.wanted, outcome.clocks_locked) == ("15W", "MAXN", True)
    assert outcome.problem == ("[board] power_mode: MAXN: there is no such power mode; this board has 15W (0), 7W (1)")


def test_power_modes_that_cannot_be_read_are_told_and_clocks_are_locked_all_the_same(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NANO_8)
    paths.at("/etc/nvpmodel.conf").write_text("nothing\n")
    outcome, _ = tune(paths, tmp_path)
    assert outcome.problem == "/etc/nvpmodel.conf: defines no power mode"
    assert outcome.clocks_locked


def test_clocks_are_left_where_they_shall_be(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NANO_8)
    outcome, _ = tune(paths, tmp_path, Tuning(lock_clocks=False))
    assert outcome == TuningOutcome("15W", "15W", clocks_locked=False, lock_clocks=False)
    assert not read_clocks(paths).locked


def test_clocks_undone_by_nvpmodel_are_locked_again(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", AGX_ORIN_64)
    tune(paths, tmp_path)
    run_program(paths, "nvpmodel", "-m", "0", timeout_s=10)
    assert not read_clocks(paths).locked
    outcome, _ = tune(paths, tmp_path)
    assert outcome.changed == ("clocks locked",)
    assert read_clocks(paths).locked


def test_the_memory_is_held_to_what_the_power_mode_lets_it_have(tmp_path: Path) -> None:
    """Its own highest clock is out of reach in a mode that caps it, and no reason to lock for ever."""
    paths = make_board(tmp_path / "board", AGX_ORIN_64)
    outcome, waits = tune(paths, tmp_path, Tuning(power_mode="MODE_15W"))
    assert (outcome.clocks_locked, outcome.problem, waits) == (True, None, [0.5])
    assert read_clocks(paths).emc == Clock(204_000_000, 2_133_000_000, 2_133_000_000)
    paths.at("/sys/kernel/debug/bpmp/debug/clk/emc/rate").write_text("665600000\n")
    assert not read_clocks(paths).locked


@pytest.mark.parametrize(
    ("file", "value", "highest"),
    [
        ("nvpmodel_clk_cap/emc", "3199000000", 3_199_000_000),  # of a mode without a cap
        ("nvpmodel_clk_cap/emc", "2133000000", 2_133_000_000),
        ("nvpmodel_clk_cap/emc", "9223372036854775807", 3_199_000_000),
        ("nvpmodel_emc_cap/emc_iso_cap", "0", 3_199_000_000),  # likewise, on JetPack 5
        ("nvpmodel_emc_cap/emc_iso_cap", "2133000000", 2_133_000_000),
        ("nvpmodel_emc_cap/emc_iso_cap", "none", 3_199_000_000),
        (None, "", 3_199_000_000),
    ],
)
def test_where_the_memorys_cap_is(tmp_path: Path, file: str | None, value: str, highest: int) -> None:
    paths = make_board(tmp_path / "board", AGX_ORIN_64)
    paths.at("/sys/kernel/nvpmodel_clk_cap/emc").unlink()
    if file is not None:
        place = paths.at(f"/sys/kernel/{file}")
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"{value}\n")
    emc = read_clocks(paths).emc
    assert emc is not None
    assert emc.highest == highest


def test_a_gpu_whose_clock_is_elsewhere_is_taken_as_jetson_clocks_shows_it(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", AGX_ORIN_64)
    paths.at("/sys/class/devfreq/17000000.gpu").rename(paths.at("/sys/class/devfreq/elsewhere"))
    program = paths.program("jetson_clocks")
    assert program is not None
    program.write_text(
        """#!/bin/sh
lock=$(dirname "$0")/../../fake/locked
case $1 in
--show)
    echo "cpu0:  Online=1 Governor=schedutil MinFreq=1497600 MaxFreq=1497600 CurrentFreq=1497600"
    if [ -e "$lock" ]; then low=1300500000; else low=306000000; fi
    echo "GPU MinFreq=$low MaxFreq=1300500000 CurrentFreq=1300500000" ;;
--store) echo stored >"$2" ;;
"") touch "$lock" ;;
esac
"""
    )
    outcome, waits = tune(paths, tmp_path)
    assert (outcome.clocks_locked, outcome.problem, waits) == (True, None, [0.5])


def test_too_early_is_tried_again(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16_SUPER)
    paths.at("/fake/fail_times").write_text("3")
    paths.at("/fake/clocks_fail_times").write_text("1")
    outcome, waits = tune(paths, tmp_path)
    assert outcome.problem is None
    assert outcome.mode == "MAXN_SUPER"
    assert waits == [2.0, 4.0, 8.0, 2.0, 0.5]


def test_a_board_that_never_takes_its_mode_gets_its_clocks_all_the_same(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16_SUPER)
    paths.at("/fake/fail_times").write_text("99")
    outcome, waits = tune(paths, tmp_path)
    assert outcome.mode == "40W"
    assert outcome.wanted == "MAXN_SUPER"
    assert outcome.clocks_locked
    assert outcome.problem == (
        "power mode MAXN_SUPER: nvpmodel failed: "
        "NVPM ERROR: Error writing 128 to /sys/devices/platform/gpu.0/tpc_pg_mask: 16"
    )
    assert sum(waits[:-1]) == 30.0


def test_clocks_are_not_locked_where_they_cannot_be_given_back(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16_SUPER)
    paths.at("/fake/store_fails").write_text("")
    outcome, _ = tune(paths, tmp_path)
    assert outcome.problem == (
        "clocks are not locked, since what they are now cannot be noted: "
        "jetson_clocks --store: failed: Error: cannot read the GPU's clock"
    )
    assert (outcome.mode, outcome.clocks_locked) == ("MAXN_SUPER", False)
    assert "jetson_clocks " not in calls(paths)


def test_a_store_that_fails_early_is_tried_again(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16_SUPER)
    paths.at("/fake/store_fails").write_text("")
    outcome = tune_board(
        paths, Tuning(), tmp_path / "state", lambda _: paths.at("/fake/store_fails").unlink(missing_ok=True)
    )
    assert (outcome.problem, outcome.clocks_locked) == (None, True)


@pytest.mark.parametrize("status", ["", None])
def test_a_mode_is_not_changed_where_the_one_before_it_is_not_known(tmp_path: Path, status: str | None) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    paths.at("/usr/sbin/nvpmodel").rename(paths.at("/usr/sbin/nvpmodel.real"))
    paths.at("/usr/sbin/nvpmodel").write_text(
        """#!/bin/sh
if [ "$1" = -q ]; then echo "NVPM ERROR: no"; exit 255; fi
exec "$(dirname "$0")/nvpmodel.real" "$@"
"""
    )
    paths.at("/usr/sbin/nvpmodel").chmod(0o755)
    file = paths.at("/var/lib/nvpmodel/status")
    file.unlink()
    if status is not None:
        file.write_text(status)
    outcome, _ = tune(paths, tmp_path)
    assert outcome.problem == (
        "power mode MAXN: not set, since the one before it cannot be noted: power mode MAXN: it is not known"
    )
    assert outcome.clocks_locked
    assert "nvpmodel -m 0" not in calls(paths)


def test_a_mode_whose_number_is_not_told_is_known_by_its_name(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    program = paths.at("/usr/sbin/nvpmodel")
    program.write_text(program.read_text().replace("    current\n    ;;", "    ;;"))
    assert subprocess.run([program, "-q"], capture_output=True, text=True, check=True).stdout == "NV Power Mode: 15W\n"
    outcome, _ = tune(paths, tmp_path)
    assert (outcome.mode, outcome.problem) == ("MAXN", None)
    assert (tmp_path / "state/mode.stored").read_text() == "2 15W\n0 MAXN\n"
    outcome, _ = tune(paths, tmp_path)
    assert (outcome.changed, outcome.problem) == ((), None)


def test_what_nvpmodel_says_is_looked_after(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    program = paths.at("/usr/sbin/nvpmodel")
    program.write_text(program.read_text().replace('    apply "$id"\n', "    :\n"))
    outcome, _ = tune(paths, tmp_path)
    assert outcome.problem == "power mode MAXN: nvpmodel set it, but says that the board is in 15W"
    assert (outcome.mode, outcome.clocks_locked) == ("15W", True)


def test_nothing_is_noted_where_nothing_is_changed(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    tune(paths, tmp_path, Tuning(power_mode=KEEP, lock_clocks=False))
    assert list((tmp_path / "state").iterdir()) == []
    tune(paths, tmp_path, Tuning(power_mode=KEEP))
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["clocks.stored"]


def test_of_what_jetson_clocks_stores_the_fan_and_the_cores_are_left_out(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    tune(paths, tmp_path)
    stored = (tmp_path / "state/clocks.stored").read_text().splitlines()
    assert {Path(line.split(":")[0]).name for line in stored} == {"scaling_min_freq", "min_freq", "rate"}
    assert sorted(file.name for file in (tmp_path / "state").iterdir()) == ["clocks.stored", "mode.stored"]
    assert not paths.at("/.jetsonclocks_fan.txt").exists()
    assert not [call for call in calls(paths) if "nvfancontrol" in call]


def test_nothing_is_changed_where_the_disk_takes_nothing(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16_SUPER)
    (tmp_path / "state").write_text("no folder")
    outcome, _ = tune(paths, tmp_path)
    assert outcome.problem is not None
    assert outcome.problem.startswith("nothing is changed, since what is set now cannot be noted: ")
    assert mode_of(paths) == NX_16_SUPER.default


def test_clocks_of_which_nothing_was_stored_are_not_changed(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    program = paths.program("jetson_clocks")
    assert program is not None
    program.write_text('#!/bin/sh\n[ "$1" != --store ] || : >"$2"\n')
    outcome, _ = tune(paths, tmp_path)
    assert outcome.problem is not None
    assert outcome.problem.endswith("jetson_clocks: stored no clocks")
    assert not (tmp_path / "state/clocks.stored").exists()


def test_no_reboot_is_made_that_cannot_be_noted(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    (tmp_path / "state/.rebooted-for.part").mkdir(parents=True)
    outcome, _ = tune(paths, tmp_path, Tuning(reboot=True))
    assert outcome.reboot_needed
    assert outcome.problem is not None
    assert "not rebooted, since that cannot be noted: Is a directory" in outcome.problem
    assert "reboot by nvpmodel" not in calls(paths)


def test_no_reboot_is_made_that_a_reboot_would_forget(tmp_path: Path) -> None:
    """A root file system whose changes are in memory is rebooted for ever."""
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    paths.at("/proc/self/mountinfo").write_text("1 0 0:1 / / rw - tmpfs none rw\n")
    outcome, _ = tune(paths, tmp_path, Tuning(reboot=True))
    assert outcome.reboot_needed
    assert outcome.problem is not None
    assert outcome.problem.endswith(f"not rebooted, since {tmp_path}/state may not outlive it")
    assert "reboot by nvpmodel" not in calls(paths)


@pytest.mark.parametrize("mark", ["folder", "bytes"])
def test_a_mark_that_cannot_be_read_is_one(tmp_path: Path, mark: str) -> None:
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    file = tmp_path / "state/rebooted-for"
    file.parent.mkdir()
    if mark == "folder":
        file.mkdir()
    else:
        file.write_bytes(b"2 MAXN_SUPER, L4T 39.2.1")
    outcome, _ = tune(paths, tmp_path, Tuning(reboot=True))
    assert outcome.problem is not None
    assert "not rebooted again" in outcome.problem
    assert "reboot by nvpmodel" not in calls(paths)


def test_a_power_cut_while_clocks_are_stored(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", AGX_ORIN_64)
    (tmp_path / "state").mkdir()
    (tmp_path / "state/.clocks.stored.part").write_text("half")
    outcome, _ = tune(paths, tmp_path)
    assert outcome.problem is None
    assert "half" not in (tmp_path / "state/clocks.stored").read_text()
    assert "scaling_min_freq:729600" in (tmp_path / "state/clocks.stored").read_text()


TAKES_A_REBOOT = "power mode MAXN_SUPER: takes a reboot that is made for it: `sudo nvpmodel -m 2`, and YES"


def test_a_reboot_is_reported_and_not_made(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    outcome, waits = tune(paths, tmp_path)
    assert outcome == TuningOutcome(
        "25W",
        "MAXN_SUPER",
        clocks_locked=True,
        reboot_needed=True,
        changed=("clocks locked",),
        problem=f"{TAKES_A_REBOOT}; or reboot = true in [board] of the settings",
    )
    assert waits == [0.5]
    assert "reboot by nvpmodel" not in calls(paths)


def test_a_reboot_that_nobody_made_for_the_mode_changes_nothing(tmp_path: Path) -> None:
    """What nvpmodel asked for in vain is forgotten, so what we say must be something else than: reboot."""
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    tune(paths, tmp_path)
    reboot_board(paths)
    outcome, _ = tune(paths, tmp_path)
    assert (outcome.mode, outcome.reboot_needed) == ("25W", True)
    # As we say.
    subprocess.run(
        [str(paths.program("nvpmodel")), "-m", "2"], input="YES\n", text=True, check=True, capture_output=True
    )
    reboot_board(paths)
    outcome, _ = tune(paths, tmp_path)
    assert (outcome.mode, outcome.problem, outcome.reboot_needed) == ("MAXN_SUPER", None, False)


def test_a_reboot_that_is_allowed_is_made_once(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    outcome, _ = tune(paths, tmp_path, Tuning(reboot=True))
    assert outcome.changed == ("rebooting",)
    assert calls(paths).count("reboot by nvpmodel") == 1
    reboot_board(paths)
    outcome, _ = tune(paths, tmp_path, Tuning(reboot=True))
    assert (outcome.mode, outcome.problem, outcome.clocks_locked) == ("MAXN_SUPER", None, True)


def test_no_reboot_is_made_while_packages_are_installed(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    lock = paths.at("/var/lib/dpkg/lock-frontend")
    lock.parent.mkdir(parents=True)
    lock.touch()
    with locked_by_another(lock):
        outcome, _ = tune(paths, tmp_path, Tuning(reboot=True))
        assert outcome.reboot_needed
        assert outcome.problem is not None
        assert "not rebooted, since packages are being installed: it is at the next boot" in outcome.problem
        assert "reboot by nvpmodel" not in calls(paths)
    outcome, _ = tune(paths, tmp_path, Tuning(reboot=True))
    assert outcome.changed == ("rebooting",)


def test_a_mode_that_somebody_changes_after_each_boot_is_not_rebooted_for_after_each_boot(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    for _ in range(4):
        outcome, _ = tune(paths, tmp_path, Tuning(reboot=True))
        reboot_board(paths)
        tune(paths, tmp_path, Tuning(reboot=True))
        run_program(paths, "nvpmodel", "-m", "1", timeout_s=10)
    assert calls(paths).count("reboot by nvpmodel") == 1
    assert outcome.problem == (
        "power mode MAXN_SUPER: the board was rebooted for it before, and is not in it; not rebooted again: "
        "`sudo nvpmodel -m 2`, and YES, does so"
    )


def test_no_board_is_rebooted_for_ever(tmp_path: Path) -> None:
    """The mode is not there after the reboot either."""
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    for _ in range(4):
        outcome, _ = tune(paths, tmp_path, Tuning(reboot=True))
        paths.at("/fake/booted_mode").unlink(missing_ok=True)
        reboot_board(paths)
    assert calls(paths).count("reboot by nvpmodel") == 1
    assert outcome.problem is not None
    assert "not rebooted again" in outcome.problem
    assert outcome.reboot_needed


@pytest.mark.parametrize("change", ["another mode", "another release"])
def test_for_something_else_it_is_rebooted_again(tmp_path: Path, change: str) -> None:
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n3\n")
    tune(paths, tmp_path, Tuning(reboot=True))
    paths.at("/fake/booted_mode").unlink()
    if change == "another release":
        paths.at("/etc/nv_tegra_release").write_text("# R39 (release), REVISION: 3.0\n")
    outcome, _ = tune(paths, tmp_path, Tuning(power_mode="7W" if change == "another mode" else "fastest", reboot=True))
    assert outcome.changed == ("rebooting",)
    assert calls(paths).count("reboot by nvpmodel") == 2


def test_no_more_is_tried_than_there_is_time_for(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    program = paths.at("/usr/sbin/nvpmodel")
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def clock() -> float:  # whatever is done takes a while, as a program that hangs does
        now[0] += 24.0
        return now[0]

    program.write_text(program.read_text().replace("sleep 600", "exit 255"))
    paths.at("/fake/hangs").write_text("")
    outcome = tune_board(paths, Tuning(lock_clocks=False), tmp_path / "state", sleep, clock)
    assert outcome.problem is not None
    assert outcome.problem.startswith("power mode MAXN: nvpmodel failed")
    assert calls(paths).count("nvpmodel -m 0") == 1, "there is no time for more"


@pytest.mark.parametrize("unit", ["orin-rerank-board.service", "orin-rerank-board-again.service"])
def test_it_comes_to_an_end_before_the_unit_does(unit: str) -> None:
    limit = re.search(r"^TimeoutStartSec=(\d+)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert limit is not None
    assert int(limit[1]) >= LONGEST_S + 5


def test_two_do_not_work_on_a_board_at_once(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    state = tmp_path / "state"
    state.mkdir()
    other = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BoardBusyError, match="another `orin-rerank board` is at work"), exclusively(state, 0.3):
            pass
    finally:
        os.close(other)
    assert tune(paths, tmp_path)[0].problem is None


def test_whoever_waits_for_another_finds_all_done(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    paths.at("/fake/clocks_slow").write_text("1")
    outcomes: list[TuningOutcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(tune(paths, tmp_path)[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(outcome.changed) for outcome in outcomes) == [0, 2]
    assert {(outcome.mode, outcome.clocks_locked, outcome.problem) for outcome in outcomes} == {("MAXN", True, None)}


def test_a_jetson_clocks_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    tune(paths, tmp_path)
    run_program(paths, "nvpmodel", "-m", "0", timeout_s=10)
    program = paths.program("jetson_clocks")
    assert program is not None
    program.write_bytes(b"\x7fELF no program")
    outcome, _ = tune(paths, tmp_path)
    assert (outcome.clocks_locked, outcome.mode) == (False, "MAXN")
    assert outcome.problem is not None
    assert "cannot be run: Exec format error" in outcome.problem


def test_whether_clocks_are_locked_where_only_root_sees_the_gpus(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    outcome, _ = tune(paths, tmp_path)
    assert are_clocks_locked(paths, None)
    paths.at("/sys/class/devfreq/17000000.gpu").rename(paths.at("/sys/class/devfreq/elsewhere"))
    assert are_clocks_locked(paths, outcome)
    assert not are_clocks_locked(paths, None)
    floor = paths.at("/sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq")
    floor.write_text("729600")
    assert not are_clocks_locked(paths, outcome), "the processor's have been undone"


def test_a_program_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    paths.at("/fake/hangs").write_text("")
    begin = time.monotonic()
    with pytest.raises(BoardBusyError, match=r"nvpmodel: did not end within 0\.5 s"):
        run_program(paths, "nvpmodel", "-m", "0", timeout_s=0.5)
    assert time.monotonic() - begin < 10
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert left == ""


def test_a_question_gets_no_answer_from_a_terminal(tmp_path: Path) -> None:
    """With the terminal that the test has, nvpmodel would wait for an answer."""
    paths = make_board(tmp_path, NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    modes = read_power_modes(paths)
    assert modes is not None
    leader, follower = os.openpty()
    saved = os.dup(0)
    os.dup2(follower, 0)
    try:
        with pytest.raises(RebootNeededError):
            set_mode(paths, modes.modes[2])
    finally:
        os.dup2(saved, 0)
        for handle in (saved, leader, follower):
            os.close(handle)


def test_a_mode_that_the_board_does_not_know(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    modes = read_power_modes(paths)
    assert modes is not None
    conf = paths.at("/etc/nvpmodel.conf")
    conf.write_text(conf.read_text().replace("ID=3", "ID=33"))
    with pytest.raises(BoardError, match="does not know it: NVPM ERROR: Invalid power mode: 3"):
        set_mode(paths, modes.modes[3])


def test_the_boards_programs_get_no_environment_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("LD_PRELOAD", "")
    paths = make_board(tmp_path, NX_16)
    paths.at("/usr/sbin/nvpmodel").write_text("#!/bin/sh\nexec env\n")
    names = {line.split("=")[0] for line in run_program(paths, "nvpmodel", timeout_s=10).output.splitlines()}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "LC_ALL"}


def test_numbers_of_modes_may_have_gaps(tmp_path: Path) -> None:
    gaps = tuple(dataclasses.replace(mode, id=2 * mode.id + 1) for mode in NX_16.modes)
    paths = make_board(tmp_path / "board", dataclasses.replace(NX_16, modes=gaps, default=5))
    outcome, _ = tune(paths, tmp_path)
    assert (outcome.mode, outcome.problem, mode_of(paths)) == ("MAXN", None, 1)


def test_words_of_the_settings_are_taken_whatever_their_case() -> None:
    assert Tuning(power_mode=" Fastest ").power_mode == "fastest"
    assert Tuning(power_mode="KEEP").power_mode == "keep"
    assert Tuning(power_mode="maxn").power_mode == "maxn"


@pytest.mark.parametrize("mode", ["", "  ", "-1"])
def test_a_power_mode_that_can_be_none_is_refused(mode: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Tuning(power_mode=mode)
    assert caught.value.item == "power_mode"


def test_a_pc_is_left_alone(tmp_path: Path) -> None:
    paths = make_pc(tmp_path / "pc")
    assert tune(paths, tmp_path)[0] == TuningOutcome()
    assert not (tmp_path / "state").exists()


def test_an_outcome_is_read_back(tmp_path: Path) -> None:
    outcome = TuningOutcome("15W", "25W", clocks_locked=True, reboot_needed=True, changed=("a", "b"), problem="why")
    file = tmp_path / "outcome.json"
    file.write_bytes(outcome.to_json())
    assert read_outcome(file) == outcome


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"format": 2}', b'{"format": 1, "changed": [], "x": 1}', b"\xff"]
)
def test_an_outcome_that_cannot_be_read_is_none(tmp_path: Path, data: bytes) -> None:
    assert read_outcome(tmp_path / "none") is None
    (tmp_path / "outcome.json").write_bytes(data)
    assert read_outcome(tmp_path / "outcome.json") is None


def test_a_request(tmp_path: Path) -> None:
    file = tmp_path / "request"
    write_request(BoardRequest.TUNE, file)
    assert read_request(file) is BoardRequest.TUNE
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BoardError, match="cannot be read: No such file"):
        read_request(file)


@pytest.mark.parametrize("data", [b"", b"tun", b"tune\n; reboot", b"tune" * 1000, b"\xff\0"])
def test_a_request_that_is_none_is_refused_and_gone(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "request"
    file.write_bytes(data)
    with pytest.raises(BoardError, match="asks for nothing that is known"):
        read_request(file)
    assert not file.exists()


def test_a_request_is_no_way_to_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("tune")
    link = tmp_path / "request"
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(BoardError, match="cannot be read"):
        read_request(link)
    assert (tmp_path / "secret").read_text() == "tune"
    os.mkfifo(link)
    with pytest.raises(BoardError, match="asks for nothing"):
        read_request(link)
    link.mkdir()
    with pytest.raises(BoardError, match="asks for nothing"):
        read_request(link)
    # Nothing is left that would make the path unit start the service again.
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]


def test_asking_follows_no_link_that_somebody_has_put_there(tmp_path: Path) -> None:
    """As root may ask, in a folder that belongs to the daemon's user."""
    (tmp_path / "shadow").write_text("root")
    (tmp_path / ".request.part").symlink_to(tmp_path / "shadow")
    (tmp_path / "request").symlink_to(tmp_path / "shadow")
    write_request(BoardRequest.TUNE, tmp_path / "request")
    assert (tmp_path / "shadow").read_text() == "root"
    assert read_request(tmp_path / "request") is BoardRequest.TUNE


def test_a_request_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="cannot be written"):
        write_request(BoardRequest.TUNE, tmp_path / "none/request")
