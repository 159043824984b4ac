"""Clocks, temperatures, rails and the rest."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from fakes.board import AGX_ORIN_64, BOARDS, NANO_8_SUPER, NX_16_SUPER, BoardSpec, make_board, make_pc
from orin_rerank.board.clocks import Clock, gpu_highest_hz, parse_show, read_clocks
from orin_rerank.board.load import read_fan_share, read_gpu_load, read_memory
from orin_rerank.board.paths import ROOT_VARIABLE, BoardPaths
from orin_rerank.board.power import read_rails, total_watts
from orin_rerank.board.snapshot import read_snapshot
from orin_rerank.board.thermal import (
    OverCurrent,
    OverCurrentRates,
    Zone,
    read_over_current,
    read_throttle_alerts,
    read_zones,
)

if TYPE_CHECKING:
    from pathlib import Path

AGX_SHOW = """\
SOC family:tegra234  Machine:Lanner EAI-I233
Online CPUs: 0-11
cpu0:  Online=1 Governor=schedutil MinFreq=729600 MaxFreq=1497600 CurrentFreq=1497600 IdleStates: WFI=1 c7=1
cpu1:  Governor=schedutil MinFreq=729600 MaxFreq=1497600 CurrentFreq=1497600 IdleStates: WFI=1 c7=1
cpu2:  Online=0 Governor=schedutil MinFreq=729600 MaxFreq=1497600 CurrentFreq=1497600 IdleStates: WFI=1 c7=1
GPU MinFreq=306000000 MaxFreq=816000000 CurrentFreq=306000000
Active GPU TPCs: 8
EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=2133000000 FreqOverride=0
FAN Dynamic Speed Control=nvfancontrol hwmon0_pwm1=102
NV Power Mode: MODE_50W
"""
"""Of a board; the second core's line is as some releases have it."""


def test_what_jetson_clocks_shows() -> None:
    clocks = parse_show(AGX_SHOW)
    assert clocks.cpus == dict.fromkeys((0, 1), Clock(729_600_000, 1_497_600_000, 1_497_600_000))
    assert clocks.gpu == Clock(306_000_000, 816_000_000, 306_000_000)
    assert clocks.emc == Clock(204_000_000, 3_199_000_000, 2_133_000_000)
    assert not clocks.locked


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_clocks_before_and_after_they_are_locked(tmp_path: Path, spec: BoardSpec) -> None:
    paths = make_board(tmp_path, spec)
    program = paths.program("jetson_clocks")
    assert program is not None

    def show() -> str:
        return subprocess.run([program, "--show"], capture_output=True, text=True, check=True).stdout

    assert parse_show(show()) == read_clocks(paths)
    assert not read_clocks(paths).locked
    assert len(read_clocks(paths).cpus) == next(mode.cores for mode in spec.modes if mode.id == spec.default)
    assert gpu_highest_hz(paths) == max(spec.gpu_clocks)
    subprocess.run([program], check=True)
    assert parse_show(show()) == read_clocks(paths)
    assert read_clocks(paths).locked


def test_the_memory_counts_by_the_clock_that_it_runs_at(tmp_path: Path) -> None:
    paths = make_board(tmp_path, AGX_ORIN_64)
    subprocess.run([str(paths.program("jetson_clocks"))], check=True)
    rate = paths.at("/sys/kernel/debug/bpmp/debug/clk/emc/rate")
    rate.write_text("2133000000\n")
    assert not read_clocks(paths).locked
    rate.unlink()  # as for everyone but root
    assert read_clocks(paths).locked


def test_a_core_that_is_off_does_not_count(tmp_path: Path) -> None:
    paths = make_board(tmp_path, AGX_ORIN_64)
    subprocess.run([str(paths.program("jetson_clocks"))], check=True)
    paths.at("/sys/devices/system/cpu/cpu11/online").write_text("0\n")
    paths.at("/sys/devices/system/cpu/cpu11/cpufreq/scaling_min_freq").write_text("729600\n")
    assert 11 not in read_clocks(paths).cpus
    assert read_clocks(paths).locked


