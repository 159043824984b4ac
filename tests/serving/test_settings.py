"""What an operator may set."""

from pathlib import Path

import pytest

from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.errors import SettingsError
from orin_rerank.serving.settings import ServerSettings


def test_defaults_hold():
    settings = ServerSettings()
    assert settings.socket == Path("/run/orin-rerank/orin-rerank.sock")
    assert settings.socket_mode == 0o660
    assert settings.tcp is None


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "[::1]:50051", "localhost:1", "box-1.example.org.:65535", "0.0.0.0:80"]
)
def test_addresses_that_are_taken(address):
    assert ServerSettings(tcp=address).tcp == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        ":50051",
        "localhost:",
        "localhost:65536",
        "localhost:-1",
        "::1:50051",
        "[::1:50051",
        "[x]:1",
        "a b:1",
        "-x:1",
        "host:٣",
    ],
)
def test_addresses_that_are_refused(address):
    with pytest.raises(SettingsError) as caught:
        ServerSettings(tcp=address)
    assert caught.value.item == "tcp"


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("socket", Path("relative.sock")),
        ("socket", Path("/run/a\0b")),
        ("socket", Path("/" + "x" * 107)),
        ("socket", Path("/" + "é" * 60)),
        ("socket_mode", 0o1777),
        ("socket_mode", 0o060),
        ("max_documents", 0),
        ("max_queued_documents", 0),
        ("max_queued_bytes", 0),
        ("max_message_bytes", 0),
        ("max_message_bytes", 2**31),
        ("encoder_threads", 0),
        ("encoder_threads", 65),
        ("drain_s", -0.1),
        ("drain_s", float("nan")),
        ("keepalive_min_interval_s", 0.0),
    ],
)
def test_wrong_settings_are_named(item, value):
    with pytest.raises(SettingsError) as caught:
        ServerSettings(**{item: value})
    assert caught.value.item == item


def test_the_longest_socket_path_is_taken():
    assert len(bytes(ServerSettings(socket=Path("/" + "x" * 106)).socket)) == 107


def test_messages_that_wait_have_a_share_of_the_memory():
    total = read_host_memory().total_bytes
    assert ServerSettings().effective_max_queued_bytes == min(max(total // 128, 64 << 20), 512 << 20)
    assert ServerSettings(max_queued_bytes=5).effective_max_queued_bytes == 5
