"""jetson-stats as a source beside the board's own files."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.board import NX_16, make_board, make_pc
from orin_rerank.board.clocks import Clock
from orin_rerank.board.jtop import SOCKET, JtopReading, merge_jtop, read_jtop
from orin_rerank.board.paths import BoardPaths
from orin_rerank.board.power import Rail
from orin_rerank.board.snapshot import read_snapshot

FAKE = Path(__file__).with_name("fake_jtop")
COMMAND = str(Path(sys.executable).with_name("orin-rerank"))


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BoardPaths:
    """A board on which the service of jetson-stats runs, and its module is installed."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.syspath_prepend(str(FAKE))
    found = make_board(tmp_path, NX_16)
    socket = found.at(SOCKET)
    socket.parent.mkdir(exist_ok=True)
    socket.touch()
    return found


def test_what_it_says(paths: BoardPaths) -> None:
    assert read_jtop(paths) == JtopReading(
        jetpack="6.2",
        emc=Clock(204_000_000, 3_199_000_000, 2_133_000_000),
        emc_load=0.12,
        gpu_load=0.425,
        watts=7.7,
        rails=(Rail("VDD_IN", 5.024, 1.528),),
    )


def test_it_is_asked_only_where_it_is(paths: BoardPaths, tmp_path: Path) -> None:
    paths.at(SOCKET).unlink()
    assert read_jtop(paths) is None
    assert read_jtop(make_pc(tmp_path / "pc")) is None


def test_the_module_may_be_missing(tmp_path: Path) -> None:
    socket = tmp_path / "run/jtop.sock"
    socket.parent.mkdir()
    socket.touch()
    assert read_jtop(BoardPaths(tmp_path)) is None


@pytest.mark.parametrize("how", ["inactive", "crashes", "silent"])
def test_a_service_that_does_not_answer(paths: BoardPaths, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("FAKE_JTOP", how)
    assert read_jtop(paths) is None


def test_a_service_that_hangs(paths: BoardPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JTOP", "hangs")
    started = time.monotonic()
    assert read_jtop(paths, timeout_s=2) is None
    assert time.monotonic() - started < 15


def test_values_count_though_the_client_does_not_end(paths: BoardPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JTOP", "slow end")
    reading = read_jtop(paths, timeout_s=3)
    assert reading is not None
    assert reading.jetpack == "6.2"


def test_other_releases(paths: BoardPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JTOP", "other")
    reading = read_jtop(paths)
    assert reading is not None
    assert (reading.emc, reading.emc_load, reading.watts) == (None, 0.12, 7.7)
    monkeypatch.setenv("FAKE_JTOP", "odd")
    reading = read_jtop(paths)
    assert reading is not None
    assert (reading.emc_load, reading.gpu_load, reading.watts, reading.rails) == (None, 1.0, None, ())


def test_the_board_s_own_files_go_first(paths: BoardPaths) -> None:
    own, reading = read_snapshot(paths), read_jtop(paths)
    assert dataclasses.replace(merge_jtop(own, reading), jtop=None) == own
    assert merge_jtop(own, None) is own
    for path in ("/sys/kernel/debug/bpmp/debug/clk/emc/max_rate", "/sys/devices/platform/gpu.0/load"):
        paths.at(path).unlink()
    paths.at("/sys/class/hwmon/hwmon1/name").write_text("other")
    merged = merge_jtop(read_snapshot(paths), reading)
    assert reading is not None
    assert (merged.clocks.emc, merged.gpu_load, merged.rails) == (reading.emc, 0.425, [Rail("VDD_IN", 5.024, 1.528)])


def test_a_person_sees_it(paths: BoardPaths) -> None:
    paths.at("/sys/kernel/debug/bpmp/debug/clk/emc/max_rate").unlink()
    paths.at("/sys/class/hwmon/hwmon1/name").write_text("other")
    paths.at("/etc/nv_tegra_release").unlink()
    environment = {**os.environ, "ORIN_RERANK_BOARD_ROOT": str(paths.root), "COLUMNS": "200"}
    done = subprocess.run([COMMAND, "board", "show"], capture_output=True, text=True, check=True, env=environment)
    assert "JetPack 6.2, as jetson-stats says" in done.stdout
    assert "memory 2133 of 3199 MHz, 12% busy" in done.stdout
    assert "power       7.7 W (VDD_IN 7.7 W)" in done.stdout
    done = subprocess.run(
        [COMMAND, "board", "show", "--json"], capture_output=True, text=True, check=True, env=environment
    )
    value = json.loads(done.stdout)
    assert value["jtop"]["emc_load"] == 0.12
    assert value["watts"] == 7.7
