"""`orin-rerank config`, and what the settings file does to `serve`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orin_rerank.cli.configured import settings_of, state_folder
from orin_rerank.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMAND = str(Path(sys.executable).with_name("orin-rerank"))
DEFAULT = Path(__file__).parents[2] / "deploy/etc/config.toml"


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "config", *arguments], capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}
    )


def test_the_file_that_ships_is_right() -> None:
    done = run("check", str(DEFAULT), env={"ORIN_RERANK__LOG__LEVEL": "debug", "COLUMNS": "300"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{DEFAULT}: right; 0 set there, 1 by variables\n"


def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[server]\nmax_document = 1\n")
    done = run("check", env={"ORIN_RERANK_CONFIG": str(file)})
    assert done.returncode == 2
    assert f"{file}:2: unknown key max_document in [server]; did you mean max_documents?" in done.stderr
    assert done.stdout == ""


def test_what_comes_of_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[server]\nmax_documents = 5\nsocket_mode = 0o600\n[engine]\nprecision = "int8"\n')
    shown = json.loads(run("show", str(file), "--json", env={"ORIN_RERANK__SERVER__TCP": "127.0.0.1:1"}).stdout)
    assert shown["server"]["max_documents"] == {"value": 5, "source": f"{file}:2"}
    assert shown["server"]["socket_mode"] == {"value": "0o600", "source": f"{file}:3"}
    assert shown["server"]["tcp"] == {"value": "127.0.0.1:1", "source": "ORIN_RERANK__SERVER__TCP"}
    assert shown["engine"]["precision"]["value"] == "int8"
    assert shown["board"]["power_mode"] == {"value": "fastest", "source": None}
    table = run("show", str(file), env={"COLUMNS": "200"}).stdout
    assert [line.split() for line in table.splitlines() if "max_documents" in line] == [
        ["server.max_documents", "5", f"{file}:2"]
    ]


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[engine]\nthreads = 3\ntoken_budget = 512\n")
    settings = settings_of(file, engine={"threads": 1, "token_budget": None})
    assert (settings.engine.threads, settings.engine.token_budget) == (1, 512)
    with pytest.raises(SettingsError) as caught:
        settings_of(file, engine={"token_budget": 1})
    assert caught.value.item == "--token-budget"


def test_where_engines_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[model]\nstate = "{tmp_path}/a"\n')
    monkeypatch.delenv("ORIN_RERANK_STATE", raising=False)
    assert state_folder(settings_of(file)) == tmp_path / "a"
    monkeypatch.setenv("ORIN_RERANK_STATE", str(tmp_path / "b"))
    assert state_folder(settings_of(file)) == tmp_path / "b"


def test_a_daemon_by_its_settings_file(tmp_path: Path) -> None:
    file, socket = tmp_path / "config.toml", tmp_path / "s"
    file.write_text(
        f"""
        [model]
        state = "{tmp_path}/state"
        [server]
        socket = "{socket}"
        socket_mode = 0o600
        max_queued_documents = 77
        [engine]
        device = "cpu"
        threads = 1
        token_budget = 128
        """
    )
    process = subprocess.Popen([COMMAND, "serve", "--config", str(file)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["message"] == "serving":
                break
        assert socket.stat().st_mode & 0o777 == 0o600
        done = subprocess.run(
            [COMMAND, "status", "--json", "--socket", str(socket)], capture_output=True, text=True, check=True
        )
        status = json.loads(done.stdout)
        assert status["queue"]["max_documents"] == 77
        assert status["model"]["token_budget"] == 128
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_daemon_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[server]\ndrain_s = 'long'\n")
    done = subprocess.run([COMMAND, "serve", "--config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{file}:2: drain_s: should be a valid number" in done.stderr
