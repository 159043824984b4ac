"""`orin-rerank config`, and what the settings file does to `serve`."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.board import NX_16, make_board
from orin_rerank.cli.configured import settings_of, state_folder
from orin_rerank.cli.reloading import RELOADED, Reloading
from orin_rerank.config.sections import SECTIONS, LogLevel, Settings, keys_of
from orin_rerank.engines.settings import DeviceChoice, PrecisionChoice
from orin_rerank.errors import SettingsError
from orin_rerank.graph.builder import Dialect
from orin_rerank.lifecycle.first_boot.settings import PrepareChoice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


def test_the_board_decides_which_power_modes_there_are(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    make_board(tmp_path / "board", NX_16)
    env = {"ORIN_RERANK_BOARD_ROOT": str(tmp_path / "board")}
    file.write_text('[board]\npower_mode = "15w"\n')
    assert run("check", str(file), env=env).returncode == 0
    file.write_text('[board]\npower_mode = "fastset"\n')
    done = run("check", str(file), env={**env, "COLUMNS": "300"})
    assert done.returncode == 2
    assert f"{file}:2: power_mode: " in done.stderr
    assert "MAXN" in done.stderr  # which there are
    (tmp_path / "board/etc/nvpmodel.conf").write_text("nothing that defines a mode")
    assert run("check", str(file), env=env).returncode == 0  # there is nothing to hold it to
    file.write_text('[engine]\nprefix_cache_bytes = "900 GiB"\n')
    done = run("check", str(file), env={**env, "COLUMNS": "300"})
    assert done.returncode == 2
    assert f"{file}:2: prefix_cache_bytes is more than this machine's memory, 14.9 GiB" in done.stderr


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("orin_rerank")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.mark.parametrize("name", sorted(f"{section}.{key}" for section in SECTIONS for key in keys_of(section)))
@pytest.mark.usefixtures("logging_as_it_was")
def test_what_a_reload_takes_over(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    others = {
        "model.bundle": Path("/b"), "model.state": Path("/s"), "engine.precision": PrecisionChoice.FULL,
        "engine.device": DeviceChoice.CPU, "engine.threads": 3, "engine.token_budget": 99,
        "engine.dialect": Dialect.PRIMITIVE, "engine.max_tokens": 999, "engine.memory_bytes": 1 << 30,
        "server.socket": Path("/x"), "server.socket_mode": 0o600, "server.tcp": "a:1", "log.level": LogLevel.DEBUG,
        "first_boot.prepare": PrepareChoice.OFF, "first_boot.calibration": Path("/c"),
        "first_boot.evaluation": Path("/e"), "board.power_mode": "keep", "board.lock_clocks": False,
        "board.reboot": True,
    }  # fmt: skip
    section, _, key = name.partition(".")
    before = Settings()
    old = getattr(getattr(before, section), key)
    new = others[name] if name in others else 7 if old is None else old + 1
    after = dataclasses.replace(before, **{section: dataclasses.replace(getattr(before, section), **{key: new})})
    server = Reloading(before, before.server, lambda: after)()
    assert logging.getLogger("orin_rerank").level == (logging.DEBUG if name == "log.level" else logging.INFO)
    record = json.loads(capsys.readouterr().err)
    assert record["message"] == "settings read again"
    restart = record["restart_needed_for"]
    if name in RELOADED:
        assert restart is None
        assert section == "log" or getattr(server, key) == new
    else:
        assert restart == name
        assert server == before.server


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
    assert f"{file}:2: drain_s: should be a number" in done.stderr


def test_a_hangup_before_the_daemon_listens_for_it_ends_nothing(tmp_path: Path) -> None:
    file, socket = tmp_path / "config.toml", tmp_path / "s"
    file.write_text(f'[model]\nstate = "{tmp_path}/state"\n[server]\nsocket = "{socket}"\n')
    process = subprocess.Popen([COMMAND, "serve", "--config", str(file)], stderr=subprocess.PIPE, text=True)
    try:
        ignored = re.compile(r"^SigIgn:\s*([0-9a-f]+)$", re.MULTILINE)
        while True:
            found = ignored.search(Path(f"/proc/{process.pid}/status").read_text())
            assert found is not None
            assert process.poll() is None
            if int(found[1], 16) >> (signal.SIGHUP - 1) & 1:
                break
            time.sleep(0.001)
        process.send_signal(signal.SIGHUP)
        while not socket.exists():
            assert process.poll() is None, "the hangup ended it"
            process.send_signal(signal.SIGHUP)
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
