"""Starts `orin-rerank serve` in a fresh folder, waits until it serves, and always stops it."""

from __future__ import annotations

import contextlib
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
_CALL_S = 60.0
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
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="orin-rerank-demo-"))
            self._journal = Path(folder) / "journal.log"
            socket = Path(folder) / "orin-rerank.sock"
            self._process = self._start(socket)
            stack.callback(_stop, self._process)
            self._wait_for(socket)
            self.client = stack.enter_context(DaemonClient(f"unix:{socket}", timeout_s=_CALL_S))
            self._wait_until_serving()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self, socket: Path) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).with_name("orin-rerank")), "serve", "--socket", str(socket)]
        if self._bundle is not None:
            command += ["--bundle", str(self._bundle)]
        self._deadline = time.monotonic() + self._start_s
        try:
            with self._journal.open("wb") as journal:
                # A session of its own: Ctrl-C reaches us alone, and we stop the daemon in an orderly way.
                return subprocess.Popen(command, stderr=journal, start_new_session=True)
        except OSError as error:
            raise DemoError(f"{command[0]} cannot be started: {error.strerror}") from error

    def _wait_for(self, socket: Path) -> None:
        """Waits for the socket: where there was none, gRPC takes its time until it tries again."""
        while not socket.exists():
            self._pause()

    def _wait_until_serving(self) -> None:
        detail = ""
        while True:
            status = self._status()
            if status is not None and status.detail != detail:
                detail = status.detail
                self._on_detail(detail)
            if status is not None and status.state == rerank_pb2.STATE_SERVING:
                return
            self._pause()

    def _pause(self) -> None:
        if self._process.poll() is not None:
            raise DemoError(f"the daemon ended with exit code {self._process.returncode}\n{self._journal_tail()}")
        if time.monotonic() > self._deadline:
            raise DemoError(f"the daemon does not serve after {self._start_s:.0f} s\n{self._journal_tail()}")
        time.sleep(_POLL_S)

    def _status(self) -> rerank_pb2.GetStatusResponse | None:
        try:
            return self.client.status()
        except UnreachableError:
            return None
        except OrinRerankError as error:
            raise DemoError(f"the daemon does not say how it is: {error}") from error

    def _journal_tail(self) -> str:
        """Why it ended, in its own words; else the end of its journal."""
        lines = self._journal.read_text(errors="replace").splitlines()
        said = [place for place, line in enumerate(lines) if line.startswith("orin-rerank: error: ")]
        return "\n".join(lines[said[-1] :] if said else ["the end of its journal:", *lines[-_JOURNAL_LINES:]])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks the daemon to end, and ends it if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
