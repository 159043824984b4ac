"""Builds orin-rerank's .deb: the package with all that it needs from PyPI, the mini model, units and settings.

    python3.10 deploy/deb/build.py --out dist [--arch arm64]

Everything that pip would install lies unpacked below /usr/lib/orin-rerank/site-packages, so installing needs no network
and no compiler, dpkg replaces and removes each file, and nothing of it mixes with the system's Python packages. What
must come from the board (TensorRT's bindings, of the release that its libraries have) is found behind it, in the
system's own folders. The wheels are of one Python, which is the one that runs this script, and one architecture, as the
.deb's dependencies say. pip fetches those of another architecture as well: a .deb for a Jetson can be built on a PC.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LIBRARY = "usr/lib/orin-rerank"
SHARE = "usr/share/orin-rerank"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
GLIBC = (28, 27, 26, 17)
"""Of the manylinux platforms whose wheels run on Ubuntu 22.04 and Debian 12."""

SOURCES = ("setup.py", "pyproject.toml", "README.md", "proto", "daemon")
"""What a wheel is built from; in a copy, since setuptools packs what earlier builds have left behind."""

NOT_NEEDED = (
    "bin",
    "onnx/backend/test",
    "numpy/**/tests/test_*.py",  # not all of the folders: numpy.testing of numpy 2.2 imports numpy._core.tests._natype
    "numpy/**/tests/data",
    "onnxruntime/transformers",
    "onnxruntime/tools",
)
"""Of what pip unpacks: scripts with this machine's paths in them, other projects' tests, tools to convert models."""

MAINTAINER_SCRIPTS = ("postinst", "prerm", "postrm")


def main() -> None:
    """Builds it and says where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the .deb")
    parser.add_argument("--arch", choices=MACHINES, default=_host_architecture(), help="Debian's name of the processor")
    parser.add_argument("--version", help="of the .deb; else the package's")
    options = parser.parse_args()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with tempfile.TemporaryDirectory(prefix="orin-rerank-deb-") as name:
        tree = Path(name) / "tree"
        wheels = Path(name) / "wheels"
        install_packages(tree / LIBRARY / "site-packages", wheels, options.arch, python)
        install_files(tree, python)
        version = options.version or package_version()
        control(tree, version, options.arch, python)
        options.out.mkdir(parents=True, exist_ok=True)
        deb = options.out / f"orin-rerank_{version}_{options.arch}_python{python}.deb"
        run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z9", "--build", tree, deb)
    print(f"{deb}: {deb.stat().st_size / 1e6:.0f} MB")


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Runs a command; its output is shown where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=env)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


def package_version() -> str:
    """The version that the package states."""
    text = (ROOT / "daemon/orin_rerank/__init__.py").read_text()
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert match is not None
    return match[1]


def install_packages(site: Path, wheels: Path, architecture: str, python: str) -> None:
    """Unpacks the package and its dependencies, as pip resolves them for the architecture."""
    source = wheels.with_name("source")
    for name in SOURCES:
        _copy_tree(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, source)
    wheel = next(wheels.glob("orin_rerank-*.whl"))
    machine = MACHINES[architecture]
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + [f"manylinux2014_{machine}"]
    run(
        *pip,
        "install",
        "--target",
        site,
        "--only-binary=:all:",
        f"--python-version={python}",
        "--implementation=cp",
        *(f"--platform={platform}" for platform in platforms),
        "--no-compile",
        wheel,
    )
    for pattern in NOT_NEEDED:
        for path in list(site.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    # Not at the first start: root's files would stay behind when the package goes, and /usr may be read-only. dpkg
    # replaces source and compiled code together, so Python need not compare them.
    compiled = compileall.compile_dir(
        site,
        quiet=1,
        stripdir=site.parents[3],
        prependdir="/",
        workers=0,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert compiled, "a package does not compile"


def install_files(tree: Path, python: str) -> None:
    """Puts the launcher, the mini model, data, units, settings and documents where they belong."""
    launcher = tree / "usr/bin/orin-rerank"
    launcher.parent.mkdir(parents=True)
    launcher.write_text((HERE / "orin-rerank").read_text().replace("@PYTHON@", python))
    launcher.chmod(0o755)
    _copy(HERE / "main.py", tree / LIBRARY / "main.py")
    shutil.copytree(ROOT / "engines/mini", tree / SHARE / "engines/mini", ignore=shutil.ignore_patterns("recipe"))
    shutil.copytree(ROOT / "calibration_data", tree / SHARE / "calibration_data")
    for name in ("engines", "calibration_data"):  # where a source tree has them, seen from the package
        (tree / LIBRARY / name).symlink_to(f"../../share/orin-rerank/{name}")
    units = ROOT / "deploy/systemd"
    for unit in (*units.glob("*.service"), *units.glob("*.path")):
        _copy(unit, tree / "lib/systemd/system" / unit.name)
    _copy(units / "orin-rerank.sysusers", tree / "usr/lib/sysusers.d/orin-rerank.conf")
    _copy(units / "orin-rerank.tmpfiles", tree / "usr/lib/tmpfiles.d/orin-rerank.conf")
    _copy(ROOT / "deploy/etc/config.toml", tree / "etc/orin-rerank/config.toml")
    documents = tree / "usr/share/doc/orin-rerank"
    for document in ("README.md", "NOTICE", "docs/appliance.md"):
        _copy(ROOT / document, documents / Path(document).name)
    (documents / "copyright").write_text((HERE / "copyright").read_text())
    with gzip.GzipFile(documents / "changelog.gz", "wb", mtime=0) as packed:
        packed.write((ROOT / "CHANGELOG.md").read_bytes())


def control(tree: Path, version: str, architecture: str, python: str) -> None:
    """Writes what dpkg reads."""
    folder = tree / "DEBIAN"
    folder.mkdir()
    size = sum(file.stat().st_size for file in tree.rglob("*") if file.is_file() and not file.is_symlink()) // 1024
    major, minor = (int(part) for part in python.split("."))
    text = (HERE / "control").read_text()
    for name, value in {
        "VERSION": version,
        "ARCHITECTURE": architecture,
        "SIZE": str(size),
        "PYTHON": python,
        "NEXT_PYTHON": f"{major}.{minor + 1}",
    }.items():
        text = text.replace(f"@{name}@", value)
    (folder / "control").write_text(text)
    (folder / "conffiles").write_text("/etc/orin-rerank/config.toml\n")
    for name in MAINTAINER_SCRIPTS:
        _copy(HERE / name, folder / name, 0o755)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _copy_tree(source: Path, target: Path) -> None:
    if source.is_file():
        _copy(source, target)
    else:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))


def _copy(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _host_architecture() -> str:
    return {machine: name for name, machine in MACHINES.items()}.get(os.uname().machine, "amd64")


if __name__ == "__main__":
    main()
