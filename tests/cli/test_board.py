"""`orin-rerank board` on trees that stand for boards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.board import BOARDS, NANO_8_SUPER, NX_16, BoardSpec, make_board, make_pc
from orin_rerank.board.clocks import read_clocks
from orin_rerank.board.request import OUTCOME, REQUEST
from orin_rerank.board.tuning import read_outcome

COMMAND = str(Path(sys.executable).with_name("orin-rerank"))


def run(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("ORIN_RERANK")}
    variables |= {"ORIN_RERANK_BOARD_ROOT": str(root), "COLUMNS": "200", **environment}
    return subprocess.run(
        [COMMAND, "board", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
        stdin=subprocess.DEVNULL,
    )


def test_a_board_is_shown(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    paths.at("/sys/class/thermal/cooling_device1/cur_state").write_text("1")
    lines = [line.rstrip() for line in run(tmp_path, "show").stdout.splitlines()]
    shown = {line[:10].strip(): line[12:] for line in lines if line[:1] != " "}
    assert shown["board"] == "Jetson Orin NX 16GB (p3767-0000)"
    assert shown["system"] == "JetPack 6.1 or 6.2, Jetson Linux 36.4.7"
    assert shown["power"] == "7.7 W (VDD_IN 7.7 W, VDD_CPU_GPU_CV 2.0 W, VDD_SOC 2.4 W)" or shown["power"].startswith(
        "mode"
    )
    assert shown["clocks"] == "not locked"
    after = [line[12:] for line in lines[lines.index("clocks      not locked") + 1 :][:3]]
    assert after == ["4 cores 730 to 1498 MHz", "GPU 306 to 612 MHz", "memory 2133 MHz"]
    assert shown["heat"].endswith("slowed down for heat: gpu")


def test_a_board_as_json(tmp_path: Path) -> None:
    make_board(tmp_path, NX_16)
    shown = json.loads(run(tmp_path, "show", "--json").stdout)
    assert shown["board"]["kind"] == "orin-nx-16"
    assert (shown["mode"]["name"], shown["fastest"], shown["clocks_locked"]) == ("15W", "MAXN", False)
    assert [mode["name"] for mode in shown["modes"]] == ["MAXN", "10W", "15W", "25W"]
    assert shown["watts"] == pytest.approx(5.024 * 1.528)
    assert shown["tuning"] is None


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_json_has_what_help_says_on_every_board(tmp_path: Path, spec: BoardSpec) -> None:
    make_board(tmp_path, spec)
    shown = json.loads(run(tmp_path, "show", "--json").stdout)
    words = " ".join(run(tmp_path, "show", "--help", COLUMNS="500").stdout.split())
    named = re.search(r"--json writes \{(.*?)\}", words)
    assert named is not None
    assert list(shown) == re.findall(r'"(\w+)"', named[1])
    assert (shown["board"]["part"], shown["board"]["doubt"]) == (spec.part, None)


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_a_terminal_of_80_columns_is_enough(tmp_path: Path, spec: BoardSpec) -> None:
    make_board(tmp_path, spec)
    lines = run(tmp_path, "show", COLUMNS="80").stdout.splitlines()
    assert all(len(line) <= 80 and "\x1b" not in line and "…" not in line for line in lines)
    assert all(line[10:12] == "  " for line in lines), "the second column begins everywhere at the same place"


def test_a_pc_is_shown(tmp_path: Path) -> None:
    make_pc(tmp_path)
    done = run(tmp_path, "show")
    assert done.returncode == 0
    assert "Some PC" in done.stdout
    assert "coretemp 47 °C" in done.stdout
    assert json.loads(run(tmp_path, "show", "--json").stdout)["modes"] == []


def test_it_is_tuned_and_given_back(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    state = tmp_path / "state"
    done = run(tmp_path / "board", "apply", STATE_DIRECTORY=str(state))
    assert (done.returncode, done.stdout) == (0, "power mode MAXN; clocks locked\n")
    assert read_clocks(paths).locked
    outcome_file = paths.at(str(OUTCOME))
    outcome = read_outcome(outcome_file)
    assert outcome is not None
    assert (outcome.mode, outcome.clocks_locked) == ("MAXN", True)
    assert outcome_file.stat().st_mode & 0o777 == 0o644
    assert json.loads(run(tmp_path / "board", "show", "--json").stdout)["tuning"]["mode"] == "MAXN"
    assert run(tmp_path / "board", "apply", STATE_DIRECTORY=str(state)).stdout == "nothing to change\n"
    done = run(tmp_path / "board", "restore", STATE_DIRECTORY=str(state))
    assert (done.returncode, done.stdout) == (0, "power mode 15W; clocks as they were\n")
    assert not read_clocks(paths).locked


def test_settings_decide(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    config = tmp_path / "config.toml"
    config.write_text('[board]\npower_mode = "25W"\nlock_clocks = false\n')
    done = run(tmp_path / "board", "apply", "--config", str(config))
    assert done.stdout == "power mode 25W\n"
    assert not read_clocks(paths).locked
    config.write_text('[board]\npower_mode = "1000W"\n')
    done = run(tmp_path / "board", "apply", "--config", str(config))
    assert done.returncode == 69
    outcome = read_outcome(paths.at(str(OUTCOME)))
    assert outcome is not None
    assert outcome.wanted == "1000W", "the daemon is told"
    assert "1000W: there is no such power mode; this board has MAXN (0), 10W (1), 15W (2), 25W (3)" in done.stderr


def test_a_mode_that_waits_for_a_reboot_is_no_failure(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    done = run(tmp_path, "apply")
    assert done.returncode == 0
    assert "power mode MAXN_SUPER: takes a reboot that is made for it: `sudo nvpmodel -m 2`, and YES" in done.stderr
    assert "takes a reboot that is made for it" in run(tmp_path, "show").stdout


def test_what_the_daemon_asks_for(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    request = paths.at(str(REQUEST))
    request.parent.mkdir(parents=True)
    assert run(tmp_path, "request").returncode == 0
    assert request.read_text() == "tune"
    assert run(tmp_path, "apply", "--requested").stdout == "power mode MAXN; clocks locked\n"
    assert not request.exists()
    done = run(tmp_path, "apply", "--requested")
    assert done.returncode == 66
    assert "board-request: cannot be read" in done.stderr


def test_what_the_daemon_asks_for_reboots_nothing(tmp_path: Path) -> None:
    """Else whatever changes the mode after each boot would have the machine rebooted after each boot."""
    paths = make_board(tmp_path, NANO_8_SUPER)
    paths.at("/fake/needs_reboot").write_text("2\n")
    config = tmp_path / "config.toml"
    config.write_text("[board]\nreboot = true\n")
    paths.at(str(REQUEST)).parent.mkdir(parents=True)
    run(tmp_path, "request")
    done = run(tmp_path, "apply", "--requested", "--config", str(config))
    assert (done.returncode, done.stdout) == (0, "clocks locked\n")
    outcome = read_outcome(paths.at(str(OUTCOME)))
    assert outcome is not None
    assert outcome.reboot_needed
    assert run(tmp_path, "apply", "--config", str(config)).stdout == "rebooting\n", "at boot it may be"


def test_what_restore_did_is_what_is_told_then(tmp_path: Path) -> None:
    make_board(tmp_path, NX_16)
    run(tmp_path, "apply")
    assert run(tmp_path, "restore").returncode == 0
    tuning = json.loads(run(tmp_path, "show", "--json").stdout)["tuning"]
    assert (tuning["mode"], tuning["wanted"], tuning["clocks_locked"]) == ("15W", None, False)


def test_what_restore_could_not_do_is_told(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    run(tmp_path, "apply")
    paths.at("/etc/nvpmodel.conf").write_text("")
    done = run(tmp_path, "restore")
    assert (done.returncode, done.stdout) == (69, "clocks as they were\n")
    assert "the power mode is not given back: /etc/nvpmodel.conf: defines no power mode" in done.stderr


@pytest.mark.parametrize("requested", [True, False])
def test_settings_that_are_wrong_are_told_and_take_the_request_away(tmp_path: Path, *, requested: bool) -> None:
    paths = make_board(tmp_path, NX_16)
    request = paths.at(str(REQUEST))
    request.parent.mkdir(parents=True)
    run(tmp_path, "request")
    config = tmp_path / "config.toml"
    config.write_text("[board]\npower = 5\n")
    done = run(tmp_path, "apply", *(["--requested"] if requested else []), "--config", str(config))
    assert done.returncode == 2
    assert request.exists() is not requested, "it would be answered again and again"
    outcome = read_outcome(paths.at(str(OUTCOME)))
    assert outcome is not None
    assert outcome.problem is not None
    assert outcome.problem.startswith("the settings are wrong: ")


def test_a_board_whose_modes_cannot_be_read_is_shown_all_the_same(tmp_path: Path) -> None:
    make_board(tmp_path, NX_16).at("/etc/nvpmodel.conf").write_text("")
    done = run(tmp_path, "show")
    assert done.returncode == 0
    assert "power mode  /etc/nvpmodel.conf: defines no power mode" in done.stdout
    assert "fan         40%" in done.stdout
    shown = json.loads(run(tmp_path, "show", "--json").stdout)
    assert (shown["modes"], shown["modes_problem"]) == ([], "/etc/nvpmodel.conf: defines no power mode")
    assert shown["over_current"] == {"oc1": 0, "oc2": 0, "oc3": 27390}


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to be somebody else")
@pytest.mark.parametrize("command", ["apply", "restore"])
def test_whoever_is_not_root_is_told_so(tmp_path: Path, command: str) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    tmp_path.chmod(0o755)
    for folder in (tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    # Somebody else may not be able to read this Python, so all of it is there before.
    code = (
        "import os, sys\n"
        "import orin_rerank.board.restoring, orin_rerank.cli.configured, orin_rerank.cli.output\n"
        "from orin_rerank.cli.main import run\n"
        "from orin_rerank.config.read import read_settings\n"
        "read_settings(None)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "board", command],
        capture_output=True,
        text=True,
        check=False,
        env={"ORIN_RERANK_BOARD_ROOT": str(paths.root), "STATE_DIRECTORY": str(state), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 66
    assert "takes root: put `sudo` before the command" in done.stderr
    assert "nvpmodel -m" not in paths.at("/fake/calls").read_text()


def test_a_terminated_apply_leaves_nothing_running(tmp_path: Path) -> None:
    paths = make_board(tmp_path / "board", NX_16)
    paths.at("/fake/hangs").write_text("")
    variables = {"ORIN_RERANK_BOARD_ROOT": str(paths.root), "STATE_DIRECTORY": str(tmp_path / "state")}
    process = subprocess.Popen([COMMAND, "board", "apply"], env={**os.environ, **variables}, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while "nvpmodel -m 0" not in paths.at("/fake/calls").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 130
    left = subprocess.run(["pgrep", "-f", str(paths.root)], capture_output=True, text=True, check=False).stdout
    assert left == ""
