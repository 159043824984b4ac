"""Which module a tree stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fakes.board import BOARDS, NANO_8, NX_16, BoardSpec, make_board, make_pc
from orin_rerank.board.module import MODULES, Release, identify_board
from orin_rerank.board.paths import BoardPaths

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_every_board_is_recognised(tmp_path: Path, spec: BoardSpec) -> None:
    board = identify_board(make_board(tmp_path, spec))
    assert board.kind is not None
    assert board.kind.key == spec.key.removesuffix("-super")
    assert board.part == spec.part
    assert board.super_mode == spec.part.endswith("-super")
    assert board.is_jetson
    assert board.model == spec.model
    assert (board.cores, board.memory_bytes) == (spec.cores, spec.memory_kib * 1024)
    assert board.kind.tpcs == spec.tpcs
    assert board.doubt is None


@pytest.mark.parametrize(
    ("text", "release", "jetpack", "supported"),
    [
        ("# R39 (release), REVISION: 2.1, GCID: 1, BOARD: generic", Release(39, 2, 1), "7.2", True),
        ("# R36 (release), REVISION: 4.7", Release(36, 4, 7), "6.1 or 6.2", True),
        ("# R36 (release), REVISION: 5", Release(36, 5), "6.2", True),
        ("# R36 (release), REVISION: 3.0", Release(36, 3), "6.0", False),
        ("# R35 (release), REVISION: 6.1", Release(35, 6, 1), "5.1", False),
        ("# R40 (release), REVISION: 1.0", Release(40, 1), None, True),
    ],
)
def test_release(tmp_path: Path, text: str, release: Release, jetpack: str | None, supported: bool) -> None:
    paths = make_board(tmp_path, NANO_8)
    paths.at("/etc/nv_tegra_release").write_text(text)
    found = identify_board(paths).release
    assert found == release
    assert (found.jetpack, found.supported) == (jetpack, supported)


@pytest.mark.parametrize("text", ["", "nonsense", "# R36 (release)", "\0\0"])
def test_a_release_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    paths = make_board(tmp_path, NANO_8)
    paths.at("/etc/nv_tegra_release").write_text(text)
    assert identify_board(paths).release is None


def test_memory_tells_modules_of_one_number_apart(tmp_path: Path) -> None:
    """p3701-0000 is sold with 32 GB and with 64."""
    paths = make_board(tmp_path, BOARDS[0])
    paths.at("/proc/device-tree/compatible").write_text("nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0")
    paths.at("/proc/meminfo").write_text("MemTotal:       31300000 kB\n")
    board = identify_board(paths)
    assert board.kind is MODULES["p3701-0004"]
    assert board.doubt is not None
    assert "29.9 GiB" in board.doubt


def test_too_many_cores_are_a_doubt(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    paths.at("/sys/devices/system/cpu/present").write_text("0-11")
    board = identify_board(paths)
    assert board.kind is not None
    assert board.doubt == f"p3767-0000 is {board.kind.name} with 8 cores, but the system has 12"


def test_an_unknown_module_is_a_jetson_all_the_same(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    paths.at("/proc/device-tree/compatible").write_text("nvidia,p3768-0000+p3767-0099\0nvidia,tegra234\0")
    board = identify_board(paths)
    assert board.is_jetson
    assert board.kind is None
    assert board.doubt == "the module p3767-0099 is not known"


def test_a_pc_is_none(tmp_path: Path) -> None:
    board = identify_board(make_pc(tmp_path))
    assert not board.is_jetson
    assert (board.kind, board.release, board.model, board.cores) == (None, None, "Some PC", 16)


def test_an_empty_root_is_no_error(tmp_path: Path) -> None:
    board = identify_board(BoardPaths(tmp_path))
    assert (board.part, board.model, board.memory_bytes) == (None, "unknown machine", 0)
    assert board.cores >= 1


def test_this_machine_is_read() -> None:
    board = identify_board(BoardPaths())
    assert board.memory_bytes > 1 << 28
