"""Power modes: read leniently, chosen by what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fakes.board import AGX_ORIN_64, BOARDS, NANO_8, NX_16, BoardSpec, make_board, make_pc
from orin_rerank.board.module import identify_board
from orin_rerank.board.nvpmodel import STATUS, CurrentMode, parse_query, read_current_mode
from orin_rerank.board.power_modes import CONFIG, read_power_modes
from orin_rerank.board.snapshot import fastest_mode
from orin_rerank.errors import BoardError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_the_fastest_mode_of_every_board(tmp_path: Path, spec: BoardSpec) -> None:
    paths = make_board(tmp_path, spec)
    modes = read_power_modes(paths)
    assert modes is not None
    assert modes.default == spec.default
    assert {mode.id: mode.name for mode in modes.modes.values()} == {mode.id: mode.name for mode in spec.modes}
    assert fastest_mode(paths, identify_board(paths), modes).id == spec.fastest


def test_clusters_that_the_module_has_not_make_no_mode_fast(tmp_path: Path) -> None:
    """The mask has eight bits everywhere, and an Orin NX four clusters."""
    paths = make_board(tmp_path, NX_16)
    _write(
        tmp_path,
        """
        < POWER_MODEL ID=0 NAME=FOUR_FAST >
        TPC_POWER_GATING TPC_PG_MASK 240
        GPU MAX_FREQ 816000000
        < POWER_MODEL ID=1 NAME=EIGHT_SLOW >
        TPC_POWER_GATING TPC_PG_MASK 0
        GPU MAX_FREQ 612000000
        """,
    )
    modes = read_power_modes(paths)
    assert modes is not None
    assert fastest_mode(paths, identify_board(paths), modes).name == "FOUR_FAST"


def test_a_cap_above_the_gpus_clock_is_none(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16)
    _write(
        tmp_path,
        """
        < POWER_MODEL ID=0 NAME=HIGH_CAP >
        TPC_POWER_GATING TPC_PG_MASK 240
        GPU MAX_FREQ 2000000000
        < POWER_MODEL ID=1 NAME=LOWER_CAP >
        TPC_POWER_GATING TPC_PG_MASK 240
        GPU MAX_FREQ 1500000000
        EMC MAX_FREQ -1
        < POWER_MODEL ID=2 NAME=NO_CAP >
        TPC_POWER_GATING TPC_PG_MASK 240
        GPU MAX_FREQ -1
        EMC MAX_FREQ 2133000000
        """,
    )
    modes = read_power_modes(paths)
    assert modes is not None
    assert fastest_mode(paths, identify_board(paths), modes).name == "NO_CAP"


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("EMC MAX_FREQ -1", "EMC MAX_FREQ 3199000000"),
        ("EMC MAX_FREQ 3199000000", "EMC MAX_FREQ 2133000000"),
        ("CPU_ONLINE CORE_1 1", "CPU_ONLINE CORE_1 0"),
    ],
)
def test_of_modes_with_one_gpu_clock_memory_and_cores_decide(tmp_path: Path, better: str, worse: str) -> None:
    _write(
        tmp_path,
        f"< POWER_MODEL ID=0 NAME=WORSE >\nGPU MAX_FREQ 612000000\nCPU_ONLINE CORE_0 1\n{worse}\n"
        f"< POWER_MODEL ID=5 NAME=BETTER >\nGPU MAX_FREQ 612000000\nCPU_ONLINE CORE_0 1\n{better}\n",
    )
    modes = read_power_modes(make_pc(tmp_path))
    assert modes is not None
    assert modes.fastest(4, 918_000_000).name == "BETTER"


def _write(tmp_path: Path, text: str) -> None:
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "etc/nvpmodel.conf").write_text(text)


def test_a_name_does_not_make_a_mode_fast(tmp_path: Path) -> None:
    """On an Orin NX 16GB, 25W has the slower GPU of these two."""
    paths = make_board(tmp_path, NX_16)
    conf = paths.at(CONFIG)
    conf.write_text(conf.read_text().replace("GPU MAX_FREQ  -1", "GPU MAX_FREQ  306000000"))
    modes = read_power_modes(paths)
    assert modes is not None
    assert modes.fastest(4).name == "15W"


def test_clusters_without_power_count(tmp_path: Path) -> None:
    _write(
        tmp_path,
        """
        < POWER_MODEL ID=0 NAME=HIGH_CLOCK >
        TPC_POWER_GATING TPC_PG_MASK 252
        GPU MAX_FREQ -1
        < POWER_MODEL ID=5 NAME=ALL_CLUSTERS >
        TPC_POWER_GATING TPC_PG_MASK 0
        GPU MAX_FREQ 918000000
        """,
    )
    modes = read_power_modes(make_pc(tmp_path))
    assert modes is not None
    assert modes.modes[0].tpcs(8) == 2
    assert modes.fastest(8, gpu_hz=1_300_500_000).name == "ALL_CLUSTERS"
    assert modes.fastest(2, gpu_hz=1_300_500_000).name == "HIGH_CLOCK"  # bits of clusters that it has not


def test_it_is_read_leniently(tmp_path: Path) -> None:
    _write(
        tmp_path,
        '<POWER_MODEL NAME="A"   ID=3>\r\n  gpu  max_freq\t0x1000 # why\n\n'
        "<  POWER_MODEL ID=x NAME=BAD >\nGPU MAX_FREQ 9\n"
        "some line\n< NEWS FROM=NVIDIA >\nGPU MAX_FREQ 7\n< POWER_MODEL ID=9 >\nGPU\n<PM_CONFIG DEFAULT=3 FAN=quiet>",
    )
    modes = read_power_modes(make_pc(tmp_path))
    assert modes is not None
    assert modes.default == 3
    assert set(modes.modes) == {3, 9}
    assert (modes.modes[3].name, modes.modes[3].gpu_max_hz, modes.modes[3].cores) == ("A", 0x1000, None)
    assert (modes.modes[9].name, modes.modes[9].gpu_max_hz) == ("9", None)


def test_a_file_without_modes_is_an_error(tmp_path: Path) -> None:
    _write(tmp_path, "# nothing\n")
    with pytest.raises(BoardError, match="defines no power mode") as caught:
        read_power_modes(make_pc(tmp_path))
    assert caught.value.item == CONFIG


def test_a_pc_has_no_modes(tmp_path: Path) -> None:
    paths = make_pc(tmp_path)
    assert read_power_modes(paths) is None
    assert read_current_mode(paths) is None


def test_a_wanted_mode_is_found_by_name_or_number(tmp_path: Path) -> None:
    modes = read_power_modes(make_board(tmp_path, NX_16))
    assert modes is not None
    assert modes.find("25w").id == 3
    assert modes.find(" 2 ").name == "15W"
    with pytest.raises(BoardError, match=r"this board has MAXN \(0\), 10W \(1\), 15W \(2\), 25W \(3\)") as caught:
        modes.find("40W")
    assert caught.value.item == "40W"


@pytest.mark.parametrize(
    ("output", "mode"),
    [
        ("NV Power Mode: MODE_30W\n2\n", (2, "MODE_30W")),
        ("NVPM WARN: fan mode is not set to cool\nNV Power Mode: MAXN\n0\n", (0, "MAXN")),
        ("NV Power Mode: 25W\n1", (1, "25W")),
        ("NV Power Mode: 25W\n", (None, "25W")),
        ("NV Power Mode: MAXN\nNVPM WARN: something\n", (None, "MAXN")),
        ("NV Power Mode: MAXN\nNVPM WARN: something\n0\n", (0, "MAXN")),
    ],
)
def test_what_nvpmodel_prints(output: str, mode: tuple[int | None, str]) -> None:
    assert parse_query(output) == CurrentMode(*mode, "nvpmodel -q")


@pytest.mark.parametrize("output", ["", "NVPM ERROR: no\n", "NV Power Mode:\n2\n"])
def test_what_nvpmodel_prints_without_a_mode(output: str) -> None:
    assert parse_query(output) is None


def test_the_current_mode_is_asked_for(tmp_path: Path) -> None:
    paths = make_board(tmp_path, AGX_ORIN_64, mode=3)
    paths.at("/fake/warnings").write_text("NVPM WARN: fan mode is not set to cool\n")
    assert read_current_mode(paths) == CurrentMode(3, "MODE_50W", "nvpmodel -q")


def test_the_noted_mode_is_taken_where_nvpmodel_is_missing(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NANO_8, mode=1)
    paths.at("/usr/sbin/nvpmodel").unlink()
    assert read_current_mode(paths) == CurrentMode(1, None, STATUS)
    assert read_current_mode(paths, read_power_modes(paths)) == CurrentMode(1, "7W", STATUS)
    paths.at(STATUS).write_text("fmode:quiet")
    assert read_current_mode(paths) is None


def test_an_nvpmodel_that_cannot_be_run_is_passed_over(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NANO_8, mode=1)
    paths.at("/usr/sbin/nvpmodel").write_bytes(b"\x7fELF no program")
    found = read_current_mode(paths)
    assert found is not None
    assert found.source == STATUS
