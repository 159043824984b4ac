"""The system call filter that systemd makes of a unit, for machines on which systemd does not run.

Groups such as `@system-service` are systemd's, and differ a little by release: `systemd-analyze` says what is in them
here. libseccomp, with which systemd makes its filters too, makes the program. That may then be carried to another
machine with a processor of the same kind.
"""

from __future__ import annotations

import ctypes
import json
import platform
import re
import socket
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from pathlib import Path
from typing import Final

__all__ = ["UnitFilter"]

_LIBRARY: Final = "libseccomp.so.2"
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | EPERM
_EQUAL, _MASKED = 4, 7
_NAMESPACES: Final = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and, for clone3 and unshare, NEWTIME."""
_SET_ID: Final = stat.S_ISUID | stat.S_ISGID
_CREATE: Final = 0o100

_CONSTANT: Final = {
    "AmbientCapabilities": {""},
    "CapabilityBoundingSet": {""},
    "LockPersonality": {"yes"},
    "NoNewPrivileges": {"yes"},
    "RestrictNamespaces": {"yes"},
    "RestrictRealtime": {"yes"},
    "RestrictSUIDSGID": {"yes"},
    "SystemCallArchitectures": {"native"},
    "SystemCallErrorNumber": {"EPERM"},
}
"""Settings that make or change a filter, with the one value that is understood here. Realtime scheduling has to be
refused by the list of calls, and `Protect...` by the list and by missing capabilities."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """`argument & mask == value`; without a mask the whole argument."""

    argument: int
    value: int
    mask: int | None = None


class _ScmpArgument(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class UnitFilter:
    """A filter.

    Attributes:
        machine: The kind of processor that its numbers are of.
        systemd: The release whose groups it was made of.
        program: Instructions for `PR_SET_SECCOMP`. What is not allowed fails with EPERM.
        names: Of the system calls by their numbers.
        errors: What a refused call fails with, where that is not EPERM.
    """

    machine: str
    systemd: str
    program: bytes
    names: dict[int, str]
    errors: dict[str, int]

    @classmethod
    def of_unit(cls, unit: Path) -> UnitFilter:
        """Makes that of a unit file.

        Raises:
            ValueError: If the unit sets what is not understood here.
        """
        settings = _settings(unit)
        for name, values in _CONSTANT.items():
            found = settings.get(name, [])
            if not set(found) <= values or (name.startswith(("Restrict", "Lock", "System")) and not found):
                raise ValueError(f"{unit}: {name}={found}: only {values} is understood")
        if settings.get("MemoryDenyWriteExecute", ["no"]) != ["no"]:
            raise ValueError(f"{unit}: MemoryDenyWriteExecute is not understood")
        allowed = _allowed(settings["SystemCallFilter"])
        if "sched_setscheduler" in allowed:
            raise ValueError(f"{unit}: RestrictRealtime with sched_setscheduler allowed is not understood")
        families = [getattr(socket, name) for name in settings["RestrictAddressFamilies"][0].split()]
        library = ctypes.CDLL(_LIBRARY)
        return cls(
            platform.machine(),
            _analyze("--version").split()[1],
            _compiled(library, allowed, _conditions(families)),
            _names(library),
            {"clone3": ENOSYS, "openat2": ENOSYS, "socket": EAFNOSUPPORT},
        )

    @classmethod
    def read(cls, file: Path) -> UnitFilter:
        """Reads what `write` wrote."""
        stored = json.loads(file.read_text(encoding="ascii"))
        names = {int(number): name for number, name in stored["names"].items()}
        return cls(stored["machine"], stored["systemd"], bytes.fromhex(stored["program"]), names, stored["errors"])

    def write(self, file: Path) -> None:
        """Writes it into a file."""
        stored = {name: getattr(self, name) for name in ("machine", "systemd", "names", "errors")}
        file.write_text(json.dumps({**stored, "program": self.program.hex()}) + "\n", encoding="ascii")

    def error_of(self, name: str) -> int:
        """What a refused call fails with."""
        return self.errors.get(name, EPERM)


def _analyze(*arguments: str) -> str:
    """What `systemd-analyze` says."""
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=True).stdout


def _settings(unit: Path) -> dict[str, list[str]]:
    """A unit's settings, each with its values in order."""
    settings: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"(\w+)=(.*)", line.strip()):
            settings.setdefault(found[1], []).append(found[2].strip())
    return settings