def test_zones_are_found_by_type(tmp_path: Path) -> None:
    zones = {zone.name: zone for zone in read_zones(make_board(tmp_path, NANO_8_SUPER))}
    assert set(zones) == {"cpu", "gpu", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2", "tj"}
    assert zones["tj"] == Zone("tj", 50.531, {"passive": 99.0, "critical": 104.5, "active": 51.0})
    assert zones["tj"].headroom == pytest.approx(48.469)
    assert zones["cv1"].celsius is None
    assert zones["cv1"].headroom is None


@pytest.mark.parametrize("reading", ["-256000", "", "n/a"])
def test_a_zone_without_power_has_no_temperature(tmp_path: Path, reading: str) -> None:
    paths = make_board(tmp_path, NANO_8_SUPER)
    paths.at("/sys/class/thermal/thermal_zone1/temp").write_text(reading)
    assert next(zone for zone in read_zones(paths) if zone.name == "gpu").celsius is None


def test_frost_is_a_temperature(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NANO_8_SUPER)
    paths.at("/sys/class/thermal/thermal_zone1/temp").write_text("-25000")
    assert next(zone for zone in read_zones(paths) if zone.name == "gpu").celsius == -25.0


def test_throttling(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16_SUPER)
    assert read_throttle_alerts(paths) == []
    paths.at("/sys/class/thermal/cooling_device1/cur_state").write_text("1\n")
    paths.at("/sys/class/thermal/cooling_device8/cur_state").write_text("1\n")  # a hot surface slows nothing down
    assert read_throttle_alerts(paths) == ["gpu"]


def test_over_current_counts_by_its_rate(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NX_16_SUPER)
    rates = OverCurrentRates()
    first = read_over_current(paths, lambda: 10.0)
    assert first == OverCurrent({"oc1": 0, "oc2": 0, "oc3": 27390}, 10.0)
    assert rates.update(first) == {}
    paths.at("/sys/class/hwmon/hwmon2/oc3_event_cnt").write_text("27530")
    paths.at("/sys/class/hwmon/hwmon2/oc1_event_cnt").write_text("2")
    second = read_over_current(paths, lambda: 15.0)
    assert second is not None
    assert rates.update(second) == {"oc1": 0.4, "oc2": 0.0, "oc3": 28.0}
    assert rates.update(second) == {}
    assert rates.update(OverCurrent({"oc1": 1, "oc2": 0, "oc3": 5}, 16.0)) == {"oc1": 1.0, "oc2": 0.0, "oc3": 5.0}


def test_rails(tmp_path: Path) -> None:
    nano = read_rails(make_board(tmp_path / "nano", NANO_8_SUPER))
    assert [rail.name for rail in nano] == ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"]
    assert total_watts(nano) == pytest.approx(5.024 * 1.528)
    agx = read_rails(make_board(tmp_path / "agx", AGX_ORIN_64))
    assert [rail.name for rail in agx] == ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"]
    assert total_watts(agx) == pytest.approx(19.08 * 0.88 + 5.048 * 0.968 + 19.088 * 0.12)
    assert total_watts([]) is None


def test_load_fan_and_memory(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NANO_8_SUPER)
    paths.at("/sys/devices/platform/gpu.0/load").write_text("985\n")
    assert read_gpu_load(paths) == 0.985
    assert read_fan_share(paths) == pytest.approx(0.4)
    memory = read_memory(paths)
    assert memory is not None
    assert memory.total == NANO_8_SUPER.memory_kib * 1024
    assert memory.available == NANO_8_SUPER.memory_kib * 3 // 4 * 1024
    assert memory.zram_total == NANO_8_SUPER.memory_kib * 1024 // 4


def test_gpu_load_where_jetpack_5_has_it(tmp_path: Path) -> None:
    paths = make_board(tmp_path, NANO_8_SUPER)
    paths.at("/sys/devices/platform/gpu.0/load").unlink()
    paths.at("/sys/devices/gpu.0").mkdir(parents=True)
    paths.at("/sys/devices/gpu.0/load").write_text("40")
    assert read_gpu_load(paths) == 0.04


def test_a_snapshot_of_every_board(tmp_path: Path) -> None:
    for spec in BOARDS:
        snapshot = read_snapshot(make_board(tmp_path / spec.key, spec))
        assert snapshot.hottest is not None
        assert (snapshot.hottest.name, snapshot.hottest.celsius) == ("tj", 50.531)
        assert snapshot.mode is not None
        assert snapshot.mode.id == spec.default
        assert snapshot.rails


def test_a_snapshot_of_a_pc(tmp_path: Path) -> None:
    snapshot = read_snapshot(make_pc(tmp_path))
    assert snapshot.zones == [Zone("coretemp", 47.0, {"critical": 100.0})]
    assert snapshot.hottest == snapshot.zones[0]
    assert (snapshot.modes, snapshot.mode, snapshot.rails, snapshot.gpu_load, snapshot.fan) == (None,) * 2 + (
        [],
        None,
        None,
    )


def test_a_snapshot_of_nothing_and_of_this_machine(tmp_path: Path) -> None:
    nothing = read_snapshot(BoardPaths(tmp_path))
    assert nothing.hottest is None
    assert nothing.memory is None
    assert not nothing.clocks.locked
    assert read_snapshot(BoardPaths()).memory is not None


def test_the_root_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    assert BoardPaths.from_environment() == BoardPaths()
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    assert BoardPaths.from_environment() == BoardPaths(tmp_path)


def test_files_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        (tmp_path / f"sys/zone{number}").mkdir(parents=True)
    assert [path.name for path in BoardPaths(tmp_path).glob("/sys/zone*")] == ["zone1", "zone9", "zone10"]


def test_a_file_that_may_not_be_read_is_none(tmp_path: Path) -> None:
    paths = BoardPaths(tmp_path)
    (tmp_path / "folder").mkdir()
    assert paths.text("/folder") is None
    assert paths.text("/none") is None
    (tmp_path / "secret").write_text("1")
    (tmp_path / "secret").chmod(0)
    if os.geteuid() != 0:
        assert paths.number("/secret") is None


def test_a_pc_with_a_zone_of_its_firmware_has_its_processors_sensor_too(tmp_path: Path) -> None:
    paths = make_pc(tmp_path)
    zone = paths.at("/sys/class/thermal/thermal_zone0")
    zone.mkdir(parents=True)
    (zone / "type").write_text("acpitz\n")
    (zone / "temp").write_text("16800\n")
    snapshot = read_snapshot(paths)
    assert [zone.name for zone in snapshot.zones] == ["acpitz", "coretemp"]
    assert snapshot.hottest is not None
    assert snapshot.hottest.name == "coretemp"


def test_a_zone_that_is_a_sensor_too_counts_once(tmp_path: Path) -> None:
    paths = make_board(tmp_path, AGX_ORIN_64)
    for name, text in (("name", "cpu_thermal"), ("temp1_input", "49468")):
        paths.at("/sys/class/hwmon/hwmon9").mkdir(exist_ok=True)
        paths.at(f"/sys/class/hwmon/hwmon9/{name}").write_text(text)
    assert [zone.name for zone in read_snapshot(paths).zones].count("cpu") == 1
    assert "cpu_thermal" not in [zone.name for zone in read_snapshot(paths).zones]
