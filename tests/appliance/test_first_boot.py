"""First boot on a real systemd: prepared, cut off at any time, and modes that take a reboot."""

import json
import shutil
import time
from pathlib import Path

import pytest

from appliance.installed import (
    APP,
    DAEMON,
    board_calls,
    clocks_locked,
    drop_in,
    mode_of,
    outcome_of,
    put_board,
    rank,
    settings,
    small_sets,
    state_of,
    wait_for_state,
)
from appliance.machine import wait_until
from fakes.board import NANO_8_SUPER, NX_16_SUPER, power_gpu_on, reboot_board

REBOOTED = "reboot by nvpmodel"

FAKE_GPU = Path(__file__).parent / "fake_gpu"


@pytest.fixture
def nano(machine):
    """A Nano Super whose fastest mode takes a reboot."""
    machine.board = put_board(machine, NANO_8_SUPER)
    machine.board.at("/fake/needs_reboot").write_text("2\n")
    return machine


def _has_step(machine, step):
    return (state_of(machine).get("activity") or {}).get("step") == step


def test_a_preparation_that_is_cut_off_is_taken_up(machine):
    """Once by the power, once by an orderly reboot; the third boot makes it to the end."""
    put_board(machine, NANO_8_SUPER)
    small_sets(machine)

    machine.boot()
    wait_until(lambda: _has_step(machine, "calibrate"), 120, "it does not calibrate")
    assert state_of(machine)["state"] == "starting"
    assert rank(machine, APP).returncode == 69
    wait_until(lambda: "calibrate" in machine.property_of(DAEMON, "StatusText"), 30, "systemd does not hear of it")
    machine.cut_power()

    machine.boot()
    wait_until(lambda: _has_step(machine, "calibrate"), 120, "it does not take the calibration up")
    # An end that is asked for comes within seconds, whatever is being made.
    machine.run("timeout", "10", "systemctl", "stop", DAEMON)
    assert machine.property_of(DAEMON, "Result") == "success", machine.journal(DAEMON)
    machine.run("systemctl", "start", "--no-block", DAEMON)
    wait_until(lambda: _has_step(machine, "calibrate"), 120, "it does not take the calibration up again")
    machine.reboot()

    status = wait_for_state(machine)
    assert status["model"]["precision"] == "int8"
    # This board has no GPU, and says so; nothing else is amiss.
    assert [problem.split(":")[0] for problem in status["problems"]] == ["gpu"]
    assert rank(machine, APP).returncode == 0

    # What is made is not made again.
    machine.reboot()
    wait_for_state(machine)
    assert "step begins" not in machine.journal(DAEMON)


def test_a_mode_that_takes_a_reboot_is_reported_and_left(nano):
    settings(nano, '[first_boot]\nprepare = "auto"\nboard_wait_s = 20.0\n[engine]\nprecision = "full"\n')
    nano.boot()
    status = wait_for_state(nano)
    assert outcome_of(nano)["reboot_needed"] is True
    assert any("takes a reboot" in problem and "MAXN_SUPER" in problem for problem in status["problems"])
    assert "MAXN_SUPER" in nano.run("orin-rerank", "board", "show")
    assert mode_of(nano.board) == "0001"
    assert clocks_locked(nano.board)
    assert REBOOTED not in board_calls(nano.board)


# Nobody has written down by which of these NVIDIA's program does it: by systemd, or by the system call.
@pytest.mark.parametrize("way", ["systemctl reboot", "reboot -f"])
def test_a_mode_that_takes_a_reboot_gets_one(nano, way):
    nano.board.at("/fake/reboots_by").write_text(f"{way}\n")
    settings(nano, '[first_boot]\nprepare = "off"\n[board]\nreboot = true\n')
    nano.boot()
    wait_until(lambda: nano.is_off, 90, "it does not reboot")
    nano.wait_off()
    reboot_board(nano.board)
    nano.boot()
    wait_for_state(nano)
    assert mode_of(nano.board) == "0002"
    assert clocks_locked(nano.board)
    assert outcome_of(nano)["problem"] is None

    nano.reboot()
    wait_for_state(nano)
    assert board_calls(nano.board).count(REBOOTED) == 1


