"""Another Python on a machine: the one of JetPack's Ubuntu, which no Debian has, in the place of Debian's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from appliance.machine import Machine

__all__ = ["UBUNTU", "find_python", "give_python"]

UBUNTU: Final = {"3.10": "3.10.6-1~22.04.1", "3.12": "3.12.3-0ubuntu2"}
"""Versions of the package python3 in Ubuntu 22.04 and 24.04, which JetPack 6 and 7 are made from."""

_NOT_NEEDED: Final = ("test", "idlelib", "tkinter", "site-packages", "__pycache__", "*.a")


def find_python(version: str) -> Path | None:
    """An interpreter that was built from source, so that it can be taken along with its folder.

    Args:
        version: Such as `3.10`.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = [*pyenv.glob(f"{version}.*/bin/python{version}"), Path(f"/usr/local/bin/python{version}")]
    return next((python for python in found if python.exists()), None)


def give_python(machine: Machine, version: str, python: Path) -> None:
    """Takes Debian's Python from a machine that is off, and gives it another, which dpkg takes for Ubuntu's."""
    known = machine.run_while_off("dpkg-query", "--show", "--showformat=${Package}\\n", "*python3*").split()
    machine.run_while_off("dpkg", "--purge", *known)
    home = f"opt/python{version}"
    folder = python.resolve().parents[1]
    shutil.copytree(
        folder, machine.root / home, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_NEEDED, f"config-{version}-*")
    )
    (machine.root / f"usr/bin/python{version}").symlink_to(f"/{home}/bin/{python.name}")
    machine.write("/etc/ld.so.conf.d/python.conf", f"/{home}/lib\n")
    machine.run_while_off("ldconfig")
    package = machine.root / "var/tmp/python3"
    (package / "DEBIAN").mkdir(parents=True)
    control = (
        f"Package: python3\nVersion: {UBUNTU[version]}\nArchitecture: all\nMaintainer: test <test@example.invalid>\n"
    )
    (package / "DEBIAN/control").write_text(control + "Description: stands for Ubuntu's\n")
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", package, package.with_suffix(".deb")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    machine.run_while_off("dpkg", "--install", "/var/tmp/python3.deb")
