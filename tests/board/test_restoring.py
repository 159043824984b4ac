"""What was found is given back, each part for itself, and only what we have changed."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from fakes.board import AGX_ORIN_64, BOARDS, NANO_8, NANO_8_SUPER, NX_16, BoardSpec, make_board, make_pc
from fakes.board_files import nvpmodel_conf
from orin_rerank.board.clocks import read_clocks
from orin_rerank.board.nvpmodel import read_current_mode
from orin_rerank.board.power_modes import CONFIG, read_power_modes
from orin_rerank.board.restoring import restore_board
from orin_rerank.board.tuner import tune_board
from orin_rerank.board.tuning import KEEP, Tuning, TuningOutcome

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths

FAN = "/sys/class/hwmon/hwmon0/pwm1"


def tuned(tmp_path: Path, spec: BoardSpec, tuning: Tuning | None = None) -> BoardPaths:
    paths = make_board(tmp_path / "board", spec)
    tune_board(paths, tuning or Tuning(), tmp_path / "state", lambda _: None)
    return paths


def restore(paths: BoardPaths, tmp_path: Path) -> TuningOutcome:
    return restore_board(paths, tmp_path / "state", lambda _: None)


def kept(tmp_path: Path) -> list[str]:
    return sorted(file.name for file in (tmp_path / "state").iterdir())


def mode_of(paths: BoardPaths) -> str | None:
    mode = read_current_mode(paths, read_power_modes(paths))
    assert mode is not None
    return mode.name


def nvpmodel(paths: BoardPaths, mode: int) -> None:
    subprocess.run([str(paths.program("nvpmodel")), "-m", str(mode)], check=True, capture_output=True)


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
@pytest.mark.parametrize("fan", ["active", "inactive"])
def test_what_was_there_is_given_back(tmp_path: Path, spec: BoardSpec, fan: str) -> None:
    paths = make_board(tmp_path / "board", spec)
    if fan == "inactive":
        paths.at("/fake/nvfancontrol").unlink()
    before = read_clocks(paths)
    for _ in range(2):
        tune_board(paths, Tuning(), tmp_path / "state", lambda _: None)
    restored = restore(paths, tmp_path)
    assert "clocks as they were" in restored.changed
    assert (restored.problem, restored.clocks_locked) == (None, False)
    after = read_clocks(paths)
    assert {core: clock.lowest for core, clock in after.cpus.items()} == {
        core: clock.lowest for core, clock in before.cpus.items()
    }
    assert after.gpu is not None
    assert before.gpu is not None
    assert (after.gpu.lowest, after.gpu.highest) == (before.gpu.lowest, before.gpu.highest)
    assert restored.mode == mode_of(paths) == next(mode.name for mode in spec.modes if mode.id == spec.default)
    assert kept(tmp_path) == []
    assert restore(paths, tmp_path).changed == ()
    assert paths.number(FAN) == 102
    assert "nvfancontrol" not in paths.at("/fake/calls").read_text(), "the fan's control is neither started nor stopped"
    assert not list(paths.root.glob(".jetsonclocks*"))


def test_it_may_take_a_reboot_too(tmp_path: Path) -> None:
    paths = tuned(tmp_path, NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("1\n")
    restored = restore(paths, tmp_path)
    assert restored.reboot_needed
    assert restored.problem == "power mode 25W: takes a reboot that is made for it: `sudo nvpmodel -m 1`, and YES"
    assert (restored.mode, restored.changed, restored.clocks_locked) == ("MAXN_SUPER", ("clocks as they were",), False)
    assert kept(tmp_path) == ["mode.stored"]
    assert (tmp_path / "state/mode.stored").read_text().splitlines()[0] == "1 25W"
    paths.at("/fake/needs_reboot").unlink()
    assert restore(paths, tmp_path).changed == ("power mode 25W",)


@pytest.mark.parametrize("trouble", ["configuration", "no configuration", "driver", "gone"])
def test_clocks_are_given_back_whatever_becomes_of_the_mode(tmp_path: Path, trouble: str) -> None:
    paths = tuned(tmp_path, NX_16)
    conf = paths.at(CONFIG).read_text()
    if trouble == "configuration":
        paths.at(CONFIG).write_text("")
    elif trouble == "no configuration":
        paths.at(CONFIG).unlink()
    elif trouble == "driver":
        paths.at("/fake/fail_times").write_text("99")
    else:
        paths.at(CONFIG).write_text(conf.replace("NAME=15W", "NAME=14W"))
    restored = restore(paths, tmp_path)
    assert restored.changed == ("clocks as they were",)
    assert restored.problem is not None
    assert restored.problem.startswith("the power mode is not given back: ")
    assert not read_clocks(paths).locked
    assert kept(tmp_path) == ["mode.stored"]
    paths.at(CONFIG).write_text(conf)
    paths.at("/fake/fail_times").write_text("0")
    assert restore(paths, tmp_path).changed == ("power mode 15W",)
    assert kept(tmp_path) == []


def test_the_mode_is_given_back_whatever_becomes_of_the_clocks(tmp_path: Path) -> None:
    paths = tuned(tmp_path, NX_16)
    paths.at("/fake/restore_fails_times").write_text("99")
    restored = restore(paths, tmp_path)
    assert restored.changed == ("power mode 15W",)
    assert restored.problem is not None
    assert (
        "the clocks are not given back: jetson_clocks: did not give all clocks back: Error: Failed" in restored.problem
    )
    assert kept(tmp_path) == ["clocks.stored"]


@pytest.mark.parametrize("file", ["fail_times", "restore_fails_times"])
def test_what_the_board_does_not_take_at_once_is_tried_again(tmp_path: Path, file: str) -> None:
    paths = tuned(tmp_path, NX_16)
    paths.at(f"/fake/{file}").write_text("2")
    assert restore(paths, tmp_path).changed == ("power mode 15W", "clocks as they were")


def test_clocks_that_only_seem_to_be_given_back(tmp_path: Path) -> None:
    """jetson_clocks ends with 0, and says nothing."""
    paths = tuned(tmp_path, NX_16, Tuning(power_mode=KEEP))
    program = paths.at("/usr/bin/jetson_clocks")
    program.write_text(program.read_text().replace('echo "$value" >"$path"', ":"))
    restored = restore(paths, tmp_path)
    assert restored.changed == ()
    assert restored.problem is not None
    assert "min_freq is still above" in restored.problem
    assert kept(tmp_path) == ["clocks.stored"]


def test_a_mode_is_known_by_its_name_after_an_upgrade_of_the_system(tmp_path: Path) -> None:
    """7W is number 1 of an Orin Nano, and 3 where the faster modes are."""
    paths = make_board(tmp_path / "board", NANO_8, mode=1)
    tune_board(paths, Tuning(), tmp_path / "state", lambda _: None)
    paths.at(CONFIG).write_text(nvpmodel_conf(NANO_8_SUPER))
    restored = restore(paths, tmp_path)
    assert restored.changed[0] == "power mode 7W"
    assert mode_of(paths) == "7W"


def test_a_mode_that_somebody_else_has_chosen_since_stays(tmp_path: Path) -> None:
    paths = tuned(tmp_path, NX_16)
    tune_board(paths, Tuning(power_mode=KEEP), tmp_path / "state", lambda _: None)
    nvpmodel(paths, 3)
    assert restore(paths, tmp_path).changed == ("clocks as they were",)
    assert mode_of(paths) == "25W"
    assert kept(tmp_path) == []


def test_every_mode_that_we_have_set_is_ours(tmp_path: Path) -> None:
    """The last one that was wanted may never have been reached."""
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    tune_board(paths, Tuning(power_mode="15W"), tmp_path / "state", lambda _: None)
    paths.at("/fake/needs_reboot").write_text("2\n")
    tune_board(paths, Tuning(), tmp_path / "state", lambda _: None)
    assert mode_of(paths) == "15W"
    assert (tmp_path / "state/mode.stored").read_text() == "1 25W\n0 15W\n2 MAXN_SUPER\n"
    assert restore(paths, tmp_path).changed == ("power mode 25W", "clocks as they were")


def test_cores_that_are_off_have_no_clock_that_could_be_given_back(tmp_path: Path) -> None:
    """Of one that is off the kernel tells none, and later it is on."""
    paths = make_board(tmp_path / "board", AGX_ORIN_64)
    floor = paths.at("/sys/devices/system/cpu/cpu11/cpufreq/scaling_min_freq")
    floor.write_text("")
    tune_board(paths, Tuning(power_mode=KEEP), tmp_path / "state", lambda _: None)
    assert "cpu11" not in (tmp_path / "state/clocks.stored").read_text()
    with (tmp_path / "state/clocks.stored").open("a") as stored:
        stored.write(f"{floor}:\n{paths.at('/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor')}:schedutil\n")
    floor.write_text("1497600\n")
    assert restore(paths, tmp_path).changed == ("clocks as they were",)


def test_another_mode_of_the_same_number_is_not_ours(tmp_path: Path) -> None:
    paths = tuned(tmp_path, NX_16)
    paths.at(CONFIG).write_text(paths.at(CONFIG).read_text().replace("NAME=MAXN", "NAME=OTHER"))
    assert restore(paths, tmp_path).changed == ("clocks as they were",)
    assert mode_of(paths) == "OTHER"


def test_settings_that_came_back_to_what_was_found(tmp_path: Path) -> None:
    paths = tuned(tmp_path, NX_16)
    tune_board(paths, Tuning(power_mode="15W"), tmp_path / "state", lambda _: None)
    before = paths.at("/fake/calls").read_text().count("nvpmodel -m")
    assert restore(paths, tmp_path).changed == ("clocks as they were",)
    assert paths.at("/fake/calls").read_text().count("nvpmodel -m") == before


def test_a_mode_that_is_right_is_not_set_again(tmp_path: Path) -> None:
    """A mode that is set twice has upset the GPU's driver."""
    paths = tuned(tmp_path, NX_16)
    nvpmodel(paths, NX_16.default)
    before = paths.at("/fake/calls").read_text().count("nvpmodel -m")
    restore(paths, tmp_path)
    assert paths.at("/fake/calls").read_text().count("nvpmodel -m") == before