def test_a_reboot_that_does_not_help_is_not_repeated(nano):
    settings(nano, '[first_boot]\nprepare = "off"\n[board]\nreboot = true\n')
    nano.boot()
    wait_until(lambda: REBOOTED in board_calls(nano.board), 60, "it does not reboot")
    nano.cut_power()  # before the mode was carried out
    nano.board.at("/fake/booted_mode").unlink()
    nano.boot()
    wait_for_state(nano)
    assert board_calls(nano.board).count(REBOOTED) == 1
    assert "not rebooted again" in outcome_of(nano)["problem"]
    assert clocks_locked(nano.board)


def test_a_broken_board_does_not_keep_it_from_serving(machine):
    board = put_board(machine, NANO_8_SUPER)
    board.at("/fake/clocks_fail_times").write_text("100\n")
    settings(machine, '[first_boot]\nprepare = "off"\n')
    drop_in(machine, "orin-rerank-board.service", "test", "[Service]\nTimeoutStartSec=10\n")
    machine.boot()
    wait_for_state(machine)
    assert machine.property_of("orin-rerank-board.service", "ActiveState") == "failed"
    assert rank(machine, APP).returncode == 0


def test_engines_are_kept_where_the_settings_say_once_the_service_may_write_there(machine):
    small_sets(machine)
    settings(machine, '[model]\nstate = "/srv/ssd"\n')
    machine.run_while_off("install", "-d", "-o", "orin-rerank", "-g", "orin-rerank", "-m", "750", "/srv/ssd")
    machine.boot()
    (problem,) = wait_for_state(machine)["problems"]  # what there is, is served
    assert "cannot be noted" in problem
    assert "/srv/ssd" in problem

    drop_in(machine, DAEMON, "disk", "[Service]\nReadWritePaths=/srv/ssd\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", DAEMON)
    status = wait_for_state(machine)
    assert (status["problems"], status["model"]["precision"]) == ([], "int8")
    assert "calibrate" in machine.read("/srv/ssd/first-boot.json")
    assert machine.run("ls", "/var/lib/orin-rerank").split() in ([], ["cuda-cache"])


def test_a_build_that_a_reboot_cuts_off_is_taken_up(machine):
    """Systemd ends every process of the service; the compiler, a fake, does not even notice."""
    machine.board = put_board(machine, NX_16_SUPER)
    power_gpu_on(machine.board)
    for node in machine.board.at("/dev").rglob("*"):
        node.chmod(0o777)
    site = machine.root / "usr/local/lib/orin-rerank/site-packages"
    shutil.copytree(FAKE_GPU, site, ignore=shutil.ignore_patterns("__pycache__"))
    settings(machine, '[engine]\nprecision = "full"\n')
    machine.boot()
    for _ in range(2):
        wait_until(lambda: _has_step(machine, "build-full"), 120, f"it does not compile: {machine.journal(DAEMON)}")
        wait_until(lambda: _compilers(machine) == 1, 60, "there is no compiler")
        started = time.monotonic()
        machine.power_off()
        assert time.monotonic() - started < 25
        kept = json.loads(machine.read("/var/lib/orin-rerank/first-boot.json"))["steps"]["build-full"]
        assert (kept["outcome"], kept["failures"]) == ("stopped", 0), kept
        machine.boot()
    # By itself, too, it ends within seconds, and nothing of it stays.
    wait_until(lambda: _compilers(machine) == 1, 120, "it is not taken up")
    machine.run("timeout", "10", "systemctl", "stop", DAEMON)
    assert machine.property_of(DAEMON, "Result") == "success"
    assert _compilers(machine) == 0


def _compilers(machine):
    return len(machine.try_run("pgrep", "-f", "orin_rerank.engines.tensorrt.child").stdout.split())
