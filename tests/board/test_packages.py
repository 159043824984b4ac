"""Whether packages are being installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from orin_rerank.board.packages import LOCKS, are_changing
from orin_rerank.board.paths import BoardPaths

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_that_another_holds(tmp_path: Path, lock: str) -> None:
    paths = BoardPaths(tmp_path)
    assert not are_changing(paths)  # a system without dpkg
    file = paths.at(lock)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o640)
    assert not are_changing(paths)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert are_changing(paths)
        assert are_changing(paths)  # to ask takes no lock, and leaves none
        other.communicate()
    assert not are_changing(paths)
