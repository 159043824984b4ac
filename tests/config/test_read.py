"""The settings file: typed, checked as a whole, and every fault named with its line."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest

from orin_rerank.config.file import CONFIG_VARIABLE, config_file, look_up
from orin_rerank.config.read import read_settings
from orin_rerank.config.sections import SECTIONS, LogLevel, Settings, keys_of
from orin_rerank.engines.settings import PrecisionChoice
from orin_rerank.errors import SettingsError
from orin_rerank.graph.builder import Dialect

DEFAULT = Path(__file__).parents[2] / "deploy/etc/config.toml"


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_a_file_there_are_defaults() -> None:
    assert read_settings(None, {}) == Settings()


def test_the_file_that_ships_sets_nothing() -> None:
    assert read_settings(DEFAULT, {}) == Settings()


def test_the_file_that_ships_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    """Commented in as a whole, it must be what it says: the defaults, or examples where there are none."""
    text = re.sub(r"^# (\w+ = )", r"\1", DEFAULT.read_text(), flags=re.MULTILINE)
    settings = read_settings(write(tmp_path, text), {})
    assert set(settings.sources) == {f"{section}.{key}" for section in SECTIONS for key in keys_of(section)}
    defaults = Settings()
    for section in SECTIONS:
        for entry in dataclasses.fields(SECTIONS[section]):
            default = getattr(getattr(defaults, section), entry.name)
            if default is not None:
                assert getattr(getattr(settings, section), entry.name) == default, entry.name


def test_values_of_every_type(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [model]
        bundle = "/srv/model"
        [engine]
        precision = "int8"
        dialect = "primitive"
        prefix_cache_bytes = "1.5 GiB"
        feature_cache_bytes = 1_000
        [server]
        socket_mode = 0o600
        drain_s = 3
        max_queued_bytes = "10MB"
        [board]
        lock_clocks = false
        [log]
        level = "debug"
        """,
    )
    settings = read_settings(file, {})
    assert settings.model.bundle == Path("/srv/model")
    assert settings.engine.precision is PrecisionChoice.INT8
    assert settings.engine.dialect is Dialect.PRIMITIVE
    assert settings.engine.prefix_cache_bytes == 3 << 29
    assert settings.engine.feature_cache_bytes == 1000
    assert settings.server.socket_mode == 0o600
    assert settings.server.drain_s == 3.0
    assert settings.server.max_queued_bytes == 10_000_000
    assert not settings.board.lock_clocks
    assert settings.log.level is LogLevel.DEBUG
    assert settings.sources["server.drain_s"] == f"{file}:11"


def test_a_variable_goes_before_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nmax_documents = 7\n[engine]\nthreads = 1\n")
    environment = {
        "ORIN_RERANK__SERVER__MAX_DOCUMENTS": "500",
        "ORIN_RERANK__MODEL__BUNDLE": "/srv/with spaces",
        "ORIN_RERANK__BOARD__LOCK_CLOCKS": "false",
        "ORIN_RERANK__ENGINE__PREFIX_CACHE_BYTES": "2 MiB",
        "ORIN_RERANK_STATE": "/elsewhere",
    }
    settings = read_settings(file, environment)
    assert settings.server.max_documents == 500
    assert settings.engine.threads == 1
    assert settings.model.bundle == Path("/srv/with spaces")
    assert settings.engine.prefix_cache_bytes == 2 << 20
    assert not settings.board.lock_clocks
    assert settings.sources["server.max_documents"] == "ORIN_RERANK__SERVER__MAX_DOCUMENTS"
    assert settings.sources["engine.threads"] == f"{file}:4"


