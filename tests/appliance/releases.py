"""Releases that the .deb is for: their roots, and the .deb and tools for the Python of each.

A root for another processor than this machine's needs qemu-user-static, by which the kernel then runs its programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.pythons import find_python

__all__ = ["HOST", "RELEASES", "Release", "build_deb", "emulate", "install_tools", "make_root"]

ROOT: Final = Path(__file__).resolve().parents[2]
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
HOST: Final = {machine: name for name, machine in MACHINES.items()}.get(os.uname().machine, "amd64")
"""Debian's name of this machine's processor."""

QEMU: Final = Path("/usr/bin/qemu-aarch64-static")
BINFMT: Final = Path("/proc/sys/fs/binfmt_misc")
REGISTRATION: Final = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")

TOOLS: Final = ("pytest", "pytest-asyncio", "hypothesis", "typing_extensions")


@dataclass(frozen=True)
class Release:
    """A release of Debian or Ubuntu.

    Attributes:
        suite: Its code name, such as `jammy`.
        python: Version of its Python, such as `3.10`.
        mirrors: Where its packages are, by processor.
        script: How debootstrap makes it, as one of its scripts is named, where the release may be younger than that.
    """

    suite: str
    python: str
    mirrors: dict[str, str]
    script: str | None = None


_DEBIAN: Final = dict.fromkeys(MACHINES, "http://deb.debian.org/debian")
_UBUNTU: Final = {"amd64": "http://archive.ubuntu.com/ubuntu", "arm64": "http://ports.ubuntu.com/ubuntu-ports"}

RELEASES: Final = {
    release.suite: release
    for release in (
        Release("bookworm", "3.11", _DEBIAN),
        Release("jammy", "3.10", _UBUNTU, "gutsy"),  # 22.04, which JetPack 6 is made from
        Release("noble", "3.12", _UBUNTU, "gutsy"),  # 24.04, which JetPack 7 is made from
    )
}


def make_root(
    folder: Path, release: Release, architecture: str = HOST, *, packages: str = "", mirror: str | None = None
) -> Path:
    """Makes a root with what is essential, apt and some packages, if it is not there yet; it takes minutes.

    Args:
        folder: The root.
        release: What it is of.
        architecture: `amd64` or `arm64`.
        packages: What more shall be in it, with commas between.
        mirror: Where packages come from; else the release's own.

    Returns:
        The folder.
    """
    if folder.is_dir():
        return folder
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    source = [mirror or release.mirrors[architecture], *([release.script] if release.script else [])]
    options = [f"--arch={architecture}", "--variant=minbase", *([f"--include={packages}"] if packages else [])]
    if architecture == HOST:
        _run("debootstrap", *options, release.suite, part, *source)
    else:
        _run("debootstrap", "--foreign", *options, release.suite, part, *source)
        shutil.copy2(QEMU, part / QEMU.relative_to("/"))
        # It mounts /proc there, which is not to stay.
        _run("unshare", "--mount", "chroot", part, "/debootstrap/debootstrap", "--second-stage")
    part.rename(folder)
    return folder


def build_deb(out: Path, release: Release, architecture: str = HOST) -> Path:
    """Builds the package from this tree for a release's Python; `out` holds nothing else afterwards."""
    shutil.rmtree(out, ignore_errors=True)
    _run(_venv(release), ROOT / "deploy/deb/build.py", "--out", out, "--arch", architecture)
    (deb,) = out.iterdir()
    return deb


def install_tools(target: Path, release: Release, architecture: str = HOST) -> None:
    """Puts pytest into a folder of a root, from outside: it knows no package index, and pip under qemu takes long."""
    platforms = [f"--platform=manylinux_2_{minor}_{MACHINES[architecture]}" for minor in (28, 17)]
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--target", target)
    _run(_venv(release), *pip, "--only-binary=:all:", *platforms, *TOOLS)


def emulate() -> list[Path]:
    """Has the kernel run arm64 programs with qemu; returns what is missing for that, and does nothing then."""
    missing = [file for file in (QEMU, REGISTRATION) if not file.exists()]
    if missing:
        return missing
    if not (BINFMT / "register").exists():
        _run("mount", "-t", "binfmt_misc", "none", BINFMT)
    if not (BINFMT / "qemu-aarch64").exists():
        # The kernel takes one line at a write, without an end of line.
        line = next(line for line in REGISTRATION.read_text().splitlines() if line.startswith(":"))
        (BINFMT / "register").write_text(line)
    return []


def _venv(release: Release) -> Path:
    """An interpreter of the release's version: pip goes by the one that runs it when it looks what a wheel needs."""
    version = release.python
    folder = ROOT / f"build/systemd/python{version}"
    if not (folder / "bin/pip").exists():
        own = f"{sys.version_info.major}.{sys.version_info.minor}" == version
        python = Path(sys.base_prefix) / f"bin/python{version}" if own else find_python(version)
        if python is None:
            sys.exit(f"needs a Python {version} that was built from source, such as pyenv's")
        _run(python, "-m", "venv", "--clear", folder)
    return folder / "bin/python"


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
