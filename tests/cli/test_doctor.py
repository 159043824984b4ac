"""`orin-rerank doctor` as a person meets it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from cli.conftest import COMMAND, TESTS, environment, orin_rerank
from fakes.board import BOARDS, NX_16, NX_16_SUPER, BoardSpec, make_board, make_pc

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
NVIDIA = str(TESTS / "cli" / "fake_nvidia")


def variables(root: Path, **changes: str) -> dict[str, str]:
    return {
        "ORIN_RERANK_BOARD_ROOT": str(root),
        "ORIN_RERANK_STATE": str(root / "state"),
        "ORIN_RERANK_ADDRESS": f"unix:{root}/daemon.sock",
        "ORIN_RERANK_BUNDLE": str(TESTS.parent / "engines" / "mini"),
        **changes,
    }


def a_board(root: Path, spec: BoardSpec) -> Path:
    paths = make_board(root, spec)
    for name in ("/dev/nvmap", "/dev/nvhost-gpu"):
        paths.at(name).parent.mkdir(exist_ok=True)
        paths.at(name).touch()
    return root


def test_a_pc(tmp_path: Path) -> None:
    make_pc(tmp_path)
    done = orin_rerank("doctor", **variables(tmp_path, COLUMNS="100"))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[:3] == ["board", "    ok  module          Some PC: no Jetson", lines[2]]
    assert "  warn  socket" in done.stdout
    assert "$ orin-rerank serve" in done.stdout
    assert lines[-1].endswith("checks: 1 warning")


def test_a_board_without_a_gpu_fails(tmp_path: Path) -> None:
    done = orin_rerank("doctor", **variables(a_board(tmp_path, NX_16)))
    assert done.returncode == 78
    assert "  FAIL  TensorRT        not installed for this Python" in done.stdout
    assert "$ sudo apt install python3-libnvinfer" in done.stdout
    assert "`orin-rerank doctor --bundle FILE` packs this" in done.stdout


def test_json(tmp_path: Path) -> None:
    done = orin_rerank("doctor", "--json", **variables(a_board(tmp_path, NX_16), PYTHONPATH=NVIDIA))
    value = json.loads(done.stdout)
    assert done.returncode == 0
    assert value["healthy"]
    assert value["fail"] == 0
    checks = {one["check"]: one for one in value["checks"]}
    assert checks["power mode"] == {
        "subject": "power and clocks",
        "check": "power mode",
        "verdict": "warn",
        "finding": "15W, though it should be MAXN, the fastest",
        "remedy": None,
        "command": "sudo orin-rerank board apply",
    }
    assert checks["CUDA"]["verdict"] == checks["TensorRT"]["verdict"] == "ok"
    assert checks["plans"]["command"] == "orin-rerank build"


def test_a_daemon_that_serves(daemon: Path, tmp_path: Path) -> None:
    make_pc(tmp_path)
    done = orin_rerank("doctor", "--json", **variables(tmp_path, ORIN_RERANK_ADDRESS=f"unix:{daemon}"))
    checks = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0
    assert checks["socket"]["verdict"] == checks["state"]["verdict"] == "ok"
    assert checks["state"]["finding"].startswith("serving by ")


def test_settings_that_are_wrong_are_a_finding(tmp_path: Path) -> None:
    make_pc(tmp_path)
    file = tmp_path / "config.toml"
    file.write_text("[server]\nmax_document = 1\n")
    done = orin_rerank("doctor", "--config", str(file), "--json", **variables(tmp_path))
    assert done.returncode == 78
    checks = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert checks["settings"]["finding"].endswith(
        ":2: unknown key max_document in [server]; did you mean max_documents?"
    )


def test_an_address_that_is_none_keeps_nothing_from_being_looked_at(tmp_path: Path) -> None:
    make_pc(tmp_path)
    for wrong in ("unix:/" + "x" * 200, "nonsense"):
        done = orin_rerank("doctor", "--json", **variables(tmp_path, ORIN_RERANK_ADDRESS=wrong))
        assert done.returncode == 78
        checks = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
        assert checks["settings"]["finding"].startswith("ORIN_RERANK_ADDRESS: ")
    assert orin_rerank("doctor", "--address", "nonsense", **variables(tmp_path)).returncode == 2


def test_an_archive_for_support(tmp_path: Path) -> None:
    root = a_board(tmp_path / "board", NX_16_SUPER)
    (root / "etc/hostname").write_text("press-room-3")
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef")
    (root / "proc/device-tree/serial-number").write_text("1422222012345")
    config = tmp_path / "config.toml"
    config.write_text('[server]\ntcp = "box.example.net:50051"\n[model]\nstate = "/home/carol/engines"\n')
    target = tmp_path / "support.tar.gz"
    done = orin_rerank(
        "doctor", "--bundle", str(target), "--config", str(config), cwd=tmp_path, **variables(root, PYTHONPATH=NVIDIA)
    )
    assert done.returncode == 0
    assert "Look through it before you pass it on." in done.stdout
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]
    assert list(texts) == sorted(texts)
    assert set(texts) >= {f"support/{name}" for name in ("README.txt", "board.json", "doctor.json", "settings.json")}
    for identifying in ("press-room-3", "0123456789abcdef0123456789abcdef", "1422222012345", "box.example", "carol"):
        assert identifying not in "".join(texts.values())
    settings = json.loads(texts["support/settings.json"])
    assert settings["server"]["tcp"]["value"] == "<host>:50051"
    assert settings["model"]["state"]["value"] == "<home>"
    assert json.loads(texts["support/board.json"])["mode"]["name"] == "40W"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, as sudo gives it")
def test_an_archive_belongs_to_who_called_sudo(tmp_path: Path) -> None:
    make_pc(tmp_path)
    target = tmp_path / "support.tar.gz"
    done = orin_rerank("doctor", "--bundle", str(target), **variables(tmp_path, SUDO_UID="65534", SUDO_GID="65533"))
    assert done.returncode == 0
    status = target.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (65534, 65533, 0o600)


def test_an_archive_that_cannot_be_written(tmp_path: Path) -> None:
    make_pc(tmp_path)
    done = orin_rerank("doctor", "--bundle", str(tmp_path / "missing" / "a.tar.gz"), **variables(tmp_path))
    assert done.returncode == 2
    assert "a.tar.gz: cannot be written: No such file or directory" in done.stderr


@pytest.mark.parametrize("spec", BOARDS[::2], ids=lambda spec: spec.key)
def test_it_fits_a_terminal_of_80_columns(tmp_path: Path, spec: BoardSpec) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "doctor"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**environment(TERM="xterm"), **variables(a_board(tmp_path, spec), PYTHONPATH=NVIDIA, COLUMNS="80")},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            break
        shown += piece
    os.close(ours)
    assert process.wait(60) == 0
    lines = ESCAPES.sub("", shown.decode()).replace("\r\n", "\n").splitlines()
    assert max(len(line) for line in lines) <= 80
    commands = [line.strip() for line in lines if line.strip().startswith("$ ")]
    assert "$ sudo orin-rerank board apply" in commands  # none is broken into lines
