"""The board's own programs, run so that they can neither ask nor hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import BoardBusyError, BoardError

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths

__all__ = ["Answer", "run_program"]

_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_END_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program did.

    Attributes:
        program: Its name.
        code: Its exit code; negative where a signal ended it.
        output: What it printed, standard error included.
    """

    program: str
    code: int
    output: str

    @property
    def gist(self) -> str:
        """The line that says most: the first error, else the last line, else the exit code."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines[-1:] or [f"exit code {self.code}"])[0]


def run_program(
    paths: BoardPaths,
    name: str,
    *arguments: str,
    timeout_s: float,
    answer: str | None = None,
    alone: bool = True,
    home: Path | None = None,
) -> Answer:
    """Runs one of the board's programs to its end.

    Args:
        paths: The board.
        name: The program.
        arguments: Its arguments.
        timeout_s: How long it may take; then it and what it started are killed.
        answer: What it reads; None closes its standard input, so that a question gets no answer.
        alone: Whether it gets no environment but a path; it runs as root.
        home: What it takes for a home folder, if it is alone; None gives it none.

    Raises:
        BoardError: If the board has no such program, or it cannot be run.
        BoardBusyError: If it does not end in time.
    """
    program = paths.program(name)
    if program is None:
        raise BoardError("this machine has no such program", item=name)
    environment = {"PATH": _PATH, "LC_ALL": "C", **({} if home is None else {"HOME": str(home)})}
    try:
        process = subprocess.Popen(  # noqa: S603 - the board's own program; arguments are ours
            [program, *arguments],
            stdin=subprocess.DEVNULL if answer is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment if alone else None,
            start_new_session=True,
        )
    except OSError as error:
        raise BoardError(f"cannot be run: {error.strerror}", item=str(program)) from None
    try:
        output, _ = process.communicate(answer, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        raise BoardBusyError(f"did not end within {timeout_s:g} s", item=name) from None
    except BaseException:
        _kill(process)
        raise
    return Answer(name, process.returncode, output)


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends a program and everything that it started, all of which hold its output open.

    One that hangs in the kernel, over a file whose driver does not answer, outlives even that, and is left to itself.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_END_S)
