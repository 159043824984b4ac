"""What goes wrong while it serves: a crash, a hang, settings that are wrong, clocks that something else undoes."""

import shutil
import time

import pytest

from appliance.installed import (
    APP,
    BOARD,
    DAEMON,
    STRANGER,
    board_calls,
    clocks_locked,
    drop_in,
    main_pid,
    mode_of,
    put_board,
    rank,
    settings,
    state_of,
    wait_for_state,
)
from appliance.machine import Machine, wait_until
from fakes.board import NX_16_SUPER

UNPREPARED = '[first_boot]\nprepare = "off"\n'


@pytest.fixture(scope="module")
def serving(installed, folder):
    """A machine that serves, for all of this file: every test leaves it serving."""
    path = folder / "faults"
    with Machine(installed, path) as made:
        made.board = put_board(made, NX_16_SUPER)
        settings(made, UNPREPARED)
        # A hang is to be found within the test's time, and failures of one test are not to count for the next.
        drop_in(made, DAEMON, "test", "[Unit]\nStartLimitIntervalSec=0\n[Service]\nWatchdogSec=6\n")
        made.boot()
        wait_for_state(made)
        yield made
    shutil.rmtree(path)


def _restarts(machine):
    return int(machine.property_of(DAEMON, "NRestarts"))


def test_boot_ends_in_serving_with_the_fastest_mode(serving):
    # The 25W of this board's table caps the GPU below the 15W; MAXN_SUPER is number 0.
    assert serving.board.text("/var/lib/nvpmodel/status") == "pmode:0000 fmode:quiet"
    assert clocks_locked(serving.board)
    assert "Power mode and clocks" in serving.run("systemctl", "status", "--no-pager", BOARD)
    assert "serving orin-rerank-mini" in serving.property_of(DAEMON, "StatusText")


def test_a_killed_daemon_comes_back(serving):
    before, pid = _restarts(serving), main_pid(serving)
    serving.run("kill", "-KILL", str(pid))
    wait_until(lambda: main_pid(serving) not in (0, pid), 60, "it is not started again")
    wait_for_state(serving)
    assert _restarts(serving) == before + 1
    assert rank(serving, APP).returncode == 0


def test_a_hanging_daemon_is_killed_by_the_watchdog_and_comes_back(serving):
    """All of it hangs here; that an engine alone which hangs is found, tests/serving/test_heartbeat.py shows."""
    before, pid = _restarts(serving), main_pid(serving)
    serving.run("kill", "-STOP", str(pid))
    wait_until(lambda: main_pid(serving) not in (0, pid), 90, "the watchdog does not bite")
    wait_for_state(serving)
    assert _restarts(serving) == before + 1
    assert "Watchdog timeout" in serving.journal(DAEMON)
    assert rank(serving, APP).returncode == 0
    # What was in its memory is on no disk.
    assert serving.run("find", "/var/lib", "/run", "/tmp", "-xdev", "-name", "*core*", "-size", "+1M") == ""


def test_it_stays_up_while_nobody_asks_anything(serving):
    # Three of the watchdog's spans: life is proved by the engine's threads without a request.
    before, pid = _restarts(serving), main_pid(serving)
    time.sleep(18)
    assert (_restarts(serving), main_pid(serving)) == (before, pid)


def test_clocks_that_nvpmodel_undoes_are_locked_again(serving):
    calls = len(board_calls(serving.board))
    serving.run("/var/fake-board/usr/sbin/nvpmodel", "-m", "0")
    assert not clocks_locked(serving.board)
    # The daemon notices and asks, the path unit hears it, the root service does it.
    wait_until(lambda: clocks_locked(serving.board), 60, f"nobody locks them again: {serving.journal(DAEMON)}")
    assert "jetson_clocks" in board_calls(serving.board)[calls:]
    assert "asked for them" in serving.journal(DAEMON)
    assert serving.property_of("orin-rerank-board.path", "ActiveState") == "active"


def test_a_power_mode_that_somebody_changes_is_set_again(serving):
    calls = len(board_calls(serving.board))
    serving.run("/var/fake-board/usr/sbin/nvpmodel", "-m", "2")
    assert mode_of(serving.board) == "0002"
    # Within half a minute, since the test before has asked already.
    wait_until(lambda: mode_of(serving.board) == "0000", 90, f"nobody sets it again: {serving.journal(DAEMON)}")
    wait_until(lambda: clocks_locked(serving.board), 30, "clocks are not locked in it")
    assert "nvpmodel -m 0" in board_calls(serving.board)[calls:]
    assert state_of(serving)["state"] == "serving"


