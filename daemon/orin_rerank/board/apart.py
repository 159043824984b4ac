"""Foreign libraries apart: in a process of their own, which may crash, hang, and print what it likes.

The process tells what it has found as lines of JSON, each when it is known; so one that dies tells how far it came.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Told", "run_apart", "tell_and_leave"]


@dataclass(frozen=True, slots=True)
class Told:
    """What a process told.

    Attributes:
        values: What it found, in the order in which it was told.
        problem: How it ended, if it did not end well: `ended by signal 11`.
        started: Whether it could be started.
    """

    values: tuple[dict[str, Any], ...]
    problem: str | None = None
    started: bool = True


def run_apart(module: str, *arguments: str, timeout_s: float) -> Told:
    """Calls the function `run` of a module of ours in another process, with this process's Python and packages.

    Args:
        module: Such as `orin_rerank.board.jtop`; its `run` calls `tell_and_leave`.
        arguments: What it finds in `sys.argv[1:]`.
        timeout_s: How long it may take; then it and what it started are killed.
    """
    # Without the folder that somebody happens to be in: root may call from anywhere.
    code = f"import sys; sys.path[:] = filter(None, sys.path); from {module} import run; run()"
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell, and no argument that came from outside
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return Told((), f"could not be started: {error.strerror}", started=False)
    problem = None
    try:
        output, _ = process.communicate(timeout=timeout_s)
        if process.returncode != 0:
            how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
            problem = f"ended by {how}"
    except subprocess.TimeoutExpired:
        problem = f"did not end within {timeout_s:g} s"
        _kill(process)
        output, _ = process.communicate()
    except BaseException:
        _kill(process)
        process.communicate()
        raise
    whole = output[: output.rfind(b"\n") + 1]  # it may have died over its last line
    return Told(tuple(json.loads(line) for line in whole.splitlines()), problem)


def tell_and_leave(find: Callable[[Callable[[dict[str, Any]], None]], None]) -> None:
    """What the process does: finds, tells, and ends, whatever its libraries would like to do at the end.

    Args:
        find: Is given the function that tells.
    """
    # Only our lines may reach our reader.
    handle = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(value: dict[str, Any]) -> None:
        handle.write(json.dumps(value) + "\n")
        handle.flush()

    find(tell)
    os._exit(0)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
