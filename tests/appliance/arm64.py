"""Builds the .deb for arm64, installs it with apt into an arm64 Debian or Ubuntu under qemu, ranks and tests there.

    python tests/appliance/arm64.py [--release jammy] [--arch amd64] [--mirror URL]

As root, on Debian or Ubuntu, with debootstrap, systemd-container and, for another processor than the machine's,
qemu-user-static. Making a root takes some minutes once; it is kept in build/systemd. Emulated, the rest takes minutes
as well, so no CI runs it: docs/appliance.md has figures.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from appliance.machine import Machine
from appliance.releases import HOST, RELEASES, Release, build_deb, emulate, install_tools, make_root

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build/systemd"

TESTS: Final = ("board", "config", "prompt", "packing", "telemetry/test_log.py", "telemetry/test_notify.py")
"""What computes nothing."""

NOT: Final = ("board/test_apart.py", "board/test_jtop.py", "board/test_tuning.py::test_a_program_that_hangs")
"""What gives processes a second or two to answer, which is not enough for a Python under qemu."""

INSTALL: Final = """
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
apt-get install --quiet=2 --yes /var/tmp/orin-rerank.deb >/var/tmp/apt.log 2>&1 || { cat /var/tmp/apt.log; exit 1; }
apt-get check --quiet=2
dpkg --verify orin-rerank
dpkg-query --show orin-rerank python3 python3-systemd systemd libc6
"""

SERVE: Final = """
set -e
install -d -o orin-rerank -g orin-rerank -m 750 /run/orin-rerank /var/lib/orin-rerank
setpriv --reuid=orin-rerank --regid=orin-rerank --init-groups --reset-env orin-rerank serve --precision full \
    --token-budget 128 --socket /run/orin-rerank/orin-rerank.sock 2>/var/tmp/journal &
seconds=0
until grep -q '"message": "serving"' /var/tmp/journal; do
    seconds=$((seconds + 1))
    if [ $seconds -gt 900 ] || ! kill -0 $!; then cat /var/tmp/journal; exit 1; fi
    sleep 1
done
orin-rerank rank --timeout 300 "fire engine" "text:a dog" "text:a red lorry with a ladder" "text:the moon at night"
orin-rerank doctor --json >/var/tmp/doctor.json || { cat /var/tmp/doctor.json; exit 1; }
python3 -c 'import json; print(len(json.load(open("/var/tmp/doctor.json"))["checks"]), "checks of doctor, none failed")'
kill $!
wait $!
"""
"""What orin-rerank.service does, where no systemd runs. Nothing fails for `doctor` while it serves."""


def main() -> None:
    """Runs it all, and says what took how long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=RELEASES, default="bookworm", help="of Debian or Ubuntu")
    parser.add_argument("--arch", choices=("arm64", "amd64"), default="arm64", help="Debian's name of the processor")
    parser.add_argument("--mirror", default=os.environ.get("MIRROR"), help="where its packages are; also as $MIRROR")
    options = parser.parse_args()
    release = RELEASES[options.release]
    missing: list[object] = [name for name in ("debootstrap", "systemd-nspawn") if shutil.which(name) is None]
    if os.geteuid() == 0 and options.arch != HOST:
        missing += emulate()
    if missing or os.geteuid() != 0:
        sys.exit(
            f"needs root and {', '.join(map(str, missing)) or 'nothing else'}: "
            "apt-get install --no-install-recommends debootstrap systemd-container qemu-user-static"
        )
    with _timed(f"{release.suite} for {options.arch}"):
        base = make_root(BUILD / f"{release.suite}-{options.arch}-2", release, options.arch, mirror=options.mirror)
    with _timed(".deb"):
        deb = build_deb(BUILD / f"{release.suite}-{options.arch}-deb", release, options.arch)
    folder = BUILD / f"{release.suite}-{options.arch}-{os.getpid()}"
    try:
        with Machine([base], folder) as machine:
            _check(machine, deb, release, options.arch)
    finally:
        shutil.rmtree(folder)


def _check(machine: Machine, deb: Path, release: Release, architecture: str) -> None:
    root = machine.root
    # The kernel's list of processors is that of the machine outside, over which libraries for arm64 stumble.
    hidden = ("sh", "-c", 'mount -t tmpfs none /sys/devices/system/cpu && exec "$@"', "sh")

    def run(*command: str) -> None:
        prefix = hidden if architecture != HOST else ()
        print(machine.run_while_off(*prefix, *command, timeout_s=1800).strip(), flush=True)

    shutil.copyfile(deb, root / "var/tmp/orin-rerank.deb")
    (root / "etc/dpkg/dpkg.cfg.d/test").write_text("force-unsafe-io\n")
    with _timed("apt-get update and install"):
        run("sh", "-c", INSTALL)
    for command in ("--version", "board show", "bundle verify"):
        with _timed(f"orin-rerank {command}"):
            run("orin-rerank", *command.split())
    with _timed("serve, rank and doctor"):
        run("sh", "-c", SERVE)
    source = root / "srv/orin-rerank"
    for name in ("tests", "engines", "calibration_data", "deploy"):
        shutil.copytree(ROOT / name, source / name)
    shutil.copyfile(ROOT / "pyproject.toml", source / "pyproject.toml")
    install_tools(root / "srv/tools", release, architecture)
    with _timed("tests"):
        tests = [*(f"tests/{name}" for name in TESTS), *(f"--deselect=tests/{name}" for name in NOT)]
        # The package under test is the installed one.
        path = "PYTHONPATH=/usr/lib/orin-rerank/site-packages:/srv/tools"
        command = f"{path} exec python3 -m pytest -q -p no:cacheprovider {' '.join(tests)}"
        run("sh", "-c", f"cd /srv/orin-rerank && {command}")


@contextlib.contextmanager
def _timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"== {what}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
