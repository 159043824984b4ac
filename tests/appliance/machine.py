"""A machine with a systemd of its own, in a container: booted, cut off, booted again.

The root is a Debian, or the Ubuntu that SUITE names, that debootstrap makes once, below an overlay that takes what a
test writes. So every test has a fresh machine, and what it wrote is still there after a reboot, as on a disk.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.releases import RELEASES, make_root

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["MISSING", "RELEASE", "Machine", "make_base"]

RELEASE: Final = RELEASES[os.environ.get("SUITE", "bookworm")]
PACKAGES: Final = "systemd,systemd-sysv,dbus,procps,python3,python3-systemd,util-linux"
TOOLS: Final = ("debootstrap", "systemd-nspawn", "nsenter", "setpriv")

_POWER_OFF: Final = signal.SIGRTMIN + 4
_BOOT_S: Final = 60.0

_numbers = itertools.count(1)

MISSING: Final = [tool for tool in TOOLS if shutil.which(tool) is None]
"""Programs that this test needs and the machine lacks."""


def make_base(folder: Path) -> Path:
    """Makes the root that machines start from, if it is not there yet; it takes a minute, and the network."""
    return make_root(folder / f"{RELEASE.suite}-1", RELEASE, packages=PACKAGES, mirror=os.environ.get("MIRROR"))


class Machine:
    """One machine.

    Args:
        layers: Trees that it starts from, the topmost first: what `make_base` made, below it what other machines wrote.
            They are not changed.
        folder: Where what the machine writes goes.
    """

    def __init__(self, layers: Sequence[Path], folder: Path) -> None:
        self._folder = folder
        self.root = folder / "root"
        self.written = folder / "upper"
        for name in ("root", "upper", "work"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        below = ":".join(map(str, layers))
        options = f"lowerdir={below},upperdir={self.written},workdir={folder}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.root], check=True)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Machine:  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.cut_power()
        subprocess.run(["umount", self.root], check=True)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Writes a file of the machine."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def read(self, path: str) -> str:
        """Reads a file of the machine."""
        if self._process is None:
            return (self.root / path.lstrip("/")).read_text()
        return self.run("cat", path)

    def boot(self) -> None:
        """Boots it, and waits until services start."""
        assert self._process is None
        log = (self._folder / "console.log").open("ab")
        # Whatever ends the tests ends the machine: nspawn hands this on as a wish to be shut down.
        command = ["setpriv", "--pdeathsig=TERM", "systemd-nspawn", "-D", self.root, "--register=no", "--keep-unit"]
        command += ["--private-network", "--boot"]
        command.append(f"--machine=orin-rerank-{os.getpid()}-{next(_numbers)}")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )
        log.close()
        wait_until(self._is_up, _BOOT_S, "the machine has not booted")

    def _is_up(self) -> bool:
        # Not `is-system-running`: that waits for services which take their time to get ready.
        return self.try_run("systemctl", "is-active", "basic.target", "dbus.service").stdout.split() == ["active"] * 2

    @property
    def _leader(self) -> str | None:
        """Process number of the machine's own process 1."""
        assert self._process is not None
        assert self._process.poll() is None, f"the machine is off: {self.console[-2000:]}"
        found = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=False)
        return found.stdout.split()[0] if found.stdout.split() else None

    @property
    def console(self) -> str:
        """What the machine has said on its console."""
        return (self._folder / "console.log").read_text(errors="replace")

    def try_run(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command in the machine, as root."""
        leader = self._leader
        if leader is None:
            return subprocess.CompletedProcess(command, 255, "", "no process 1 yet")
        enter = ["nsenter", f"--target={leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"]
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root", **(env or {})}
        assignments = [f"{key}={value}" for key, value in variables.items()]
        return subprocess.run(
            [*enter, "env", "-i", *assignments, *command],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """The same; returns what it printed, and fails where it fails."""
        done = self.try_run(*command, env=env)
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def as_user(self, user: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the machine as one of its users, with nothing of root's environment."""
        who = ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env")
        return self.try_run(*who, *command)

    def run_while_off(self, *command: str, timeout_s: float = 300.0) -> str:
        """Runs a command in the machine's tree while it is off, as whoever makes an image of it does."""
        assert self._process is None
        enter = ["systemd-nspawn", "-D", self.root, "--register=no", "--keep-unit", "--pipe", "--quiet", "--as-pid2"]
        done = subprocess.run(
            [*enter, *command], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=timeout_s
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def property_of(self, unit: str, name: str) -> str:
        """A property of a unit, such as `ActiveState`."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).strip()

    def journal(self, unit: str) -> str:
        """What a unit has said since the machine booted."""
        return self.run("journalctl", "--boot", "--no-pager", "--output=cat", "--unit", unit)

    def entries(self, unit: str) -> list[dict[str, str]]:
        """The same with every field."""
        lines = self.run("journalctl", "--boot", "--no-pager", "--output=json", "--all", "--unit", unit).splitlines()
        return [json.loads(line) for line in lines]

    def power_off(self) -> None:
        """Shuts it down in order."""
        leader = self._leader
        assert leader is not None
        os.kill(int(leader), _POWER_OFF)
        self.wait_off()

    def wait_off(self, timeout_s: float = 60.0) -> None:
        """Waits until it is off, as after a reboot of its own: booting again is up to the caller."""
        assert self._process is not None
        self._process.wait(timeout_s)
        self._process = None

    @property
    def is_off(self) -> bool:
        """Whether it has gone off by itself."""
        return self._process is None or self._process.poll() is not None

    def cut_power(self) -> None:
        """Ends every process of it at once."""
        if self._process is None:
            return
        if self._process.poll() is None:
            children = subprocess.run(
                ["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=False
            ).stdout.split()
            for child in children:  # the machine's process 1, whose end the kernel makes the end of all its others
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def reboot(self) -> None:
        """Shuts it down and boots it again."""
        self.power_off()
        self.boot()


def wait_until(holds: Callable[[], bool], timeout_s: float, problem: str) -> None:
    """Waits for something to hold."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, problem
        time.sleep(0.2)