def _allowed(lines: list[str]) -> set[str]:
    """Names of what an allow list comes to; lines that begin with ~ take away from what comes before them."""
    allowed = _members("@default")
    for line in lines:
        named = {name for item in line.removeprefix("~").split() for name in _members(item)}
        allowed = allowed - named if line.startswith("~") else allowed | named
    return allowed


def _members(name: str) -> set[str]:
    """A system call's name, or those of a group."""
    if not name.startswith("@"):
        return {name}
    lines = [line.strip() for line in _analyze("syscall-filter", name).splitlines()[1:]]
    return {member for line in lines if line and not line.startswith("#") for member in _members(line)}


def _conditions(families: list[int]) -> dict[str, list[list[_Comparison]]]:
    """Of calls that are allowed with some arguments only: each list of comparisons allows a call by itself.

    As `RestrictAddressFamilies`, `RestrictNamespaces`, `RestrictSUIDSGID` and `LockPersonality` have it. No filter can
    look into structures that lie in memory, so clone3 and openat2 do as if they were not there; libraries use the
    older calls then.
    """

    def no_set_id(argument: int) -> list[list[_Comparison]]:
        return [[_Comparison(argument, 0, _SET_ID)]]

    no_namespace = [[_Comparison(0, 0, _NAMESPACES)]]
    return {
        "socket": [[_Comparison(0, family)] for family in families],
        "clone": no_namespace,
        "unshare": no_namespace,
        "setns": [],
        "clone3": [],
        "openat2": [],
        "personality": [[_Comparison(0, 0)]],
        **{name: no_set_id(1) for name in ("chmod", "fchmod", "mkdir", "mknod", "creat")},
        **{name: no_set_id(2) for name in ("fchmodat", "fchmodat2", "mkdirat", "mknodat")},
        "open": [[_Comparison(1, 0, _CREATE)], [_Comparison(1, _CREATE, _CREATE), *no_set_id(2)[0]]],
        "openat": [[_Comparison(2, 0, _CREATE)], [_Comparison(2, _CREATE, _CREATE), *no_set_id(3)[0]]],
    }


def _compiled(library: ctypes.CDLL, allowed: set[str], conditions: dict[str, list[list[_Comparison]]]) -> bytes:
    """The filter's program for this processor."""
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_REFUSE)))
    assert context.value, "libseccomp makes no filter"
    for name in sorted(allowed):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # of another kind of processor, or newer than this library
            continue
        for rule in conditions.get(name, [[]]):
            compared = (_ScmpArgument * len(rule))(*map(_as_scmp, rule))
            code = library.seccomp_rule_add_array(context, ctypes.c_uint32(_ALLOW), number, len(rule), compared)
            assert code == 0, f"libseccomp takes no rule for {name}: {code}"
    with tempfile.TemporaryFile() as file:
        assert library.seccomp_export_bpf(context, file.fileno()) == 0
        library.seccomp_release(context)
        file.seek(0)
        return file.read()


def _as_scmp(comparison: _Comparison) -> _ScmpArgument:
    if comparison.mask is None:
        return _ScmpArgument(comparison.argument, _EQUAL, comparison.value, 0)
    return _ScmpArgument(comparison.argument, _MASKED, comparison.mask, comparison.value)


def _names(library: ctypes.CDLL) -> dict[int, str]:
    """Names of this processor's system calls."""
    library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_char_p
    library.seccomp_arch_native.restype = ctypes.c_uint32
    native = ctypes.c_uint32(library.seccomp_arch_native())
    found = {number: library.seccomp_syscall_resolve_num_arch(native, number) for number in range(600)}
    return {number: name.decode() for number, name in found.items() if name is not None}
