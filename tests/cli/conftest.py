"""A daemon to talk to, and the command line as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orin_rerank.cli.client import DaemonClient
from orin_rerank.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parents[1]
COMMAND = str(Path(sys.executable).with_name("orin-rerank"))


def environment(**changes: str) -> dict[str, str]:
    """The environment of a person at a shell, with nothing set for us."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ORIN_RERANK_")}
    return {**kept, "COLUMNS": "100", "NO_COLOR": "1", **changes}


def orin_rerank(
    *arguments: str, cwd: Path | None = None, stdin: bytes = b"", **changes: str
) -> subprocess.CompletedProcess[str]:
    """Runs the console script."""
    done = subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        timeout=60,
        env=environment(**changes),
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def running(folder: Path, load: str = "ok") -> Iterator[Path]:
    """The daemon with the fake model, which may `hang` while it loads; yields its socket once it answers."""
    socket = folder / "daemon.sock"
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "fakes" / "daemon_main.py"), str(socket), "--drain", "2", "--load", load],
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while not (socket.exists() and _answers(socket, load)):
            assert process.poll() is None, "the daemon ended"
            assert time.monotonic() < deadline, "the daemon does not answer"
            time.sleep(0.05)
        yield socket
    finally:
        process.terminate()
        process.wait(30)


def _answers(socket: Path, load: str) -> bool:
    try:
        with DaemonClient(f"unix:{socket}", timeout_s=5) as client:
            return load != "ok" or bool(client.status().model.name)
    except UnreachableError:
        return False


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a daemon that serves the fake model."""
    with running(tmp_path_factory.mktemp("daemon")) as socket:
        yield socket
