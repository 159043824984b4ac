"""Starts `orin-rerank serve` in a fresh folder, waits until it serves, and always stops it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orin_rerank.cli.client import DaemonClient
from orin_rerank.errors import OrinRerankError, UnreachableError
from orin_rerank.v1 import rerank_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["DemoError", "RunningDaemon"]

_POLL_S = 0.05
_STOP_S = 30.0
_JOURNAL_LINES = 15


class DemoError(Exception):
    """The demonstration cannot go on; the message is for a person."""


class RunningDaemon:
    """A daemon of our own; a context manager that leaves neither process nor files behind.

    Args:
        bundle: The model bundle; None is the command's default.
        on_detail: Told what the daemon says it is doing, whenever that changes.
        start_s: How long it may take until it serves.
    """

    def __init__(self, bundle: Path | None, *, on_detail: Callable[[str], None], start_s: float = 120.0) -> None:
        self._bundle = bundle
        self._on_detail = on_detail
        self._start_s = start_s

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="orin-rerank-demo-")
        self.state_folder = Path(self._folder.name)
        self._journal = self.state_folder / "journal.log"
        socket = self.state_folder / "orin-rerank.sock"
        command = [str(Path(sys.executable).with_name("orin-rerank")), "serve", "--socket", str(socket)]
        if self._bundle is not None:
            command += ["--bundle", str(self._bundle)]
        try:
            with self._journal.open("wb") as journal:
                # A session of its own: Ctrl-C reaches us alone, and we stop the daemon in an orderly way.
                self._process = subprocess.Popen(command, stderr=journal, start_new_session=True)
        except OSError as error:
            self._folder.cleanup()
            raise DemoError(f"{command[0]} cannot be started: {error.strerror}") from error
        self.client = DaemonClient(f"unix:{socket}", timeout_s=60.0)
        try:
            self._wait(socket)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """The daemon's process."""
        return self._process.pid

    def _wait(self, socket: Path) -> None:
        deadline = time.monotonic() + self._start_s
        detail = ""
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise DemoError(f"the daemon ended with exit code {self._process.returncode}\n{self._journal_tail()}")
            # Until the socket is there a call would only teach gRPC to wait longer before it tries again.
            status = self._status() if socket.exists() else None
            if status is not None:
                if status.detail != detail:
                    detail = status.detail
                    self._on_detail(detail)
                if status.state == rerank_pb2.STATE_SERVING:
                    return
                if status.state == rerank_pb2.STATE_FAILED:
                    raise DemoError(f"the daemon failed: {status.detail}\n{self._journal_tail()}")
            time.sleep(_POLL_S)
        raise DemoError(f"the daemon does not serve after {self._start_s:.0f} s\n{self._journal_tail()}")

    def _status(self) -> rerank_pb2.GetStatusResponse | None:
        try:
            return self.client.status()
        except UnreachableError:
            return None
        except OrinRerankError as error:
            raise DemoError(f"the daemon does not say how it is: {error}") from error

    def _stop(self) -> None:
        self.client.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def _journal_tail(self) -> str:
        lines = self._journal.read_text(errors="replace").splitlines()
        return "\n".join(["the end of its journal:", *lines[-_JOURNAL_LINES:]])
