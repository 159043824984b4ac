"""The .deb, a Debian with it in it, and machines that start from that."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from appliance.installed import APP, STRANGER
from appliance.machine import MISSING, RELEASE, Machine, make_base
from appliance.releases import build_deb

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/systemd"


@pytest.fixture(scope="session", autouse=True)
def _can_run():
    """These tests are asked for by name, so what they need is demanded rather than their absence passed over."""
    if os.geteuid() != 0:
        pytest.fail("needs root: machines are containers that mount file systems and run a systemd of their own")
    if MISSING:
        pytest.fail(
            f"needs {', '.join(MISSING)}: apt-get install --no-install-recommends systemd-container debootstrap dpkg"
        )


@pytest.fixture(scope="session")
def folder(_can_run):
    """Where machines write; not below /tmp, which may be memory."""
    path = BUILD / f"run-{os.getpid()}"
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def debian(_can_run):
    """A Debian, or an Ubuntu, as debootstrap leaves it."""
    return make_base(BUILD)


@pytest.fixture(scope="session")
def deb(folder):
    """The package, built from this tree, or the one that ORIN_RERANK_DEB names."""
    named = os.environ.get("ORIN_RERANK_DEB")
    if named:
        return Path(named)
    return build_deb(folder / "deb", RELEASE)


@pytest.fixture(scope="session")
def plain(debian, folder):
    """Layers of a machine that has users, and knows nothing of the package."""
    with Machine([debian], folder / "plain") as machine:
        machine.write("/etc/dpkg/dpkg.cfg.d/test", "force-unsafe-io\n")  # thousands of files, each synced to disk
        users = "".join(f"u {user} - - /home/{user} -\n" for user in (APP, STRANGER))
        machine.write("/etc/sysusers.d/test.conf", f"{users}m {APP} orin-rerank\n")
        homes = "".join(f"d /home/{user} 0700 {user} {user} -\n" for user in (APP, STRANGER))
        machine.write("/etc/tmpfiles.d/test.conf", homes)
        machine.run_while_off("systemd-sysusers")
    return [machine.written, debian]


@pytest.fixture(scope="session")
def installed(plain, deb, folder):
    """Layers of a machine into which the package was installed while it was off, as into an image; never booted."""
    with Machine(plain, folder / "installed") as machine:
        shutil.copyfile(deb, machine.root / "var/tmp/orin-rerank.deb")
        machine.run_while_off("dpkg", "--install", "/var/tmp/orin-rerank.deb")
        (machine.root / "var/tmp/orin-rerank.deb").unlink()
    return [machine.written, *plain]


@pytest.fixture
def machine(installed, folder, request):
    """A machine that has never been booted, with the package in it."""
    path = folder / request.node.name
    with Machine(installed, path) as made:
        yield made
    shutil.rmtree(path)
