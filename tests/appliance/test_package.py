"""The life of the package on a machine that runs: installed, used, upgraded, removed, purged."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from appliance.installed import (
    AGAIN,
    APP,
    BOARD,
    BOARD_ROOT,
    DAEMON,
    STRANGER,
    UNITS,
    clocks_locked,
    main_pid,
    mode_of,
    outcome_of,
    put_board,
    rank,
    small_sets,
    wait_for_state,
)
from appliance.machine import Machine, wait_until
from fakes.board import AGX_ORIN_64
from orin_rerank.board.paths import ROOT_VARIABLE

KEPT = "# an administrator was here\n[server]\nmax_documents = 500\n"


@pytest.fixture(scope="module")
def machine(plain, deb, folder):
    """One machine for this file: its tests are its life, in order."""
    with Machine(plain, folder / "package") as made:
        made.board = put_board(made, AGX_ORIN_64)
        small_sets(made)
        shutil.copyfile(deb, made.root / "var/tmp/package.deb")
        made.boot()
        made.run("dpkg", "--install", "/var/tmp/package.deb")
        yield made


@pytest.fixture(scope="module")
def next_deb(deb, folder):
    """The package again, as version 9."""
    tree = folder / "next"
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    control = tree / "DEBIAN/control"
    lines = [("Version: 9.0.0" if line[:8] == "Version:" else line) for line in control.read_text().splitlines()]
    control.write_text("\n".join(lines) + "\n")
    new = folder / "next.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, new], check=True, capture_output=True)
    shutil.rmtree(tree)
    return new


def test_installing_is_all_that_it_takes(machine):
    status = wait_for_state(machine)
    assert status["model"]["name"] == "orin-rerank-mini"
    for unit in UNITS:
        expected = "inactive" if unit == AGAIN else "active"
        assert machine.property_of(unit, "ActiveState") == expected, unit
    assert machine.property_of(DAEMON, "NRestarts") == "0"
    assert machine.run("systemctl", "--failed", "--no-legend") == ""


def test_the_daemon_is_nobody(machine):
    process = main_pid(machine)
    fields = dict(
        line.split(":\t", 1) for line in machine.read(f"/proc/{process}/status").splitlines() if ":\t" in line
    )
    assert set(fields["Uid"].split()) == {machine.run("id", "-u", "orin-rerank").strip()}
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
    assert fields["NoNewPrivs"] == "1"


def test_a_local_app_ranks_and_a_stranger_does_not(machine):
    done = rank(machine, APP)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert results[0]["index"] == 0
    assert len(results) == 3

    refused = rank(machine, STRANGER)
    assert refused.returncode == 68, refused
    assert refused.stdout == ""


def test_power_mode_and_clocks_are_set_by_the_root_service(machine):
    assert mode_of(machine.board) == "0000"
    assert clocks_locked(machine.board)
    outcome = outcome_of(machine)
    assert outcome["mode"] == "MAXN"
    assert outcome["problem"] is None
    # The fan is left to itself.
    assert machine.board.text("/sys/class/hwmon/hwmon0/pwm1") == "102"


def test_the_journal_has_fields(machine):
    (serving,) = (entry for entry in machine.entries(DAEMON) if entry.get("ORIN_RERANK_LOGGER") == "serving.daemon"
                  and entry["MESSAGE"].startswith("serving.daemon: serving"))  # fmt: skip
    assert serving["ORIN_RERANK_MODEL"] == "orin-rerank-mini"
    assert serving["PRIORITY"] == "6"
    assert serving["SYSLOG_IDENTIFIER"] == "orin-rerank"
    assert serving["_TRANSPORT"] == "journal"
    found = machine.run("journalctl", "--output=cat", "--unit", DAEMON, "ORIN_RERANK_MODEL=orin-rerank-mini")
    assert "serving" in found


def test_nothing_that_was_ranked_is_in_the_journal(machine):
    """Nor in its fields, whatever became of the request."""
    assert machine.as_user(APP, "orin-rerank", "rank", "fire engine", *["text:a red lorry"] * 1001).returncode == 65
    everything = json.dumps(machine.entries(DAEMON))
    assert "orin-rerank-mini" in everything
    for word in ("ladder", "fire engine", "lorry"):
        assert word not in everything


@pytest.mark.parametrize(("unit", "most"), [(DAEMON, 2.0), (BOARD, 3.0), (AGAIN, 3.0)])
def test_units_are_confined(machine, unit, most):
    report = machine.run("systemd-analyze", "security", "--no-pager", unit)  # systemd 249 knows no --threshold
    exposure = re.search(r"Overall exposure level for \S+: (\d+\.\d)", report)
    assert exposure is not None, report
    assert float(exposure[1]) <= most, report


def test_units_have_no_faults(machine):
    done = machine.try_run("systemd-analyze", "verify", *UNITS)
    # systemd 249 finds something in units of the system, too.
    said = [line for line in (done.stdout + done.stderr).splitlines() if "orin-rerank" in line]
    assert (done.returncode, said) == (0, [])


def test_nothing_is_written_beside_the_programs(machine):
    machine.run("orin-rerank", "board", "show")
    assert machine.run("dpkg", "--verify", "orin-rerank") == ""
    unknown = machine.run(
        "sh", "-c", "find /usr/lib/orin-rerank -type f | sort >/tmp/there; "
        "dpkg -L orin-rerank | sort >/tmp/known; comm -23 /tmp/there /tmp/known"
    )  # fmt: skip
    assert unknown == ""


def test_an_upgrade_restarts_it_and_keeps_settings(machine, next_deb):
    machine.write("/etc/orin-rerank/config.toml", KEPT)
    before = main_pid(machine)
    shutil.copyfile(next_deb, machine.root / "var/tmp/next.deb")
    machine.run("dpkg", "--install", "/var/tmp/next.deb")
    wait_for_state(machine)
    assert main_pid(machine) not in (0, before)
    assert machine.read("/etc/orin-rerank/config.toml") == KEPT
    assert machine.run("dpkg-query", "--show", "--showformat=${Version}", "orin-rerank") == "9.0.0"
    assert rank(machine, APP).returncode == 0
    assert clocks_locked(machine.board)


def test_removing_gives_the_board_back(machine):
    machine.run("dpkg", "--remove", "orin-rerank", env={ROOT_VARIABLE: BOARD_ROOT})
    assert mode_of(machine.board) == f"{AGX_ORIN_64.default:04d}"
    assert not clocks_locked(machine.board)
    assert machine.try_run("pgrep", "-u", "orin-rerank").stdout == ""
    for unit in UNITS:
        assert machine.property_of(unit, "LoadState") == "not-found", unit
    assert machine.read("/etc/orin-rerank/config.toml") == KEPT


def test_installed_again_it_is_as_before(machine):
    """Removed, not purged: for dpkg that is no first installation."""
    # What an administrator has disabled stays so.
    machine.run("rm", "/etc/systemd/system/multi-user.target.wants/orin-rerank-board.path")
    machine.run("dpkg", "--install", "/var/tmp/next.deb")
    wait_for_state(machine)
    assert machine.run("systemctl", "is-enabled", DAEMON, BOARD).split() == ["enabled", "enabled"]
    assert machine.try_run("systemctl", "is-enabled", "orin-rerank-board.path").stdout.strip() == "disabled"
    assert machine.read("/etc/orin-rerank/config.toml") == KEPT
    assert clocks_locked(machine.board)


def test_what_fails_to_replace_it_leaves_it_running(machine, folder):
    """A package that conflicts with it, and cannot be installed after all."""
    tree = folder / "rival"
    (tree / "DEBIAN").mkdir(parents=True)
    fields = ("Package: rival", "Version: 1", "Architecture: all", "Maintainer: test <test@example.invalid>")
    conflict = ("Conflicts: orin-rerank", "Description: cannot be installed", "")
    (tree / "DEBIAN/control").write_text("\n".join((*fields, *conflict)))
    (tree / "DEBIAN/preinst").write_text("#!/bin/sh\nexit 1\n")
    (tree / "DEBIAN/preinst").chmod(0o755)
    deb = machine.root / "var/tmp/rival.deb"
    subprocess.run(["dpkg-deb", "--build", tree, deb], check=True, capture_output=True)
    assert machine.try_run("dpkg", "--auto-deconfigure", "--install", "/var/tmp/rival.deb").returncode != 0
    wait_for_state(machine)
    assert machine.property_of("orin-rerank-board.path", "ActiveState") == "active"
    wait_until(lambda: clocks_locked(machine.board), 60, "clocks stay given back")


def test_where_nothing_may_be_started_nothing_is(machine):
    machine.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", mode=0o755)
    before = main_pid(machine)
    machine.run("dpkg", "--install", "/var/tmp/next.deb")
    assert main_pid(machine) == before
    machine.run("rm", "/usr/sbin/policy-rc.d")


def test_a_mode_that_cannot_be_given_back_is_not_forgotten(machine):
    """On an AGX Orin each way between these two modes takes a reboot."""
    machine.board.at("/fake/needs_reboot").write_text(f"{AGX_ORIN_64.default}\n")
    done = machine.try_run("dpkg", "--remove", "orin-rerank", env={ROOT_VARIABLE: BOARD_ROOT})
    assert done.returncode == 0
    assert f"nvpmodel -m {AGX_ORIN_64.default}" in done.stderr
    assert mode_of(machine.board) == "0000"
    assert not clocks_locked(machine.board)
    machine.run("dpkg", "--install", "/var/tmp/next.deb")
    wait_for_state(machine)
    assert clocks_locked(machine.board)


def test_purging_leaves_nothing(machine):
    """Straight from what is installed and runs; a unit that somebody has masked is found again by the next one."""
    machine.run("systemctl", "mask", "--now", "orin-rerank-board.path")
    done = machine.try_run("dpkg", "--purge", "orin-rerank", env={ROOT_VARIABLE: BOARD_ROOT})
    assert done.returncode == 0
    assert f"`sudo nvpmodel -m {AGX_ORIN_64.default}` sets it" in done.stderr
    assert not clocks_locked(machine.board)
    # The daemon sees to its own; the disk of the machine notes modes that NVIDIA's program sets.
    assert machine.run("find", "/var/lib/nvpmodel") == "/var/lib/nvpmodel\n"
    found = machine.run(
        "find", "/", "/run", "-xdev", "-name", "*orin*rerank*", "-not", "-path", "/var/fake-board/*", "-not", "-path",
        "/etc/systemd/system/*.d", "-not", "-path", "/proc/*", "-not", "-path", "/run/systemd/propagate/*",
    )  # fmt: skip
    assert found.split() == []
    assert machine.try_run("getent", "passwd", "orin-rerank").returncode == 2
    assert machine.run("systemctl", "--failed", "--no-legend") == ""
