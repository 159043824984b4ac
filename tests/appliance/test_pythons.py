"""The .debs for JetPack's Pythons: built as the documents say, and run by an interpreter of that version alone."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from appliance.installed import APP, DAEMON, drop_in, main_pid, rank, wait_for_state
from appliance.machine import RELEASE, Machine
from appliance.pythons import UBUNTU, find_python, give_python

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=sorted(UBUNTU))
def version(request):
    return request.param


@pytest.fixture(scope="module")
def deb_of(version, folder):
    """The package for this processor and that Python, and the interpreter that it was built with."""
    if RELEASE.python in UBUNTU:
        pytest.skip(f"{RELEASE.suite} has such a Python of its own")
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here that was built from source, such as pyenv's")
    out = folder / f"deb-{version}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    subprocess.run(
        ["make", "--no-print-directory", "deb", f"PYTHON={python}", f"DEB_ARGS=--out {out}"],
        check=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    (built,) = out.iterdir()
    assert built.name.endswith(f"_python{version}.deb")
    return built, python


@pytest.fixture(scope="module")
def machine(version, deb_of, plain, folder):
    """A machine with that Python and no other, into which the package was installed while it was off."""
    deb, python = deb_of
    path = folder / f"python-{version}"
    with Machine(plain, path) as made:
        give_python(made, version, python)
        shutil.copyfile(deb, made.root / "var/tmp/package.deb")
        made.run_while_off("dpkg", "--install", "/var/tmp/package.deb")
        drop_in(made, DAEMON, "test", "[Service]\nEnvironment=ORIN_RERANK__ENGINE__PRECISION=full\n")
        made.boot()
        yield made
    shutil.rmtree(path)


def test_it_serves(machine, version):
    status = wait_for_state(machine)
    assert (status["model"]["name"], status["problems"]) == ("orin-rerank-mini", [])
    interpreter = machine.run("readlink", f"/proc/{main_pid(machine)}/exe").strip()
    assert interpreter == f"/opt/python{version}/bin/python{version}"
    results = json.loads(rank(machine, APP).stdout)["results"]
    assert results[0]["index"] == 0
    assert machine.property_of(DAEMON, "NRestarts") == "0"
    assert machine.run("systemctl", "--failed", "--no-legend") == ""


def test_its_commands_run(machine):
    assert "0." in machine.run("orin-rerank", "--version")
    machine.run("orin-rerank", "bundle", "verify")
    machine.run("orin-rerank", "config", "check")
    report = json.loads(machine.run("orin-rerank", "doctor", "--json"))  # fails where anything does
    assert report["healthy"]
    machine.run("orin-rerank", "plan", "--help")


def test_what_lies_in_the_folder_that_one_is_in_takes_no_part(machine):
    """Python 3.10 knows no PYTHONSAFEPATH."""
    machine.run("sh", "-c", "mkdir -p /tmp/trap && for m in json numpy orin_rerank; do echo 'raise SystemExit(99)' "
                ">/tmp/trap/$m.py; done")  # fmt: skip
    machine.run("sh", "-c", "cd /tmp/trap && orin-rerank bundle verify && orin-rerank doctor --json")


def test_its_package_names_the_python_that_it_is_for(machine, version):
    wanted = machine.run("dpkg-query", "--show", "--showformat=${Depends}", "orin-rerank")
    assert f"python3 (>= {version})" in wanted
    assert machine.run("dpkg", "--verify", "orin-rerank") == ""
    # Every library that a wheel links to is there.
    script = (
        "find /usr/lib/orin-rerank -name '*.so*' -type f -exec ldd {} + 2>/dev/null | grep 'not found' | sort -u; true"
    )
    missing = machine.run("sh", "-c", script)
    assert missing == ""