def test_a_power_mode_may_be_a_number(tmp_path: Path) -> None:
    assert read_settings(write(tmp_path, "[board]\npower_mode = 2\n"), {}).board.power_mode == "2"
    assert read_settings(None, {"ORIN_RERANK__BOARD__POWER_MODE": "0"}).board.power_mode == "0"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[server]\nmax_document = 7\n", 2, "unknown key max_document in [server]; did you mean max_documents?"),
        ("\n\n[servre]\nx = 7\n", 3, "unknown section [servre]; did you mean server?"),
        ("x = 1\n", 1, "unknown section [x]; there are model, engine, server, first_boot, board, log"),
        ("server = 1\n", 1, "server is a section: write [server]"),
        ("[engine]\n# threads\nthreads = 'many'\n", 3, "threads: should be a whole number"),
        ("[engine]\nthreads = 0\n", 2, "threads must be from 1 to 1024, not 0"),
        ("[engine]\nprecision = 'int4'\n", 2, "precision: should be 'auto', 'full' or 'int8'"),
        ("[server]\nsocket = 'relative'\n", 2, "socket must be an absolute path"),
        ("[server]\n'tcp' = 'nonsense'\n", 2, "tcp must be host:port"),
        ("server.drain_s = -1\n", 1, "drain_s must be from 0 to 3600 seconds"),
        ("[board]\n[log]\nlevel='loud'\n", 3, "level: should be 'debug', 'info', 'warning' or 'error'"),
        ("[engine]\nmemory_bytes = 'lots'\n", 2, "memory_bytes must be a number of bytes, or text such as 64 MiB"),
        ("[server]\nmax_documents = true\n", 2, "max_documents: should be a whole number"),
        ("[server]\nmax_documents = '500'\n", 2, "max_documents: should be a whole number"),
        ("[server]\nmax_documents = 5.0\n", 2, "max_documents: should be a whole number"),
        ("[server]\nmax_documents = 99999999999999999999\n", 2, "max_documents must be at most 100,000"),
        ("[server]\nmax_queued_bytes = '99999999 GiB'\n", 2, "max_queued_bytes must be at most 1 TiB"),
        ("[server]\ndrain_s = '20'\n", 2, "drain_s: should be a number"),
        ("[board]\nreboot = 1\n", 2, "reboot: should be true or false"),
        ("[board]\nlock_clocks = 'off'\n", 2, "lock_clocks: should be true or false"),
        ("[board]\npower_mode = true\n", 2, "power_mode: should be text in quotes"),
        ("[model]\nbundle = ''\n", 2, "bundle must be an absolute path, such as /srv/bundle"),
        ("[model]\nstate = 'relative'\n", 2, "state must be an absolute path"),
        ("[first_boot]\ncalibration = '~/set'\n", 2, "calibration must be an absolute path"),
        ("[log]\n\nserver = 1\n", 3, "unknown key server in [log]"),
        ("a = 1\nserver = { max_docs = 4 }\n", 1, "unknown section [a]"),
        ("[log]\n[[server]]\nmax_documents = 1\n", 2, "there is one section server: write [server]"),
        ("[log]\n[server.sub]\nx = 1\n", 2, "unknown key sub in [server]"),
        ("\nserver = { max_docs = 4 }\n", 2, "unknown key max_docs in [server]; did you mean max_documents?"),
        ("\nserver.sub.x = 4\n", 2, "unknown key sub in [server]"),
        ("[server]\nsub.x = 4\n", 2, "unknown key sub in [server]"),
        ("[engine]\nmemory_bytes = 1.5\n", 2, "memory_bytes must be a number of bytes, or text such as 64 MiB"),
        ("[engine]\nmemory_bytes = true\n", 2, "memory_bytes must be a number of bytes, or text such as 64 MiB"),
        ("[server]\nsocket_mode = '660'\n", 2, "socket_mode: should be permission bits, such as 0o660"),
        ("[server]\ntcp = 50051\n", 2, "tcp must be host:port"),
        ("[log]\nlevel = ['info']\n", 2, "level: should be 'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        read_settings(file, {})
    assert (caught.value.item, caught.value.message[: len(message)]) == (f"{file}:{line}", message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ORIN_RERANK__SERVER__MAX_DOCUMENTS", "0", "max_documents must be at least 1"),
        ("ORIN_RERANK__SERVER__MAXDOCUMENTS", "1", "unknown key maxdocuments in server; did you mean max_documents?"),
        ("ORIN_RERANK__SERVER", "1", "names no setting: write ORIN_RERANK__SERVER__KEY; there are socket"),
        ("ORIN_RERANK__SERVER__MAX_DOCUMENTS", "5\nx = 7", "max_documents: should be a whole number"),
        ("ORIN_RERANK__SERVER__MAX_DOCUMENTS", "[" * 5000, "max_documents: should be a whole number"),
        ("ORIN_RERANK__MODEL__BUNDLE", "", "bundle must be an absolute path"),
        ("ORIN_RERANK__NOTHING__X", "1", "unknown section nothing; there are model"),
        ("ORIN_RERANK__LOG__LEVEL", "loud", "level: should be"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(None, {name: value})
    assert caught.value.item == name
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n[server\n", ":2: is no TOML: "),
        (b"\n\n\xff\xfe", ":3: is not UTF-8"),
        (b"a = 1\na = 2\n", ":2: is no TOML: "),
        (b"a = " + b"[" * 5000, ": is no TOML: it is nested too deeply"),
        (b"#" * (1 << 20) + b"\n", ": cannot be read: it has more than 1 MiB"),
    ],
    ids=["half a heading", "not UTF-8", "twice", "deep", "large"],
)
def test_a_file_that_is_none(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(data)
    with pytest.raises(SettingsError) as caught:
        read_settings(file, {})
    assert str(caught.value).startswith(f"{file}{message}")
    assert look_up("server", "socket", file, {}) is None


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for file in (fifo, Path("/dev/zero")):
        with pytest.raises(SettingsError, match="cannot be read: it is no plain file"):
            read_settings(file, {})
        assert look_up("server", "socket", file, {}) is None
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        read_settings(tmp_path, {})


def test_what_an_editor_of_windows_writes(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf[server]\r\nmax_documents = 5\r\n")
    settings = read_settings(file, {})
    assert (settings.server.max_documents, settings.sources["server.max_documents"]) == (5, f"{file}:2")
    assert look_up("server", "max_documents", file, {}) == 5


@pytest.mark.parametrize("text", ["off", "0", "no", "false", "FALSE"])
def test_a_variable_may_say_no_in_many_ways(text: str) -> None:
    assert not read_settings(None, {"ORIN_RERANK__BOARD__LOCK_CLOCKS": text}).board.lock_clocks
    with pytest.raises(SettingsError, match="lock_clocks: should be true or false"):
        read_settings(None, {"ORIN_RERANK__BOARD__LOCK_CLOCKS": "perhaps"})


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        read_settings(tmp_path / "none.toml", {})


def test_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "b.toml"))
    assert config_file(tmp_path / "a.toml") == tmp_path / "a.toml"
    assert config_file() == tmp_path / "b.toml"
    monkeypatch.delenv(CONFIG_VARIABLE)
    assert config_file() in (None, Path("/etc/orin-rerank/config.toml"))


def test_an_unknown_value_of_a_secret_place_is_not_shown(tmp_path: Path) -> None:
    """Messages name keys and what is possible, and never repeat what was given."""
    value: Any = "hunter2-very-secret"
    with pytest.raises(SettingsError) as caught:
        read_settings(write(tmp_path, f"[engine]\nthreads = '{value}'\n"), {})
    assert value not in str(caught.value)
