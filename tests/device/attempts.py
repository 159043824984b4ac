# ruff: noqa: T201
"""Attempts system calls, and prints as JSON what became of each: the error's name, or "made".

Arguments are such that a call which gets through does nothing, or fails with another error than a filter's.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import socket
import sys
import tempfile
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {
    "x86_64": {"clone3": 435, "openat2": 437, "mbind": 237, "get_mempolicy": 239, "bpf": 321, "io_uring_setup": 425},
    "aarch64": {"clone3": 435, "openat2": 437, "mbind": 235, "get_mempolicy": 236, "bpf": 280, "io_uring_setup": 425},
}[platform.machine()]
_NEW_NAMESPACE = 0x00020000  # CLONE_NEWNS
_PLANT = 0o4644  # S_ISUID


def _call(name: str, *arguments: int) -> int:
    """A call of the C library's; one that it has no function for by its number."""
    if name in _NUMBERS:
        return int(_libc.syscall(_NUMBERS[name], *map(ctypes.c_long, arguments)))
    return int(getattr(_libc, name)(*map(ctypes.c_long, arguments)))


def attempt(name: str, *arguments: int) -> str:
    """What becomes of a call."""
    ctypes.set_errno(0)
    if _call(name, *arguments) >= 0:
        return "made"
    return errno.errorcode[ctypes.get_errno()]


def attempt_socket(family: int) -> str:
    """What becomes of a socket."""
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "made"


def main() -> int:
    """Attempts all of them."""
    with tempfile.TemporaryDirectory() as folder:
        plain, planted, made = (os.fsencode(Path(folder) / name) for name in ("plain", "planted", "made"))
        Path(os.fsdecode(plain)).touch()
        paths = [ctypes.c_char_p(path) for path in (plain, planted, made)]
        at_plain, at_planted, at_made = (ctypes.cast(path, ctypes.c_void_p).value or 0 for path in paths)
        create = os.O_CREAT | os.O_WRONLY
        found = {
            # What a program may do.
            "AF_UNIX": attempt_socket(socket.AF_UNIX),
            "AF_INET": attempt_socket(socket.AF_INET),
            "AF_INET6": attempt_socket(socket.AF_INET6),
            "chmod": attempt("chmod", at_plain, 0o600),
            "creat": attempt("open", at_made, create, 0o600),
            "mlock": attempt("mlock", at_plain & ~4095, 64),
            "getpriority": attempt("getpriority", 0, 0),
            "get_mempolicy": attempt("get_mempolicy", 0, 0, 0, 0, 0),
            "personality, the same": attempt("personality", 0),
            # Namespaces, other families, set-user-ID files, other personalities.
            "AF_NETLINK": attempt_socket(socket.AF_NETLINK),
            "AF_PACKET": attempt_socket(socket.AF_PACKET),
            "unshare": attempt("unshare", _NEW_NAMESPACE),
            "setns": attempt("setns", -1, 0),
            "clone3": attempt("clone3", 0, 0),
            "openat2": attempt("openat2", -1, 0, 0, 0),
            "chmod, set-user-ID": attempt("chmod", at_plain, _PLANT),
            "creat, set-user-ID": attempt("open", at_planted, create, _PLANT),
            "personality, another": attempt("personality", 0x0040000),
            # @privileged and @resources.
            "setuid": attempt("setuid", os.getuid()),
            "chown": attempt("chown", at_plain, os.getuid(), os.getgid()),
            "chroot": attempt("chroot", at_plain),
            "setpriority": attempt("setpriority", 0, 0, 0),
            "sched_setscheduler": attempt("sched_setscheduler", 0, 0, 0),
            "sched_setaffinity": attempt("sched_setaffinity", 0, 0, 0),
            "mbind": attempt("mbind", 0, 0, 0, 0, 0, 0),
            # In no group that is allowed.
            "mount": attempt("mount", 0, at_plain, 0, 0, 0),
            "ptrace": attempt("ptrace", 16, -1, 0, 0),
            "bpf": attempt("bpf", -1, 0, 0),
            "io_uring_setup": attempt("io_uring_setup", 0, 0),
            "klogctl": attempt("klogctl", 10, 0, 0),
            "sethostname": attempt("sethostname", at_plain, -1),
        }
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
