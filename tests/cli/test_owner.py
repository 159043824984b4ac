"""As root, what a command makes for the service is the service's user's."""

from __future__ import annotations

import json
import os
import pwd
from typing import TYPE_CHECKING

import pytest

from orin_rerank.cli.owner import become_owner

if TYPE_CHECKING:
    from pathlib import Path

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def in_child(folder: Path, made: str) -> dict[str, object]:
    """What a process is after `become_owner`, and who owns what it makes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(folder)  # the folders above are root's alone
        name = become_owner(folder)
        os.close(os.open(made, os.O_CREAT | os.O_WRONLY))
        answer = {"name": name, "ids": os.getresuid() + os.getresgid(), "home": os.environ["HOME"]}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer_of:
        value: dict[str, object] = json.loads(answer_of.read())
    os.waitpid(child, 0)
    return value


@root_only
def test_root_becomes_the_owner_for_good(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chown(tmp_path, nobody.pw_uid, nobody.pw_gid)
    value = in_child(tmp_path, "made")
    assert value == {"name": "nobody", "ids": [nobody.pw_uid] * 3 + [nobody.pw_gid] * 3, "home": nobody.pw_dir}
    assert (tmp_path / "made").stat().st_uid == nobody.pw_uid


@root_only
def test_what_is_root_s_own_stays_so(tmp_path: Path) -> None:
    assert in_child(tmp_path, "made")["name"] is None
    assert become_owner(tmp_path / "not-there") is None


@root_only
def test_an_owner_without_a_name_is_nobody_to_become(tmp_path: Path) -> None:
    os.chown(tmp_path, 54321, 54321)
    assert become_owner(tmp_path) is None
