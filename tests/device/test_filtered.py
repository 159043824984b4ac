"""Programs under a unit's system call filter, without a systemd."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
UNITS = HERE.parents[1] / "deploy" / "systemd"
UNIT = UNITS / "orin-rerank.service"
ATTEMPTS = [sys.executable, str(HERE / "attempts.py")]
MAY = (
    *("AF_UNIX", "AF_INET", "AF_INET6", "chmod", "creat", "mlock", "getpriority", "get_mempolicy", "io_uring_setup"),
    "personality, the same",
)
"""Of what `attempts.py` attempts, what the unit allows."""
OTHER_ERRORS = {"AF_NETLINK": "EAFNOSUPPORT", "AF_PACKET": "EAFNOSUPPORT", "clone3": "ENOSYS", "openat2": "ENOSYS"}


def filtered(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "filtered.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def can_notify() -> bool:
    """Whether this kernel hands refused calls over, and the filter can be made."""
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    return (
        shutil.which("systemd-analyze") is not None
        and ctypes.util.find_library("seccomp") is not None
        and "user_notif" in actions.read_text(encoding="ascii")
    )


pytestmark = pytest.mark.skipif(not can_notify(), reason="needs systemd-analyze, libseccomp and a kernel with seccomp")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The daemon's filter, in a file."""
    file = tmp_path_factory.mktemp("filter") / "filter.json"
    done = filtered("--unit", UNIT, "--write", file)
    assert done.returncode == 0, done.stderr
    return file


def test_what_the_unit_refuses_fails_and_is_named(made, tmp_path):
    free = json.loads(subprocess.run(ATTEMPTS, capture_output=True, text=True, check=True).stdout)
    report = tmp_path / "report.json"
    done = filtered("--filter", made, "--report", report, "--", *ATTEMPTS)
    assert done.returncode == 0, done.stderr
    under = json.loads(done.stdout)
    assert {name: under[name] for name in MAY} == {name: free[name] for name in MAY}
    refused = {name: error for name, error in under.items() if name not in MAY}
    assert refused == {name: OTHER_ERRORS.get(name, "EPERM") for name in refused}
    assert len(refused) > 20
    noted = json.loads(report.read_text())["refused"]
    assert {"mount", "ptrace", "sched_setaffinity", "setpriority", "setuid", "mbind", "openat"} <= set(noted)
    assert {"chmod", "fchmodat"} & set(noted)  # aarch64 has the second alone
    assert noted["socket"]["count"] == 2


def test_processes_and_threads_that_it_starts_are_under_it_too(made, tmp_path):
    script = (
        "import os, subprocess, threading\n"
        "def work():\n"
        "    try: os.sched_setaffinity(0, {0})\n"
        "    except PermissionError: print('thread', flush=True)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "subprocess.run(['nice', '-n', '1', 'echo', 'child'], check=True)\n"
    )
    report = tmp_path / "report.json"
    done = filtered("--filter", made, "--report", report, "--", sys.executable, "-c", script)
    assert done.stdout.split() == ["thread", "child"], done.stderr
    noted = json.loads(report.read_text())["refused"]
    assert noted["sched_setaffinity"]["count"] == noted["setpriority"]["count"] == 1
    assert noted["setpriority"]["threads"] == ["nice"]


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 128 + signal.SIGKILL)])
def test_the_exit_code_is_the_programs(made, script, code):
    done = filtered("--filter", made, "--", "sh", "-c", script)
    assert done.returncode == code
    assert json.loads(done.stderr)["refused"] == {}


def test_a_program_that_is_not_there(made):
    done = filtered("--filter", made, "--", "/nowhere")
    assert done.returncode == 127
    assert "FileNotFoundError" in done.stderr


def test_a_signal_goes_on_to_the_program(made):
    command = [sys.executable, str(HERE / "filtered.py"), "--filter", str(made), "--", "sh", "-c"]
    script = "trap 'echo stopped; exit 5' TERM; echo started; while :; do sleep 0.1; done"
    with subprocess.Popen([*command, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.terminate()
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(30) == 5


def test_it_does_not_outlive_what_answers_for_it(made):
    command = [sys.executable, str(HERE / "filtered.py"), "--filter", str(made), "--", "sh", "-c"]
    with subprocess.Popen([*command, "echo $$; exec sleep 60"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = Path("/proc") / process.stdout.readline().strip()
        assert child.exists()
        process.kill()
        assert process.stdout.read() == ""  # which ends when the child, who has it too, has ended


def test_limits_of_locked_memory(made):
    done = filtered("--filter", made, "--memlock", "65536", "--", "sh", "-c", "ulimit -l")
    assert done.stdout == "64\n"
    assert json.loads(done.stderr.removeprefix("\n"))["memlock"] == "65536"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_without_capabilities(made):
    script = "id -un; grep CapEff /proc/self/status"
    done = filtered("--filter", made, "--user", "nobody", "--", "/bin/sh", "-c", script)
    assert done.stdout.split() == ["nobody", "CapEff:", "0000000000000000"]


def test_a_unit_that_sets_what_is_not_understood_is_refused():
    done = filtered("--unit", UNITS / "orin-rerank-board.service", "--", "true")
    assert done.returncode == 1
    assert "ValueError" in done.stderr
