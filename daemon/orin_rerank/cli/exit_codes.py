"""Exit codes: the one place where an error becomes a number for the shell.

The numbers are those of BSD's sysexits.h where it has one that fits, and what shells and timeout(1) already use
elsewhere, so that a script can tell "try again later" from "this cannot work".
"""

from __future__ import annotations

import enum
from typing import Final

from orin_rerank.errors import DeviceLostError, ErrorKind, OrinRerankError, SettingsError, UnreachableError

__all__ = ["ExitCode", "exit_code_help", "exit_code_of"]


class ExitCode(enum.IntEnum):
    """What `orin-rerank` exits with."""

    OK = 0
    USAGE = 2
    BAD_INPUT = 65
    BAD_DATA = 66
    UNKNOWN_MODEL = 67
    UNREACHABLE = 68
    UNAVAILABLE = 69
    INTERNAL = 70
    DEVICE_LOST = 71
    OVERLOADED = 75
    UNHEALTHY = 78
    DEADLINE = 124
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_BY_KIND: Final = {
    ErrorKind.INVALID: ExitCode.BAD_INPUT,
    ErrorKind.NOT_FOUND: ExitCode.UNKNOWN_MODEL,
    ErrorKind.OVERLOADED: ExitCode.OVERLOADED,
    ErrorKind.UNAVAILABLE: ExitCode.UNAVAILABLE,
    ErrorKind.DEADLINE: ExitCode.DEADLINE,
    ErrorKind.DATA: ExitCode.BAD_DATA,
    ErrorKind.INTERNAL: ExitCode.INTERNAL,
}

_MEANINGS: Final = {
    ExitCode.OK: "done",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.BAD_INPUT: "a query or document cannot be used",
    ExitCode.BAD_DATA: "a file, data set, bundle or checkpoint is missing or damaged",
    ExitCode.UNKNOWN_MODEL: "no such model is served",
    ExitCode.UNREACHABLE: "no daemon answers",
    ExitCode.UNAVAILABLE: "the daemon cannot rerank now, or TensorRT is missing",
    ExitCode.INTERNAL: "a bug",
    ExitCode.DEVICE_LOST: "the GPU is lost to this process: start it again",
    ExitCode.OVERLOADED: "the daemon is busy, or memory or disk ran out: try again",
    ExitCode.UNHEALTHY: "doctor found something that does not work",
    ExitCode.DEADLINE: "out of time",
    ExitCode.INTERRUPTED: "interrupted",
}


def exit_code_of(error: OrinRerankError) -> ExitCode:
    """The exit code of an error: that of its kind, with three errors told apart further."""
    if isinstance(error, UnreachableError):
        return ExitCode.UNREACHABLE
    if isinstance(error, SettingsError):
        return ExitCode.USAGE
    if isinstance(error, DeviceLostError):
        return ExitCode.DEVICE_LOST
    return _BY_KIND[error.kind]


def exit_code_help() -> str:
    """All exit codes as an indented block for `--help`."""
    return "\n".join(f"    {code.value:>3}  {meaning}" for code, meaning in _MEANINGS.items())
