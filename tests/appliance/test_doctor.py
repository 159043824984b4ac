"""`orin-rerank doctor` on a machine with a real systemd: as root and as others, when all is well and when it is not."""

import json
import shutil
import tarfile

import pytest

from appliance.installed import (
    APP,
    BOARD_ROOT,
    DAEMON,
    STRANGER,
    clocks_locked,
    drop_in,
    put_board,
    rank,
    settings,
    wait_for_state,
)
from appliance.machine import Machine, wait_until
from fakes.board import NX_16_SUPER
from orin_rerank.board.paths import ROOT_VARIABLE

SETTINGS = '[first_boot]\nboard_wait_s = 20.0\n[engine]\nprecision = "full"\n'

NO_GPU = {"device nodes", "CUDA", "TensorRT"}
"""What no container has, and what doctor must find missing on a tree that stands for a Jetson."""

NVPMODEL = f"{BOARD_ROOT}/usr/sbin/nvpmodel"
HOST = "till-nine-of-the-shop"
PATH_UNIT = "orin-rerank-board.path"


@pytest.fixture(scope="module")
def serving(installed, folder):
    """A machine that serves, for all of this file: every test leaves it serving."""
    path = folder / "doctor"
    with Machine(installed, path) as made:
        made.board = put_board(made, NX_16_SUPER)
        settings(made, SETTINGS)
        # What a program may say in a service's journal, and what nobody who helps has to know.
        secret = '/bin/echo "fetched with HF_TOKEN=hf_correcthorse from 192.168.77.9 for somebody@example.org"'
        drop_in(made, DAEMON, "test", f"[Service]\nExecStartPre={secret}\n")
        made.write("/etc/hostname", f"{HOST}\n")
        made.boot()
        wait_for_state(made)
        yield made
    shutil.rmtree(path)


def _doctor(machine, user="root", *options):
    """Runs it; returns its checks by name."""
    command = ("env", f"{ROOT_VARIABLE}={BOARD_ROOT}", "orin-rerank", "doctor", "--json", *options)
    done = machine.try_run(*command) if user == "root" else machine.as_user(user, *command)
    assert done.stderr == ""
    report = json.loads(done.stdout)
    checks = {check["check"]: check for check in report["checks"]}
    assert len(checks) == len(report["checks"]) == report["ok"] + report["warn"] + report["fail"]
    assert done.returncode == (0 if report["healthy"] else 78)
    assert report["healthy"] == (report["fail"] == 0)
    return checks


def _failures(checks):
    return {name for name, check in checks.items() if check["verdict"] == "fail"}


def test_root_is_told_what_is_missing_and_that_all_else_is_well(serving):
    checks = _doctor(serving)
    assert _failures(checks) == NO_GPU
    well = ("module", "power mode", "clocks", "root service", "state folder", "disk", "bundle", "settings", "socket")
    assert {name: checks[name]["verdict"] for name in well} == dict.fromkeys(well, "ok")
    assert "NX 16GB" in checks["module"]["finding"]
    assert "MAXN_SUPER" in checks["power mode"]["finding"]
    assert "/var/lib/orin-rerank" in checks["state folder"]["finding"]
    assert all(checks[name]["remedy"] or checks[name]["command"] for name in NO_GPU)


def test_a_member_is_told_of_the_same_machine(serving):
    checks = _doctor(serving, APP)
    assert _failures(checks) == NO_GPU
    assert "/var/lib/orin-rerank" in checks["state folder"]["finding"]
    assert checks["socket"]["verdict"] == "ok"


def test_a_stranger_is_told_how_to_become_a_member(serving):
    checks = _doctor(serving, STRANGER)
    assert _failures(checks) == {*NO_GPU, "socket"}
    assert checks["socket"]["command"] == f"sudo usermod -aG orin-rerank {STRANGER}"


@pytest.mark.parametrize("user", ["root", APP])
def test_the_archive_is_its_owners_and_holds_nothing_secret(serving, user):
    assert rank(serving, APP).returncode == 0
    file = f"/var/tmp/{user}.tar.gz"
    _doctor(serving, user, "--bundle", file)
    assert serving.run("stat", "--format=%a %U", file).split() == ["600", user]
    with tarfile.open(serving.root / file.lstrip("/")) as archive:
        texts = {one.name.split("/")[1]: archive.extractfile(one).read().decode() for one in archive if one.isfile()}
    assert texts.keys() >= {"README.txt", "board.json", "doctor.json", "engines.json", "settings.json", "versions.json"}
    if user == "root":  # others may read neither the journal of first boot nor those of services
        assert json.loads(texts["first-boot.json"])["steps"]
        assert "fetched with HF_TOKEN=" in texts["journal.txt"]
        assert "orin-rerank-mini" in texts["journal.txt"]
    whole = "\n".join(texts.values())
    assert serving.run("uname", "-n").strip() == HOST
    identities = [serving.read(f"/{place}").strip() for place in ("etc/machine-id", "proc/sys/kernel/random/boot_id")]
    for secret in ("correcthorse", "192.168.77.9", "somebody@", "ladder", "fire engine", HOST, *identities):
        assert secret not in whole, secret


def test_clocks_and_a_mode_that_somebody_changed_are_found(serving):
    serving.run("systemctl", "stop", PATH_UNIT)  # or they would be set again under the test
    try:
        serving.run(NVPMODEL, "-m", "2")
        checks = _doctor(serving)
        assert {checks[name]["verdict"] for name in ("power mode", "clocks")} <= {"warn", "fail"}
        assert "15W" in checks["power mode"]["finding"]
        assert checks["power mode"]["command"] == "sudo orin-rerank board apply"
        assert "not locked" in checks["clocks"]["finding"]
    finally:
        serving.run("systemctl", "start", PATH_UNIT)
    serving.run("env", f"{ROOT_VARIABLE}={BOARD_ROOT}", "orin-rerank", "board", "apply")  # what it says helps
    wait_until(lambda: clocks_locked(serving.board), 30, "the remedy is none")
    assert _failures(_doctor(serving)) == NO_GPU


def test_a_daemon_that_is_not_there_is_found(serving):
    serving.run("systemctl", "stop", DAEMON)
    checks = _doctor(serving)
    assert _failures(checks) == {*NO_GPU, "socket"}
    assert "no daemon runs" in checks["socket"]["finding"]
    assert checks["socket"]["command"] == "systemctl status orin-rerank"
    serving.run("systemctl", "start", DAEMON)
    wait_for_state(serving)


def test_wrong_settings_are_found_by_line(serving):
    settings(serving, SETTINGS + "max_tokns = 5\n")
    checks = _doctor(serving)
    assert _failures(checks) == {*NO_GPU, "settings"}
    assert "config.toml" in checks["settings"]["finding"]
    assert "max_tokns" in checks["settings"]["finding"]
    settings(serving, SETTINGS)
    assert checks.keys() >= {"power mode", "socket"}  # the rest is looked at all the same
