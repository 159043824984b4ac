"""Whether packages are being installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fakes.locks import locked_by_another
from orin_rerank.board.packages import LOCKS, are_changing
from orin_rerank.board.paths import BoardPaths

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_that_another_holds(tmp_path: Path, lock: str) -> None:
    paths = BoardPaths(tmp_path)
    assert not are_changing(paths)  # a system without dpkg
    file = paths.at(lock)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o640)
    assert not are_changing(paths)
    with locked_by_another(file):
        assert are_changing(paths)
        assert are_changing(paths)  # to ask takes no lock, and leaves none
    assert not are_changing(paths)
