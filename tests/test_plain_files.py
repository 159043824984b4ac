"""Files and folders that others use, too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from orin_rerank.plain_files import holding, nearest_folder, read_plain_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    file, link, fifo = tmp_path / "file", tmp_path / "link", tmp_path / "fifo"
    file.write_bytes(b"12345")
    link.symlink_to(file)
    os.mkfifo(fifo)
    assert read_plain_file(file, 9) == b"12345"
    assert read_plain_file(file, 3) == b"123"
    assert read_plain_file(link, 9) == b"12345"
    assert read_plain_file(fifo, 9) is None  # nobody is waited for
    with pytest.raises(OSError, match="symbolic links"):
        read_plain_file(link, 9, follow=False)
    with pytest.raises(FileNotFoundError):
        read_plain_file(tmp_path / "none", 9)


def test_one_at_a_time_holds_a_folder(tmp_path: Path) -> None:
    with holding(tmp_path, 0) as first:
        assert first
        with holding(tmp_path, 0.05) as second:  # the lock is of the opened folder, so of this process, too
            assert not second
    with holding(tmp_path, 0) as again:
        assert again
    with pytest.raises(FileNotFoundError), holding(tmp_path / "none", 0):
        pass


def test_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    assert nearest_folder(tmp_path) == tmp_path
    assert nearest_folder(tmp_path / "a" / "b") == tmp_path
