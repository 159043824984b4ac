"""The .deb without what pip brings: control data for every Python and processor, files, scripts."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_spec = importlib.util.spec_from_file_location("deb_build", ROOT / "deploy/deb/build.py")
assert _spec is not None
assert _spec.loader is not None
build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build)

PYTHONS = {"3.10": "3.10.6-1~22.04.1", "3.11": "3.11.2-1+b1", "3.12": "3.12.3-0ubuntu2"}
"""Versions of the package python3 in Ubuntu 22.04, Debian 12 and Ubuntu 24.04."""

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="there is no dpkg here")


@pytest.fixture(params=sorted(PYTHONS))
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tree(python: str, tmp_path: Path) -> Path:
    """What a package for arm64 holds beside wheels."""
    build.install_files(tmp_path / "tree", python)
    build.control(tmp_path / "tree", "1.2.3", "arm64", python)
    return tmp_path / "tree"


def fields(tree: Path) -> dict[str, str]:
    text = (tree / "DEBIAN/control").read_text()
    assert "@" not in text.replace("@example.invalid", "")
    return dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith(" "))


def meets(version: str, relation: str) -> bool:
    match = re.fullmatch(r"python3 \(([<>=]+) (\S+)\)", relation)
    assert match is not None, relation
    return subprocess.run(["dpkg", "--compare-versions", version, *match.groups()], check=False).returncode == 0


def test_every_python_that_the_project_supports_is_here() -> None:
    (wanted,) = re.findall(r'python_requires=">=3\.(\d+),<3\.(\d+)"', (ROOT / "setup.py").read_text())
    assert sorted(PYTHONS) == [f"3.{minor}" for minor in range(int(wanted[0]), int(wanted[1]))]
    documented = re.findall(r"make deb .*PYTHON=python(3\.\d+)`", (ROOT / "docs/appliance.md").read_text())
    assert sorted(documented) == sorted(PYTHONS)


@needs_dpkg
def test_it_depends_on_the_python_that_it_is_for_and_on_no_other(tree: Path, python: str) -> None:
    relations = [one for one in fields(tree)["Depends"].split(", ") if one.startswith("python3 ")]
    assert len(relations) == 2
    fitting = [name for name, version in PYTHONS.items() if all(meets(version, one) for one in relations)]
    assert fitting == [python]


def test_the_launcher_runs_that_python(tree: Path, python: str) -> None:
    launcher = tree / "usr/bin/orin-rerank"
    assert f"exec /usr/bin/python{python} /usr/lib/orin-rerank/main.py" in launcher.read_text()
    assert launcher.stat().st_mode & 0o777 == 0o755


@needs_dpkg
def test_dpkg_takes_it(tree: Path, python: str, tmp_path: Path) -> None:
    deb = tmp_path / "test.deb"
    build.run("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, deb)
    assert build.run("dpkg-deb", "--field", deb, "Architecture").strip() == "arm64"
    listed = build.run("dpkg-deb", "--contents", deb).splitlines()
    assert all(" root/root " in line for line in listed)
    assert not [line for line in listed if line[0] == "-" and line[:10] not in ("-rw-r--r--", "-rwxr-xr-x")]
    names = {line.split()[5].lstrip(".") for line in listed}
    assert names >= {
        "/etc/orin-rerank/config.toml",
        "/usr/bin/orin-rerank",
        "/usr/lib/sysusers.d/orin-rerank.conf",
        "/usr/lib/tmpfiles.d/orin-rerank.conf",
        "/usr/share/doc/orin-rerank/copyright",
        "/usr/share/orin-rerank/engines/mini/manifest.json",
        *(f"/lib/systemd/system/{unit.name}" for unit in (ROOT / "deploy/systemd").glob("*.*") if unit.suffix in
          (".service", ".path")),
    }  # fmt: skip


def test_links_lead_to_what_is_in_it(tree: Path) -> None:
    links = [path for path in tree.rglob("*") if path.is_symlink()]
    assert {link.name for link in links} == {"engines", "calibration_data"}
    assert all(link.resolve().is_relative_to(tree) and link.exists() for link in links)


@pytest.mark.parametrize("name", build.MAINTAINER_SCRIPTS)
def test_scripts_are_for_any_shell_and_do_nothing_unasked(name: str) -> None:
    script = ROOT / "deploy/deb" / name
    assert script.read_text().startswith("#!/bin/sh\nset -e\n")
    subprocess.run(["sh", "-n", script], check=True)
    if name != "postrm":  # which tells systemd of units that have changed, whatever the reason
        for reason in ("triggered", "upgrade", "failed-upgrade", "deconfigure"):
            subprocess.run(["/bin/sh", script, reason, "1.0"], check=True, env={"PATH": "/nowhere"})


def test_every_unit_that_is_enabled_is_there_and_can_be() -> None:
    text = (ROOT / "deploy/deb/postinst").read_text()
    (units,) = re.findall(r'^units="(.*)"$', text, re.MULTILINE)
    for unit in units.split():
        assert "WantedBy=multi-user.target" in (ROOT / "deploy/systemd" / unit).read_text()
        assert unit in (ROOT / "deploy/deb/postrm").read_text()
