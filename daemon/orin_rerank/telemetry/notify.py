"""Tells systemd how the service is: ready, what it does, that it lives.

The protocol is a datagram of `KEY=VALUE` lines to the socket that NOTIFY_SOCKET names (sd_notify(3)). Without that
variable, in a terminal or a container, nothing is sent.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Notifier"]

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHDOG_PROCESS: Final = "WATCHDOG_PID"
_MICRO: Final = 1e6
_STATUS_BYTES: Final = 1024
"""systemd drops datagrams of more than 4,096 bytes as a whole, READY=1 with them."""
_PATIENCE_S: Final = 1.0
"""How long systemd may take to make room for what is said only once."""


class Notifier:
    """Where a service's state goes; made once, early, since it takes its variables out of the environment.

    Processes that the daemon starts must not speak for it.

    Args:
        environment: Variables; None means this process's, from which systemd's are taken out.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        self._address = _address_of(variables.get(_SOCKET, ""))
        self.watchdog_s = _watchdog_s(variables)
        if environment is None:
            for name in (_SOCKET, _WATCHDOG, _WATCHDOG_PROCESS):
                os.environ.pop(name, None)

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return self._address is not None

    def ready(self, status: str) -> None:
        """The service is up."""
        self._send(f"READY=1\nSTATUS={_line(status)}", once=True)

    def status(self, status: str) -> None:
        """What the service does, for `systemctl status`."""
        self._send(f"STATUS={_line(status)}")

    def alive(self) -> None:
        """Feeds the watchdog."""
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Asks for that much more time, from now, before starting or stopping counts as hung."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * _MICRO)}")

    def reloading(self, monotonic_us: int) -> None:
        """Settings are being read again; `ready` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_us}")

    def stopping(self, status: str) -> None:
        """The service is on its way out."""
        self._send(f"STOPPING=1\nSTATUS={_line(status)}", once=True)

    def _send(self, message: str, *, once: bool = False) -> None:
        """Sends; a systemd that does not listen is no reason to fail.

        Args:
            message: What.
            once: Whether nothing later says the same again, so that a full queue is waited for.
        """
        if self._address is None:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.settimeout(_PATIENCE_S if once else 0.0)
            out.sendto(message.encode(), self._address)


def _address_of(name: str) -> str | None:
    """The socket's address; one that begins with @ is in the abstract namespace."""
    if not name.startswith(("/", "@")):
        return None
    return "\0" + name[1:] if name.startswith("@") else name


def _watchdog_s(variables: Mapping[str, str]) -> float | None:
    """How long systemd waits for a sign of life, None if it does not."""
    value, process = variables.get(_WATCHDOG, ""), variables.get(_WATCHDOG_PROCESS, "")
    if not value.isdigit() or int(value) == 0 or (process and process != str(os.getpid())):
        return None
    return int(value) / _MICRO


def _line(text: str) -> str:
    """A status as one line, cut where it is long."""
    line = " ".join(text.split()).encode()
    if len(line) <= _STATUS_BYTES:
        return line.decode()
    return line[:_STATUS_BYTES].decode(errors="ignore") + "..."