def test_a_stranger_cannot_ask_the_root_service(serving):
    done = serving.as_user(STRANGER, "sh", "-c", "echo tune >/run/orin-rerank/board-request")
    assert done.returncode != 0
    done = serving.as_user(APP, "sh", "-c", "echo tune >/run/orin-rerank/board-request")
    assert done.returncode != 0


def test_a_request_that_is_none_does_nothing_and_ends(serving):
    calls = len(board_calls(serving.board))
    script = "printf 'reboot; rm -rf /' >/run/orin-rerank/board-request"
    serving.as_user("orin-rerank", "sh", "-c", script)
    gone = ("sh", "-c", "! test -e /run/orin-rerank/board-request")
    wait_until(lambda: serving.try_run(*gone).returncode == 0, 30, "the request stays")
    wait_until(
        lambda: "asks for nothing that is known" in serving.journal("orin-rerank-board-again.service"), 30, "not told"
    )
    assert not [call for call in board_calls(serving.board)[calls:] if call in ("jetson_clocks", "nvpmodel -m 0")]
    assert serving.property_of("orin-rerank-board.path", "ActiveState") == "active"
    serving.run("systemctl", "reset-failed")


def test_wrong_settings_do_not_make_it_deaf(serving):
    settings(serving, "[board]\npower_mod = 5\n")
    serving.as_user("orin-rerank", "sh", "-c", "echo tune >/run/orin-rerank/board-request")
    gone = ("sh", "-c", "! test -e /run/orin-rerank/board-request")
    wait_until(lambda: serving.try_run(*gone).returncode == 0, 30, "the request stays")
    settings(serving, UNPREPARED)
    serving.run("systemctl", "reset-failed")
    assert serving.property_of("orin-rerank-board.path", "ActiveState") == "active"
    serving.run("/var/fake-board/usr/sbin/nvpmodel", "-m", "0")
    wait_until(lambda: clocks_locked(serving.board), 120, f"nobody locks them: {serving.journal(DAEMON)}")


def test_settings_are_read_again_without_a_restart(serving):
    pid = main_pid(serving)
    settings(serving, UNPREPARED + '[log]\nlevel = "debug"\n[server]\nmax_documents = 2\n')
    serving.run("systemctl", "reload", DAEMON)
    wait_until(lambda: rank(serving, APP).returncode == 65, 30, "the new limit does not hold")
    assert main_pid(serving) == pid
    settings(serving, UNPREPARED)
    serving.run("systemctl", "reload", DAEMON)
    wait_until(lambda: rank(serving, APP).returncode == 0, 30, "the old limit does not hold again")


def test_an_address_that_somebody_else_has_is_tried_again(serving):
    hold = "import socket, time; held = socket.create_server(('127.0.0.1', 50051)); time.sleep(600)"
    serving.run("systemd-run", "--unit=rival", "python3", "-c", hold)
    settings(serving, UNPREPARED + '[server]\ntcp = "127.0.0.1:50051"\n')
    serving.run("systemctl", "restart", "--no-block", DAEMON)
    wait_until(lambda: "cannot listen on 127.0.0.1:50051" in serving.journal(DAEMON), 60, "it listens all the same")
    serving.run("systemctl", "stop", "rival")
    wait_for_state(serving)
    assert _restarts(serving) > 0
    settings(serving, UNPREPARED)
    serving.run("systemctl", "restart", DAEMON)


def test_wrong_settings_are_refused_by_line_and_not_tried_again(serving):
    before = _restarts(serving)
    settings(serving, "[server]\nmax_documents = 100\nmax_docments = 5\n")
    serving.run("systemctl", "stop", DAEMON)
    done = serving.try_run("systemctl", "start", DAEMON)
    assert done.returncode == 1
    time.sleep(8)  # a restart would come after five
    assert serving.property_of(DAEMON, "ActiveState") == "failed"
    assert serving.property_of(DAEMON, "ExecMainStatus") == "2"
    assert _restarts(serving) in (0, before)
    journal = serving.journal(DAEMON)
    assert "config.toml" in journal
    assert "max_docments" in journal

    settings(serving, UNPREPARED)
    serving.run("systemctl", "start", DAEMON)
    wait_for_state(serving)
