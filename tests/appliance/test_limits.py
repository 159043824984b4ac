"""What ends again and again: how often it is started, when it is given up, and what brings it back."""

import shutil

import pytest

from appliance.installed import APP, BOARD_ROOT, DAEMON, drop_in, put_board, rank, settings, wait_for_state
from appliance.machine import Machine, wait_until
from fakes.board import NX_16_SUPER

HOURS, STARTS = 12, 60
"""What the unit ships with: sixty starts in twelve hours."""

FASTER, FEWER = 500.0, 10
"""Here time runs so much faster, for so many starts fewer: what stays is how slow failures may be."""

UNPREPARED = '[first_boot]\nprepare = "off"\n'


@pytest.fixture(scope="module")
def booted(installed, folder):
    """A machine that serves, for all of this file."""
    path = folder / "limits"
    with Machine(installed, path) as made:
        put_board(made, NX_16_SUPER)
        settings(made, UNPREPARED)
        made.boot()
        wait_for_state(made)
        yield made
    shutil.rmtree(path)


def _fail_every(machine, minutes):
    """Has the daemon's process end like this, by the unit's own limit with both sides shortened."""
    interval_s = HOURS * 3600 / FASTER / FEWER
    limit = f"[Unit]\nStartLimitIntervalSec={interval_s:g}\nStartLimitBurst={STARTS // FEWER}\n"
    dying = f"/bin/sh -c 'sleep {60 * minutes / FASTER:g}; kill -KILL $$$$'"
    drop_in(
        machine,
        DAEMON,
        "test",
        f"{limit}[Service]\nType=exec\nRestartSec={5 / FASTER:g}\nExecStart=\nExecStart={dying}\n",
    )
    machine.run("systemctl", "stop", DAEMON)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "reset-failed", DAEMON)
    machine.run("systemctl", "start", DAEMON)


def _restarts(machine):
    return int(machine.property_of(DAEMON, "NRestarts"))


def test_the_limit_is_the_one_that_is_tried_here(booted):
    assert booted.property_of(DAEMON, "StartLimitIntervalUSec") == f"{HOURS}h"
    assert booted.property_of(DAEMON, "StartLimitBurst") == str(STARTS)
    assert booted.property_of(DAEMON, "RestartUSec") == "5s"


def test_crashes_far_apart_are_no_reason_to_give_up(booted):
    _fail_every(booted, minutes=15)
    wait_until(lambda: _restarts(booted) > STARTS // FEWER + 1, 90, "it is given up")
    assert booted.property_of(DAEMON, "ActiveState") != "failed"


def test_failures_that_take_minutes_each_come_to_an_end(booted):
    _fail_every(booted, minutes=6)
    wait_until(lambda: booted.property_of(DAEMON, "ActiveState") == "failed", 60, "it goes on for ever")
    assert _restarts(booted) == STARTS // FEWER
    assert "Start request repeated too quickly" in booted.journal(DAEMON)
    # Nobody starts it now, not even whoever is allowed to.
    assert booted.try_run("systemctl", "start", DAEMON).returncode != 0
    assert rank(booted, APP).returncode == 68


def test_somebody_who_has_looked_brings_it_back(booted):
    booted.run("rm", f"/etc/systemd/system/{DAEMON}.d/test.conf")
    booted.run("systemctl", "daemon-reload")
    booted.run("systemctl", "reset-failed", DAEMON)
    booted.run("systemctl", "start", DAEMON)
    wait_for_state(booted)
    assert rank(booted, APP).returncode == 0


def test_requests_without_end_do_not_run_the_root_service_without_end(booted):
    path = "orin-rerank-board.path"
    asking = "mkdir -p /run/orin-rerank/board-request/full; sleep 0.2; systemctl is-active --quiet"
    booted.as_user("orin-rerank", "timeout", "90", "sh", "-c", f"while {asking} {path}; do :; done")
    assert booted.property_of(path, "ActiveState") == "failed"
    assert "unit-start-limit-hit" in booted.property_of(path, "Result")
    assert rank(booted, APP).returncode == 0

    # It is started again with the daemon, once nothing lies there any more.
    booted.run("rm", "-rf", "/run/orin-rerank/board-request")
    booted.run("systemctl", "reset-failed")
    booted.run("systemctl", "restart", DAEMON)
    wait_for_state(booted)
    assert booted.property_of(path, "ActiveState") == "active"
    assert booted.read(f"{BOARD_ROOT}/var/lib/nvpmodel/status").startswith("pmode:0000")
