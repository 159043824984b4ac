"""Commands that work without a daemon go by its settings: what they make is what it looks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import TESTS, orin_rerank

MINI = TESTS.parent / "engines" / "mini"
NVIDIA = str(TESTS / "cli" / "fake_nvidia")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(f'[model]\nbundle = "{MINI}"\nstate = "{tmp_path}/state"\n[engine]\nmemory_bytes = "256 MiB"\n')
    return file


def test_engines_are_looked_for_where_the_settings_say(config: Path, tmp_path: Path) -> None:
    done = orin_rerank("engines", "--json", "--config", str(config))
    assert done.returncode == 0
    value = json.loads(done.stdout)
    assert value["state"] == str(tmp_path / "state")
    assert [one["folder"] for one in value["engines"]] == [str(MINI)]
    named = json.loads(orin_rerank("engines", "--json", ORIN_RERANK_CONFIG=str(config)).stdout)
    assert named == value
    variable = orin_rerank("engines", "--json", "--config", str(config), ORIN_RERANK_STATE=str(tmp_path / "other"))
    assert json.loads(variable.stdout)["state"] == str(tmp_path / "other")


def test_plans_are_compiled_for_the_memory_that_the_settings_leave(config: Path) -> None:
    done = orin_rerank("build", "--config", str(config), PYTHONPATH=NVIDIA)
    assert done.returncode == 69
    assert "0.2 GiB" in done.stderr or "0.3 GiB" in done.stderr
    done = orin_rerank("build", PYTHONPATH=NVIDIA, ORIN_RERANK__ENGINE__TOKEN_BUDGET="1")
    assert done.returncode == 2
    assert "ORIN_RERANK__ENGINE__TOKEN_BUDGET: token_budget must be from 16 to 65536, not 1" in done.stderr


@pytest.mark.parametrize("command", ["build", "calibrate", "evaluate"])
def test_the_bundle_is_that_of_the_settings(command: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[model]\nbundle = "{tmp_path}/none"\n')
    done = orin_rerank(command, "--config", str(file), PYTHONPATH=NVIDIA)
    assert done.returncode == 66
    assert f"{tmp_path}/none" in done.stderr


@pytest.mark.parametrize("command", ["calibrate", "evaluate"])
def test_sets_are_those_of_the_settings(command: str, tmp_path: Path) -> None:
    key = "calibration" if command == "calibrate" else "evaluation"
    done = orin_rerank(command, **{f"ORIN_RERANK__FIRST_BOOT__{key.upper()}": f"{tmp_path}/none"})
    assert done.returncode == 66
    assert f"{tmp_path}/none" in done.stderr


@pytest.mark.parametrize("command", ["build", "calibrate", "engines", "evaluate"])
def test_settings_that_are_wrong_are_refused(command: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[engine]\nthreads = 0\n")
    done = orin_rerank(command, "--config", str(file))
    assert done.returncode == 2
    assert f"{file}:2: threads must be from 1 to 1024, not 0" in done.stderr


def test_status_and_rank_ask_at_the_socket_of_the_settings(daemon: Path) -> None:
    socket = {"ORIN_RERANK__SERVER__SOCKET": str(daemon)}
    assert orin_rerank("status", **socket).returncode == 0
    assert orin_rerank("rank", "red", "red", "blue", **socket).returncode == 0
