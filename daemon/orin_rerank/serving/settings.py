"""What an operator may set about serving; checked before anything starts."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.errors import SettingsError

__all__ = ["DEFAULT_SOCKET", "SOCKET_PATH_BYTES", "ServerSettings"]

DEFAULT_SOCKET = Path("/run/orin-rerank/orin-rerank.sock")

SOCKET_PATH_BYTES = 107
"""sockaddr_un.sun_path holds 108 bytes, one of them the closing NUL."""

_QUEUED_BYTES: Final = (64 << 20, 512 << 20)
_QUEUED_SHARE: Final = 128

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the daemon is reached and how much it takes on.

    Attributes:
        socket: The Unix socket's path; its directory is created where it is missing.
        socket_mode: Its permission bits: who may connect.
        tcp: `host:port` to listen on as well (`[::1]:50051` for IPv6, port 0 for any free one). The protocol knows
            no passwords: whoever reaches the port may rerank. None is the socket alone.
        max_documents: Most documents in one request.
        max_queued_documents: Documents that may wait or run before requests are answered with `OverloadedError`.
            A request that is larger than this alone is taken when nothing else is there.
        max_queued_bytes: The same for the size of the requests' messages, which take 2.4 times as much memory as they
            are long; None means a 128th of the machine's memory, from 64 to 512 MiB.
        max_message_bytes: Largest message that is received; the library refuses larger ones with RESOURCE_EXHAUSTED.
        drain_s: How long running requests may take to finish after SIGTERM.
        encoder_threads: Threads that tokenise and decode images.
        keepalive_min_interval_s: Clients may ping this often without being thrown out for `too_many_pings`.

    Raises:
        SettingsError: Names the setting that is wrong.
    """

    socket: Path = DEFAULT_SOCKET
    socket_mode: int = 0o660
    tcp: str | None = None
    max_documents: int = 1_000
    max_queued_documents: int = 4_000
    max_queued_bytes: int | None = None
    max_message_bytes: int = 64 * 2**20
    drain_s: float = 20.0
    encoder_threads: int = 2
    keepalive_min_interval_s: float = 5.0

    def __post_init__(self) -> None:
        self._check_socket()
        if self.tcp is not None:
            _check_address(self.tcp)
        for name, most, called in (
            ("max_documents", 100_000, "100,000"),
            ("max_queued_documents", 1_000_000, "1,000,000"),
            ("max_queued_bytes", 2**40, "1 TiB"),
            ("max_message_bytes", 2**31 - 1, "2 GiB, which gRPC cannot pass"),
            ("encoder_threads", 64, "64"),
        ):
            value = getattr(self, name)
            if value is not None:
                _require(value >= 1, name, "must be at least 1")
                _require(value <= most, name, f"must be at most {called}")
        _require(0 <= self.drain_s <= 3600, "drain_s", "must be from 0 to 3600 seconds")
        _require(
            0.01 <= self.keepalive_min_interval_s <= 7200,
            "keepalive_min_interval_s",
            "must be from 0.01 to 7200 seconds",
        )

    @property
    def effective_max_queued_bytes(self) -> int:
        """How large the messages of all requests together may be."""
        if self.max_queued_bytes is not None:
            return self.max_queued_bytes
        least, most = _QUEUED_BYTES
        return min(max(read_host_memory().total_bytes // _QUEUED_SHARE, least), most)

    def _check_socket(self) -> None:
        path = os.fsencode(self.socket)
        _require(self.socket.is_absolute(), "socket", "must be an absolute path")
        _require(b"\0" not in path, "socket", "must not contain a NUL byte")
        _require(
            len(path) <= SOCKET_PATH_BYTES,
            "socket",
            f"is {len(path)} bytes long; the system takes at most {SOCKET_PATH_BYTES} for a Unix socket",
        )
        _require(0 <= self.socket_mode <= 0o777, "socket_mode", "must be permission bits from 0 to 0777")
        _require(self.socket_mode & 0o600 == 0o600, "socket_mode", "must let the daemon's own user read and write")


def _require(holds: bool, item: str, problem: str) -> None:
    if not holds:
        raise SettingsError(problem, item=item)


def _check_address(address: str) -> None:
    host, colon, port = address.rpartition(":")
    _require(bool(colon), "tcp", "must be host:port")
    _require(port.isascii() and port.isdigit() and int(port) <= 65535, "tcp", "must end in a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError as error:
            raise SettingsError("holds no IPv6 address between its brackets", item="tcp") from error
    else:
        _require(":" not in host, "tcp", "must put an IPv6 address into brackets, such as [::1]:50051")
        _require(_HOST_NAME.fullmatch(host) is not None, "tcp", "must name a host or address before the port")
