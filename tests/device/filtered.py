# ruff: noqa: T201
"""Runs a program under a unit's system call filter, where systemd does not run, and says what was refused.

    python tests/device/filtered.py --unit deploy/systemd/orin-rerank.service --report refused.json -- COMMAND ...

Where neither systemd-analyze nor libseccomp is, `--write FILE` elsewhere makes a filter and `--filter FILE` takes it.

What is not allowed comes to this process by the kernel's notifications (seccomp_unotify(2)), is noted and fails with
the error that systemd's filter would give it. So what a program meets is the same, and no call of any of its threads
or processes is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import re
import resource
import select
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from unit_filter import UnitFilter

if TYPE_CHECKING:
    from types import FrameType

_PARENT_DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 1, 38  # PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_RETURN, _REFUSE, _NOTIFY = 0x06, 0x00050001, 0x7FC00000
_INSTRUCTION: Final = struct.Struct("HBBI")

_NOTIFICATION: Final = struct.Struct("QIIiIQ6Q")
"""`struct seccomp_notif`: cookie, process, flags; number, architecture, instruction and arguments of the call."""
_ANSWER: Final = struct.Struct("QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
_NOT_STARTED: Final = 127

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(wanted: UnitFilter) -> int:
    """Puts this thread, and what it starts, under a filter for good.

    Returns:
        The descriptor at which refused calls are to be read and answered.
    """
    assert wanted.machine == os.uname().machine, f"a filter for {wanted.machine}"
    instructions = b"".join(
        _INSTRUCTION.pack(code, yes, no, _NOTIFY if (code, value) == (_RETURN, _REFUSE) else value)
        for code, yes, no, value in _INSTRUCTION.iter_unpack(wanted.program)
    )
    program = _Program(len(instructions) // _INSTRUCTION.size, instructions)
    if _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    number = _SECCOMP[wanted.machine]
    listener = _libc.syscall(number, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
    return int(listener)


class Refusals:
    """Answers refused calls, and notes them.

    Args:
        wanted: The filter.
        listener: What `install` gave.
    """

    def __init__(self, wanted: UnitFilter, listener: int) -> None:
        self._filter = wanted
        self._listener = listener
        self.calls: dict[str, dict[str, Any]] = {}

    def answer_all(self) -> None:
        """Answers until no process is left that is under the filter."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            events = [event for _, event in poll.poll()]
            if any(event & select.POLLIN for event in events):
                self._answer()
            elif events:  # hung up
                return

    def _answer(self) -> None:
        buffer = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, buffer)
        except FileNotFoundError:  # the caller was killed meanwhile
            return
        cookie, process, _, number, _, _, *arguments = _NOTIFICATION.unpack(buffer)
        name = self._filter.names.get(number, str(number))
        self._note(name, process, arguments)
        try:
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(cookie, 0, -self._filter.error_of(name), 0))
        except FileNotFoundError:  # likewise, or a signal came
            return

    def _note(self, name: str, process: int, arguments: list[int]) -> None:
        try:
            thread = Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip()
        except OSError:
            thread = "?"
        noted = self.calls.setdefault(name, {"count": 0, "threads": [], "arguments": []})
        noted["count"] += 1
        shown = " ".join(f"{argument:x}" for argument in arguments)
        for kind, value in (("threads", thread), ("arguments", shown)):
            if value not in noted[kind] and len(noted[kind]) < 8:
                noted[kind].append(value)


def _limit_locked(nbytes: int) -> None:
    """Limits what may be locked in memory; a negative number lifts the limit as far as this process may."""
    if nbytes < 0:
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return
        nbytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (nbytes, nbytes))


def _become(options: argparse.Namespace, wanted: UnitFilter, channel: socket.socket) -> None:
    """The new process: limits, user and filter as the unit has them, and then the program."""
    if options.memlock is not None:
        _limit_locked(options.memlock)
    if options.user is not None:
        user = pwd.getpwnam(options.user)
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)  # nobody else answers what it is refused
    listener = install(wanted)
    socket.send_fds(channel, [b"\0"], [listener])
    os.close(listener)
    os.execvp(options.command[0], options.command)


def run(options: argparse.Namespace, wanted: UnitFilter) -> dict[str, Any]:
    """Runs a program to its end.

    Returns:
        Its exit code, the bytes that it might lock in memory, and the calls that it and what it started were
        refused.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            _become(options, wanted, theirs)
        except BaseException:  # noqa: BLE001 - what follows ends this process whatever it is
            traceback.print_exc()
        finally:
            os._exit(_NOT_STARTED)
    theirs.close()

    def hand_on(number: int, _: FrameType | None) -> None:
        os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hand_on)
    _, listeners, *_ = socket.recv_fds(ours, 1, 1)
    refused: dict[str, Any] = {}
    limits = Path(f"/proc/{child}/limits").read_text(encoding="ascii")
    (limit,) = re.findall(r"^Max locked memory +(\S+)", limits, re.MULTILINE)
    if listeners:
        refusals = Refusals(wanted, listeners[0])
        refusals.answer_all()
        refused = refusals.calls
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"exit_code": code, "memlock": limit, "refused": refused}


def main() -> int:
    """Runs it; leaves with the program's exit code, or with 128 and the number of the signal that it ended by."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--unit", type=Path, help="whose filter is made")
    source.add_argument("--filter", type=Path, help="one that --write wrote")
    parser.add_argument("--write", type=Path, help="write the filter and do nothing else")
    parser.add_argument("--report", type=Path, help="where what was refused is written as JSON")
    parser.add_argument("--user", help="run as this user, without any capability")
    parser.add_argument("--memlock", type=int, help="bytes that may be locked in memory, -1 for as many as possible")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    wanted = UnitFilter.of_unit(options.unit) if options.unit is not None else UnitFilter.read(options.filter)
    if options.write is not None:
        wanted.write(options.write)
        return 0
    report = run(options, wanted)
    text = json.dumps(report, indent=1)
    if options.report is not None:
        options.report.write_text(text + "\n", encoding="utf-8")
    else:
        print(text, file=sys.stderr)
    code: int = report["exit_code"]
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
