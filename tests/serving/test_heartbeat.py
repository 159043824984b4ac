"""What systemd hears of a daemon that is a process: over a real socket of its kind."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from orin_rerank.v1 import rerank_pb2 as pb
from orin_rerank.v1 import rerank_pb2_grpc
from serving.conftest import request
from serving.test_daemon import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WATCHDOG_S = 3.0


class Systemd:
    """The service manager's ear."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.heard: list[str] = []

    def until(self, wanted: str, timeout_s: float = 20) -> str:
        """Listens for a message that holds something."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                message = self._socket.recv(4096).decode()
            except TimeoutError:
                break
            self.heard.append(message)
            if wanted in message:
                return message
        raise AssertionError(f"{wanted!r} was not heard: {self.heard[-20:]}")

    def during(self, seconds: float) -> list[str]:
        """What is said from now on for so long."""
        before = len(self.heard)
        with pytest.raises(AssertionError):
            self.until("never said", seconds)
        return self.heard[before:]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    ear = Systemd(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", str(round(WATCHDOG_S * 1e6)))
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    yield ear
    ear.close()


@pytest.fixture
def start(socket_path: Path, systemd: Systemd) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def begin(*options: str, **kwargs: object) -> Process:
        processes.append(Process(socket_path, *options, **kwargs))
        return processes[-1]

    yield begin
    for process in processes:
        process.close()


def test_from_a_build_to_ready_to_the_end(start, systemd):
    daemon = start("--load", "build")
    assert "STATUS=build-int8: compiling text.plan" in systemd.until("STATUS=build-int8")
    systemd.until("EXTEND_TIMEOUT_USEC=60000000")
    systemd.until("WATCHDOG=1")
    assert systemd.until("READY=1") == "READY=1\nSTATUS=serving fake in fp32 by fake-cpu"
    assert not any("READY=1" in message for message in systemd.heard[:-1])
    idle = systemd.during(2 * WATCHDOG_S)
    assert set(idle) == {"WATCHDOG=1"}
    assert len(idle) >= 4
    daemon.signal(signal.SIGTERM)
    assert systemd.until("STOPPING=1") == "STOPPING=1\nSTATUS=draining: finishing the requests that run"
    assert daemon.end()[0] == 0


def test_a_drain_that_the_settings_let_take_long_gets_the_time(start, systemd):
    daemon = start("--drain", "60")
    systemd.until("READY=1")
    daemon.signal(signal.SIGTERM)
    systemd.until("STOPPING=1")
    systemd.until("EXTEND_TIMEOUT_USEC=121100000")
    assert daemon.end()[0] == 0


def test_sigterm_ends_a_preparation_and_gives_it_no_more_time(start, systemd):
    daemon = start("--load", "steps", "--drain", "600")
    systemd.until("EXTEND_TIMEOUT_USEC")
    started = time.monotonic()
    daemon.signal(signal.SIGTERM)
    systemd.until("STOPPING=1")
    assert daemon.end()[0] == 0
    assert time.monotonic() - started < 5
    assert not any("EXTEND" in message for message in systemd.during(0.2))


def test_an_engine_that_hangs_starves_the_watchdog(start, systemd, socket_path):
    (arrived, arrived_there), (gate_there, gate) = os.pipe(), os.pipe()
    start("--arrived", str(arrived_there), "--gate", str(gate_there), pass_fds=(arrived_there, gate_there))
    systemd.until("READY=1")
    systemd.until("WATCHDOG=1")
    with grpc.insecure_channel(f"unix:{socket_path}") as channel:
        stub = rerank_pb2_grpc.RerankServiceStub(channel)
        call = stub.Rerank.future(request("q", ["a", "b"]))
        os.read(arrived, 1)
        # The pack may take half of what systemd waits for; the event loop lives on, and that must not count.
        systemd.during(WATCHDOG_S / 2 + 0.5)
        assert systemd.during(WATCHDOG_S) == []
        assert stub.GetStatus(pb.GetStatusRequest()).state == pb.STATE_SERVING
        os.write(gate, b".")
        assert len(call.result().results) == 2
        systemd.until("WATCHDOG=1")
    for number in (arrived, arrived_there, gate_there, gate):
        os.close(number)


def test_sighup_takes_over_what_can_change_and_keeps_what_was_where_that_is_wrong(
    start, systemd, socket_path, tmp_path
):
    settings = tmp_path / "settings"
    daemon = start("--settings", str(settings))
    systemd.until("READY=1")
    settings.write_text("1")
    daemon.signal(signal.SIGHUP)
    assert systemd.until("RELOADING=1").startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert systemd.until("READY=1") == "READY=1\nSTATUS=serving fake in fp32 by fake-cpu"
    with grpc.insecure_channel(f"unix:{socket_path}") as channel:
        stub = rerank_pb2_grpc.RerankServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Rerank(request("q", ["a", "b"]))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        settings.write_text("many")
        daemon.signal(signal.SIGHUP)
        systemd.until("RELOADING=1")
        problem = "the settings are wrong, and those of before hold: "
        assert f"{problem}{settings}: is no number" in systemd.until("READY=1")
        assert list(stub.GetStatus(pb.GetStatusRequest()).problems) == [f"{problem}{settings}: is no number"]
        with pytest.raises(grpc.RpcError):
            stub.Rerank(request("q", ["a", "b"]))
        settings.write_text("2")
        daemon.signal(signal.SIGHUP)
        systemd.until("RELOADING=1")
        assert "wrong" not in systemd.until("READY=1")
        assert len(stub.Rerank(request("q", ["a", "b"])).results) == 2


def test_sighup_while_it_prepares_makes_nobody_believe_that_it_serves(start, systemd, socket_path, tmp_path):
    settings = tmp_path / "settings"
    settings.write_text("1")
    daemon = start("--load", "build", "--settings", str(settings))
    systemd.until("STATUS=build-int8")
    daemon.signal(signal.SIGHUP)
    systemd.until("READY=1")
    assert not any("RELOADING" in message for message in systemd.heard)
    with grpc.insecure_channel(f"unix:{socket_path}") as channel:
        assert rerank_pb2_grpc.RerankServiceStub(channel).GetStatus(pb.GetStatusRequest()).state == pb.STATE_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            rerank_pb2_grpc.RerankServiceStub(channel).Rerank(request("q", ["a", "b"]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, "it was taken over all the same"


def test_a_load_that_fails_says_so_before_it_ends(start, systemd):
    daemon = start("--load", "fail")
    assert daemon.end()[0] == 70
    assert "failed: model.onnx: its digest differs" in systemd.until("STOPPING=1")
    assert not any("READY=1" in message for message in systemd.heard)
