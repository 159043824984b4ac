"""Where the daemon is: the sockets that are looked at, and how gRPC names an address."""

from __future__ import annotations

import os
from pathlib import Path

from orin_rerank.config.file import config_file, look_up
from orin_rerank.errors import SettingsError
from orin_rerank.serving.settings import DEFAULT_SOCKET, SOCKET_PATH_BYTES

__all__ = ["ADDRESS_VARIABLE", "default_socket", "socket_of", "target_of"]

ADDRESS_VARIABLE = "ORIN_RERANK_ADDRESS"


def default_socket() -> Path:
    """Where a daemon that this user starts listens: below /run for root, else below XDG_RUNTIME_DIR."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() == 0 or not runtime:
        return DEFAULT_SOCKET
    return Path(runtime) / "orin-rerank" / "orin-rerank.sock"


def target_of(socket: Path | None, address: str | None, config: Path | None = None) -> str:
    """The gRPC target of the daemon.

    Args:
        socket: A Unix socket that the caller named.
        address: `host:port` or `unix:PATH` that the caller named.
        config: The settings file that the caller named. It is the daemon's business to check what stands in it.

    Returns:
        The named one; else what ORIN_RERANK_ADDRESS says; else the socket that the settings name; else the user's own
        if it is there; else the system's.

    Raises:
        SettingsError: If both are named, or an address is none.
    """
    if socket is not None and address is not None:
        raise SettingsError("give either a socket or an address, not both", item="--socket, --address")
    if socket is not None:
        return _of_socket(socket, "--socket")
    named = address or os.environ.get(ADDRESS_VARIABLE)
    if named:
        return _checked(named, "--address" if address else ADDRESS_VARIABLE)
    if (configured := _configured_socket(config)) is not None:
        return _of_socket(configured, "[server] socket")
    own = default_socket()
    return f"unix:{next((path for path in (own, DEFAULT_SOCKET) if _is_there(path)), own)}"


def socket_of(target: str) -> Path | None:
    """The Unix socket of a target; None where it is no socket."""
    return Path(target.removeprefix("unix:")) if target.startswith("unix:") else None


def _is_there(path: Path) -> bool:
    """Whether a socket is there, perhaps for others: to connect to it tells why it cannot be used."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _configured_socket(config: Path | None) -> Path | None:
    """The socket that the settings name; None where they leave it to the program."""
    named = look_up("server", "socket", config_file(config))
    return Path(named) if isinstance(named, str) and named else None


def _of_socket(path: Path, item: str) -> str:
    """The target of a socket; gRPC itself would log a too long one and then call the daemon unreachable."""
    length = len(os.fsencode(path.absolute()))
    if length > SOCKET_PATH_BYTES:
        raise SettingsError(f"is {length} bytes long; a Unix socket's path has at most {SOCKET_PATH_BYTES}", item=item)
    return f"unix:{path.absolute()}"


def _checked(address: str, item: str) -> str:
    if address.startswith("unix:"):
        return _of_socket(Path(address.removeprefix("unix:")), item)
    _host, colon, port = address.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise SettingsError(f"{address!r} is neither HOST:PORT nor unix:PATH", item=item)
    return address