def test_what_we_never_changed_is_not_given_back(tmp_path: Path) -> None:
    paths = tuned(tmp_path, NX_16, Tuning(power_mode=KEEP, lock_clocks=False))
    nvpmodel(paths, 3)
    subprocess.run(
        [str(paths.program("jetson_clocks"))], check=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    )
    assert restore(paths, tmp_path).changed == ()
    assert (mode_of(paths), read_clocks(paths).locked) == ("25W", True)


def test_the_mark_of_a_reboot_goes_too(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    tune_board(paths, Tuning(reboot=True), tmp_path / "state", lambda _: None)
    assert kept(tmp_path) == ["clocks.stored", "mode.stored", "rebooted-for"]
    paths.at("/fake/booted_mode").unlink()
    restore(paths, tmp_path)
    assert kept(tmp_path) == []


def test_a_note_that_is_not_understood(tmp_path: Path) -> None:
    paths = tuned(tmp_path, NX_16)
    (tmp_path / "state/mode.stored").write_bytes(b"\xff\n")
    restored = restore(paths, tmp_path)
    assert restored.problem is not None
    assert "mode.stored: is damaged: remove it, and the mode that the board is in counts as" in restored.problem
    assert restored.changed == ("clocks as they were",)


def test_a_note_that_a_power_cut_left_alone(tmp_path: Path) -> None:
    """Nothing was set, so nothing is to be given back."""
    paths = make_board(tmp_path / "board", NX_16)
    (tmp_path / "state").mkdir()
    (tmp_path / "state/mode.stored").write_text("0 MAXN\n")
    assert restore(paths, tmp_path).changed == ()
    assert mode_of(paths) == "15W"
    assert kept(tmp_path) == []


def test_a_pc_is_left_alone(tmp_path: Path) -> None:
    assert restore(make_pc(tmp_path / "pc"), tmp_path) == TuningOutcome(lock_clocks=False)
    assert not (tmp_path / "state").exists()
