"""The daemon: its settings, its socket, and what it says of itself."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING, Final

from orin_rerank.board.module import identify_board
from orin_rerank.engines.settings import DeviceChoice
from orin_rerank.lifecycle.doctor.finding import Check, Finding, Verdict, fail, ok, warn
from orin_rerank.lifecycle.doctor.reach import installed_unit
from orin_rerank.lifecycle.first_boot.journal import Journal, Outcome
from orin_rerank.lifecycle.first_boot.progress import Step

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context

__all__ = ["CHECKS"]

_SUBJECT: Final = "daemon"
_READ_AND_WRITE: Final = 6
_CONNECT_S: Final = 2.0
_LOOKED_AT: Final = (Step.BOARD, Step.POWER_MODE, Step.CLOCKS)
"""Have checks of their own, which look at what is so now."""
_TAKEN_AGAIN: Final = {step.value for step in Step if step not in (*_LOOKED_AT, Step.LOAD, Step.WAIT)}
"""Those of a daemon that `prepare` takes again."""
_NOT_DONE: Final = (Outcome.FAILED, Outcome.REFUSED)


def check_settings(_: BoardPaths, context: Context) -> Finding:
    """Whether the settings are right."""
    if context.settings_problem is not None:
        if context.settings_file is not None:
            _check_readable(context.settings_file)
        file = "" if context.settings_file is None else f" {context.settings_file}"
        return fail(context.settings_problem, "the daemon does not start with this", f"orin-rerank config check{file}")
    return ok("defaults; there is no settings file" if context.settings_file is None else f"{context.settings_file}")


def _check_readable(file: Path) -> None:
    """Raises PermissionError where it is the caller alone who may not read the settings."""
    try:
        file.open("rb").close()
    except PermissionError:
        raise
    except OSError:
        return


def check_socket(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether the daemon's socket is there, and whether the caller may connect."""
    return None if context.socket is None else _socket(paths, context, context.socket)


def _socket(paths: BoardPaths, context: Context, file: Path) -> Finding:
    try:
        status = file.lstat()
    except PermissionError:
        return _not_for(context, file.parent)
    except OSError:
        return _absent(paths, f"{file} is not there: no daemon runs")
    if not stat.S_ISSOCK(status.st_mode):
        return fail(f"{file} is no socket", "remove it; the daemon leaves alone what is not its own", f"ls -l {file}")
    if not context.caller.may(_READ_AND_WRITE, status):
        return _not_for(context, file)
    if (problem := _connect(file)) is not None:
        return _absent(paths, f"{file}: {problem}")
    return ok(f"{file}, mode {stat.S_IMODE(status.st_mode):04o}, group {context.group_name(status.st_gid)}")


def check_state(paths: BoardPaths, context: Context) -> Finding | None:
    """What the daemon says of itself; on a Jetson also whether it quietly computes on the processor."""
    answer = context.daemon
    if answer.state is None:
        return _silent(paths, context)
    if answer.state == "failed":
        return fail(f"failed: {answer.detail}", "its journal says more", "journalctl -b -u orin-rerank")
    if not answer.serving:
        return warn(f"{answer.state}: {answer.detail}", "wait, and ask again", "orin-rerank status --watch")
    if answer.version != context.version:
        return warn(
            f"version {answer.version} runs, {context.version} is installed",
            command="sudo systemctl restart orin-rerank",
        )
    on = f"serving by {answer.engine} in {answer.precision}"
    if identify_board(paths).is_jetson and context.engine.device is DeviceChoice.AUTO and "cpu" in answer.engine:
        return warn(f"{on}: not on the GPU", answer.engine_reason or None, "orin-rerank status")
    return ok(on)


def _silent(paths: BoardPaths, context: Context) -> Finding | None:
    """A daemon that says nothing; None where `check_socket` tells why."""
    if context.socket is None:
        return _absent(paths, context.daemon.detail)
    if _connect(context.socket) is not None:
        return None
    return fail(context.daemon.detail, "it hangs, or is no orin-rerank", "sudo systemctl restart orin-rerank")


def check_preparation(_: BoardPaths, context: Context) -> Finding | None:
    """Whether a step of preparing this machine failed, or was refused."""
    problems, _others = _reported(context)
    entries = Journal(context.state).entries
    if context.daemon.state is None:
        problems = [
            f"{step.value}: {entry.text}"
            for step, entry in entries.items()
            if step not in _LOOKED_AT and entry.outcome in _NOT_DONE
        ]
    if problems:
        return warn(
            "; ".join(problems),
            "after what it says is done, with the daemon stopped",
            context.as_root("orin-rerank prepare --again"),
        )
    done = [step.value for step, entry in entries.items() if entry.outcome is Outcome.DONE]
    return ok(f"done: {', '.join(done)}") if done else None


def _absent(paths: BoardPaths, text: str) -> Finding:
    """No daemon: a failure where it is installed as a service, else somebody has not started it."""
    installed = installed_unit(paths)
    command = "systemctl status orin-rerank" if installed else "orin-rerank serve"
    return Finding(Verdict.FAIL if installed else Verdict.WARN, text, None, command)


def _not_for(context: Context, place: Path) -> Finding:
    user = context.caller.name
    try:
        group = context.group_name(place.stat().st_gid)
    except OSError:
        group = "orin-rerank"
    return fail(
        f"{user} may not connect: not in the group {group} of {place}",
        "then log in again",
        f"sudo usermod -aG {group} {user}",
    )


def _connect(file: Path) -> str | None:
    """Why nobody answers; None if somebody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(os.fsencode(file))
        except OSError as error:
            return f"nobody answers ({error.strerror or error})"
    return None


def check_problems(_: BoardPaths, context: Context) -> Finding | None:
    """What else the daemon says is not as it should be."""
    _steps, others = _reported(context)
    return warn("; ".join(others), "the daemon says so", "orin-rerank status") if others else None


def _reported(context: Context) -> tuple[list[str], list[str]]:
    """The daemon's problems: those of steps that are taken again, and the rest."""
    steps, others = list[str](), list[str]()
    for problem in context.daemon.problems:
        (steps if problem.partition(":")[0] in _TAKEN_AGAIN else others).append(problem)
    return steps, others


CHECKS: Final = (
    Check(_SUBJECT, "settings", check_settings),
    Check(_SUBJECT, "socket", check_socket),
    Check(_SUBJECT, "state", check_state),
    Check(_SUBJECT, "preparation", check_preparation),
    Check(_SUBJECT, "problems", check_problems),
)
