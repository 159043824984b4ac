"""Who may open what."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from orin_rerank.lifecycle.doctor.accounts import User, group_name


@pytest.mark.parametrize(
    ("mode", "uid", "gids", "may"),
    [
        (0o660, 1, {2}, True),  # the owner
        (0o660, 5, {2}, True),  # of the group
        (0o660, 5, {6}, False),
        (0o666, 5, {6}, True),
        (0o066, 1, {2}, False),  # the owner's bits count for the owner, whatever others may
        (0o640, 5, {2}, False),
        (0o000, 0, {0}, True),  # root
    ],
)
def test_permission_bits(tmp_path: Path, mode: int, uid: int, gids: set[int], *, may: bool) -> None:
    status = os.stat_result((0o100000 | mode, 1, 1, 1, 1, 2, 0, 0, 0, 0))  # owner 1, group 2
    assert User("x", uid, frozenset(gids)).may(6, status) is may


def test_users_of_this_machine() -> None:
    me = User.current()
    assert me.uid == os.geteuid()
    assert os.getegid() in me.gids
    named = User.named(pwd.getpwuid(0).pw_name)
    assert named is not None
    assert named.uid == 0
    assert 0 in named.gids
    assert User.named("nobody-of-that-name") is None
    assert group_name(0) == "root"
    assert group_name(3_999_999_999) == "3999999999"
