"""The archive for support."""

from __future__ import annotations

import json
import os
import stat
import tarfile
import time
from pathlib import Path

import pytest

from fakes.board import NX_16_SUPER
from lifecycle.doctor.places import board, context_of
from orin_rerank.board.paths import BoardPaths
from orin_rerank.errors import SettingsError
from orin_rerank.lifecycle.doctor.archive import CONTENTS, collect, write_archive
from orin_rerank.lifecycle.doctor.redaction import Redactor
from orin_rerank.lifecycle.first_boot.journal import Journal, Outcome
from orin_rerank.lifecycle.first_boot.progress import Step

JOURNALCTL = """#!/bin/sh
printf '%s\\n' "$@" > "$(dirname "$0")/../../fake/journalctl"
echo '2026-11-30T18:30:05+0000 orin-rerank[7]: serving at 192.168.7.7 for alice'
"""
REDACTOR = Redactor({"alice": "<user>"})
VALUES = {"doctor.json": {"checks": ["alice"]}, "board.json": {"board": {}}, "settings.json": {"server": {}}}


def with_journal(paths: BoardPaths) -> BoardPaths:
    program = paths.at("/usr/bin/journalctl")
    program.write_text(JOURNALCTL)
    program.chmod(0o755)
    return paths


def test_what_is_put_together(tmp_path: Path) -> None:
    paths, context = with_journal(board(tmp_path, NX_16_SUPER)), context_of(tmp_path)
    journal = Journal(context.state)
    journal.begin(Step.CALIBRATE, {"bundle": "/home/alice/bundle"})
    journal.end(Step.CALIBRATE, Outcome.DONE, "alice did it")
    files = collect(paths, context, REDACTOR, VALUES)
    assert set(files) == {"README.txt", *CONTENTS}
    assert all(f"  {name:<18}{what}\n" in files["README.txt"] for name, what in CONTENTS.items())
    assert "alice" not in "".join(files.values())
    assert json.loads(files["doctor.json"]) == {"checks": ["<user>"]}
    assert "POWER_MODEL" in files["nvpmodel.conf"]
    assert files["nv_tegra_release"].startswith("# R39 (release)")
    assert files["journal.txt"] == "2026-11-30T18:30:05+0000 orin-rerank[7]: serving at <ipv4> for <user>\n"
    asked = paths.at("/fake/journalctl").read_text().split()
    assert {"--no-hostname", "orin-rerank", "orin-rerank-board", "orin-rerank-board-again"} <= set(asked)
    versions = json.loads(files["versions.json"])
    assert (versions["orin-rerank"], versions["tensorrt"]) == ("0.1.0", "tensorrt 10.3.0")
    (bundle,) = json.loads(files["engines.json"])["engines"]
    assert (bundle["kind"], bundle["name"]) == ("bundle", "orin-rerank-mini")
    first_boot = json.loads(files["first-boot.json"])["steps"]["calibrate"]
    assert first_boot["key"] == {"bundle": "<home>"}
    assert first_boot["moment"]["boot_id"] in ("<id>", "")


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    context = context_of(tmp_path, bundle=None)
    files = collect(BoardPaths(tmp_path / "nothing"), context, REDACTOR, {})
    assert set(files) == {"README.txt", "engines.json", "versions.json"}
    assert "journal.txt" not in files["README.txt"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_root_is_not_led_out_of_the_daemons_folder(tmp_path: Path, kind: str) -> None:
    context = context_of(tmp_path, bundle=None)
    context.state.mkdir(exist_ok=True)
    (tmp_path / "shadow").write_text("root:$6$hush")
    if kind == "link":
        (context.state / "first-boot.json").symlink_to(tmp_path / "shadow")
    else:
        os.mkfifo(context.state / "first-boot.json")
    assert "first-boot.json" not in collect(BoardPaths(tmp_path / "nothing"), context, REDACTOR, {})


def test_the_same_contents_give_the_same_bytes(tmp_path: Path) -> None:
    files = {"b.json": "{}\n", "a.txt": "ä\n"}
    first, second = tmp_path / "support.tar.gz", tmp_path / "again" / "support.tar.gz"
    second.parent.mkdir()
    write_archive(first, files)
    time.sleep(1.1)  # gzip and tar have seconds
    write_archive(second, dict(reversed(files.items())))
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o600
    with tarfile.open(first) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == ["support/a.txt", "support/b.json"]
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o600)}
        text = archive.extractfile("support/a.txt")
        assert text is not None
        assert text.read() == "ä\n".encode()


def test_an_archive_replaces_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "support.tgz"
    target.write_text("older")
    write_archive(target, {"a": "b"})
    with tarfile.open(target) as archive:
        assert archive.getnames() == ["support/a"]
    assert [path.name for path in tmp_path.iterdir()] == ["support.tgz"]


@pytest.mark.parametrize("kind", ["link", "fifo", "device"])
def test_what_is_no_plain_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    target, other = tmp_path / "support.tgz", tmp_path / "other"
    other.write_text("kept")
    if kind == "link":  # as /dev/stdout is one
        target.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(target)
    elif os.geteuid() == 0:
        os.mknod(target, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # /dev/full
    else:
        target = Path("/dev/full")
    before = target.lstat()
    with pytest.raises(SettingsError, match="is there, and is no plain file; name another"):
        write_archive(target, {"a": "b"})
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert other.read_text() == "kept"


def test_a_place_that_takes_none(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--bundle .*cannot be written: No such file or directory"):
        write_archive(tmp_path / "missing" / "a.tar.gz", {"a": "b"})
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(SettingsError, match="is no plain file"):
        write_archive(folder, {"a": "b"})
    assert os.listdir(tmp_path) == ["folder"]  # noqa: PTH208


def test_a_journal_that_is_nested_too_deeply_is_a_text(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    (context.state / "first-boot.json").write_text("[" * 100_000)
    assert collect(board(tmp_path), context, Redactor({}), {})["first-boot.json"] == "[" * 100_000 + "\n"
