"""What systemd hears, over a real socket of its kind."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from orin_rerank.telemetry.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "n"))
        heard.setblocking(False)
        yield heard


def test_every_message(listener: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": listener.getsockname()})
    assert notifier.heard
    notifier.ready("serving")
    notifier.status("building\nplan 2\tof 3")
    notifier.alive()
    notifier.extend(90)
    notifier.reloading(12)
    notifier.stopping("draining")
    assert [listener.recv(1000).decode() for _ in range(6)] == [
        "READY=1\nSTATUS=serving",
        "STATUS=building plan 2 of 3",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=90000000",
        "RELOADING=1\nMONOTONIC_USEC=12",
        "STOPPING=1\nSTATUS=draining",
    ]


def test_an_abstract_socket() -> None:
    name = f"orin-rerank-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0" + name)
        Notifier({"NOTIFY_SOCKET": "@" + name}).alive()
        assert heard.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("name", ["", "relative", "vsock:2:1"])
def test_nobody_listens(name: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": name})
    assert not notifier.heard
    notifier.ready("serving")


def test_a_socket_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    notifier.ready("serving")
    assert notifier.heard
    assert list(tmp_path.iterdir()) == []


def test_a_listener_that_does_not_read_blocks_nobody(listener: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": listener.getsockname()})
    for _ in range(10_000):
        notifier.alive()
    heard = 0
    with contextlib.suppress(BlockingIOError):
        while listener.recv(100) == b"WATCHDOG=1":
            heard += 1
    assert 0 < heard < 10_000, "the queue was never full"


def test_what_is_said_once_waits_for_a_full_queue(listener: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": listener.getsockname()})
    for _ in range(10_000):
        notifier.alive()
    saying = threading.Thread(target=notifier.ready, args=("serving",))
    saying.start()
    time.sleep(0.2)  # it finds the queue full
    heard: list[bytes] = []
    listener.settimeout(10)
    while not heard or heard[-1] != b"READY=1\nSTATUS=serving":
        heard.append(listener.recv(100))
    saying.join(10)
    assert not saying.is_alive()


@pytest.mark.parametrize("text", ["x" * 9_000, "ü" * 9_000, "x" + "字" * 9_000])
def test_a_long_status_is_cut_so_that_systemd_takes_it(listener: socket.socket, text: str) -> None:
    """systemd drops what is over 4,096 bytes, and READY with it."""
    Notifier({"NOTIFY_SOCKET": listener.getsockname()}).ready(text)
    message = listener.recv(65536).decode()
    assert len(message.encode()) < 2048
    assert message.startswith(f"READY=1\nSTATUS={text[:300]}")
    assert message.endswith("...")


def test_children_do_not_inherit_it(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    for name, value in {
        "NOTIFY_SOCKET": listener.getsockname(),
        "WATCHDOG_USEC": "5000000",
        "WATCHDOG_PID": "",
    }.items():
        monkeypatch.setenv(name, value)
    notifier = Notifier()
    assert notifier.watchdog_s == 5.0
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)
    notifier.alive()
    assert listener.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_the_watchdog_is_this_process_s(variables: dict[str, str], seconds: float | None) -> None:
    assert Notifier(variables).watchdog_s == seconds
