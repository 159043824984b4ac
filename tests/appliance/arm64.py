"""Builds the .deb for arm64, installs it into an arm64 Debian under qemu, and runs tests of the pure parts there.

    python tests/appliance/arm64.py

As root, on Debian or Ubuntu, with debootstrap and qemu-user-static. Making the Debian takes some minutes once; it is
kept in build/systemd. Emulated, the rest takes minutes as well, so no CI runs it: docs/appliance.md has figures.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from appliance.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build/systemd"
QEMU: Final = Path("/usr/bin/qemu-aarch64-static")
BINFMT: Final = Path("/proc/sys/fs/binfmt_misc")
REGISTRATION: Final = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
SUITE: Final = "bookworm"
PACKAGES: Final = "python3,systemd,adduser"

TESTS: Final = ("board", "config", "prompt", "packing", "telemetry/test_log.py", "telemetry/test_notify.py")
"""What computes nothing."""

NOT: Final = ("board/test_apart.py", "board/test_jtop.py", "board/test_tuning.py::test_a_program_that_hangs")
"""What gives processes a second or two to answer, which is not enough for a Python under qemu."""


def main() -> None:
    """Runs it all, and says what took how long."""
    missing = [name for name in ("debootstrap",) if shutil.which(name) is None]
    missing += [str(file) for file in (QEMU, REGISTRATION) if not file.exists()]
    if missing or os.geteuid() != 0:
        sys.exit(
            f"needs root and {', '.join(missing) or 'nothing else'}: "
            "apt-get install --no-install-recommends debootstrap qemu-user-static"
        )
    _register()
    with _timed("Debian for arm64"):
        base = _base()
    with _timed(".deb for arm64"):
        deb = _deb()
    folder = BUILD / f"arm64-{os.getpid()}"
    try:
        with Machine([base], folder) as machine:
            _check(machine, deb)
    finally:
        shutil.rmtree(folder)


def _check(machine: Machine, deb: Path) -> None:
    root = machine.root

    def run(*command: str) -> None:
        # The kernel's list of processors is that of the machine outside, over which libraries for arm64 stumble.
        hidden = ("sh", "-c", 'mount -t tmpfs none /sys/devices/system/cpu && exec "$@"', "sh")
        print(machine.run_while_off(*hidden, *command, timeout_s=1800).strip(), flush=True)

    shutil.copyfile(deb, root / "var/tmp/orin-rerank.deb")
    (root / "etc/dpkg/dpkg.cfg.d/test").write_text("force-unsafe-io\n")
    with _timed("dpkg --install"):
        run("dpkg", "--install", "/var/tmp/orin-rerank.deb")
    with _timed("orin-rerank --version"):
        run("orin-rerank", "--version")
    with _timed("orin-rerank board show"):
        run("orin-rerank", "board", "show")
    with _timed("orin-rerank bundle verify"):
        run("orin-rerank", "bundle", "verify")
    source = root / "srv/orin-rerank"
    for name in ("tests", "engines", "calibration_data", "deploy"):
        shutil.copytree(ROOT / name, source / name)
    shutil.copyfile(ROOT / "pyproject.toml", source / "pyproject.toml")
    _install_pytest(root / "srv/tools")
    with _timed("tests"):
        tests = [*(f"tests/{name}" for name in TESTS), *(f"--deselect=tests/{name}" for name in NOT)]
        # The package under test is the installed one.
        path = "PYTHONPATH=/usr/lib/orin-rerank/site-packages:/srv/tools"
        command = f"{path} exec python3 -m pytest -q -p no:cacheprovider {' '.join(tests)}"
        run("sh", "-c", f"cd /srv/orin-rerank && {command}")


def _install_pytest(target: Path) -> None:
    """From outside: pip under qemu takes its time, and the tree knows no package index."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--target", target]
    machine = ["--only-binary=:all:", "--platform=manylinux_2_28_aarch64", "--platform=manylinux_2_17_aarch64"]
    subprocess.run([*pip, *machine, "pytest", "pytest-asyncio", "hypothesis", "typing_extensions"], check=True)


def _base() -> Path:
    base = BUILD / f"{SUITE}-arm64-1"
    if base.is_dir():
        return base
    part = BUILD / f".{base.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    first = ["debootstrap", "--arch=arm64", "--variant=minbase", "--foreign", f"--include={PACKAGES}", SUITE, part]
    subprocess.run(first, check=True, stdout=subprocess.DEVNULL)
    shutil.copy2(QEMU, part / QEMU.relative_to("/"))
    # It mounts /proc there, which is not to stay.
    second = ["unshare", "--mount", "chroot", part, "/debootstrap/debootstrap", "--second-stage"]
    subprocess.run(second, check=True, stdout=subprocess.DEVNULL)
    part.rename(base)
    return base


def _deb() -> Path:
    """For the Debian's Python, which has to be the one that runs this."""
    out = BUILD / "arm64-deb"
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run(
        [sys.executable, ROOT / "deploy/deb/build.py", "--out", out, "--arch", "arm64", *sys.argv[1:]], check=True
    )
    (deb,) = out.iterdir()
    return deb


def _register() -> None:
    """Tells the kernel to run arm64 programs with qemu, if it does not know."""
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", BINFMT], check=True)
    if not (BINFMT / "qemu-aarch64").exists():
        # The kernel takes one line at a write, without an end of line.
        line = next(line for line in REGISTRATION.read_text().splitlines() if line.startswith(":"))
        (BINFMT / "register").write_text(line)


@contextlib.contextmanager
def _timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"== {what}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
