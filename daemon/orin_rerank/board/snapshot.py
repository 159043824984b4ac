"""Everything that is known of the board at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.board.clocks import Clocks, gpu_highest_hz, read_clocks
from orin_rerank.board.load import Memory, read_fan_share, read_gpu_load, read_memory
from orin_rerank.board.module import Board, identify_board
from orin_rerank.board.nvpmodel import CurrentMode, read_current_mode
from orin_rerank.board.power import Rail, read_rails
from orin_rerank.board.power_modes import PowerMode, PowerModes, read_power_modes
from orin_rerank.board.thermal import OverCurrent, Zone, read_over_current, read_throttle_alerts, read_zones
from orin_rerank.errors import BoardError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orin_rerank.board.jtop import JtopReading
    from orin_rerank.board.paths import BoardPaths

__all__ = ["BoardSnapshot", "fastest_mode", "hottest_zone", "read_snapshot", "read_temperatures"]

_MILLI: Final = 1000
_PROCESSOR_SENSORS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


@dataclass(frozen=True, slots=True)
class BoardSnapshot:
    """A board at one moment.

    Attributes:
        board: What it is.
        modes: Its power modes; None where it has none.
        mode: The one that it is in; None where that is not known.
        clocks: Its clocks.
        zones: How warm it is.
        throttled: Units that the hardware slows down for heat.
        over_current: Its over-current counters; None without any.
        rails: What it draws.
        gpu_load: Share of time that the GPU is busy; None where it is not known.
        fan: How hard the fan is driven, 0 to 1; None without one.
        memory: Its memory; None where it is not known.
        jtop: What jetson-stats says beside; None where it was not asked, or does not answer.
        modes_problem: Why its power modes cannot be read; None if they can, or there are none.
    """

    board: Board
    modes: PowerModes | None
    mode: CurrentMode | None
    clocks: Clocks
    zones: list[Zone]
    throttled: list[str]
    over_current: OverCurrent | None
    rails: list[Rail]
    gpu_load: float | None
    fan: float | None
    memory: Memory | None
    jtop: JtopReading | None = None
    modes_problem: str | None = None

    @property
    def hottest(self) -> Zone | None:
        """The zone that decides, as `hottest_zone` says."""
        return hottest_zone(self.zones)


def read_snapshot(paths: BoardPaths) -> BoardSnapshot:
    """Reads all that there is to read, on a Jetson or any other machine."""
    modes, problem = None, None
    try:
        modes = read_power_modes(paths)
    except BoardError as error:
        problem = str(error)
    return BoardSnapshot(
        board=identify_board(paths),
        modes=modes,
        mode=read_current_mode(paths, modes),
        clocks=read_clocks(paths),
        zones=read_temperatures(paths),
        throttled=read_throttle_alerts(paths),
        over_current=read_over_current(paths),
        rails=read_rails(paths),
        gpu_load=read_gpu_load(paths),
        fan=read_fan_share(paths),
        memory=read_memory(paths),
        modes_problem=problem,
    )


def read_temperatures(paths: BoardPaths) -> list[Zone]:
    """How warm the board is: its thermal zones, and what the processor's sensors say where none is made of them."""
    zones = read_zones(paths)
    known = {zone.name for zone in zones}
    return [*zones, *(zone for zone in _processor_zones(paths) if zone.name.removesuffix("_thermal") not in known)]


def hottest_zone(zones: Sequence[Zone]) -> Zone | None:
    """The zone that decides: the junction's, which is the highest of all, else whichever is warmest."""
    known = [zone for zone in zones if zone.celsius is not None]
    junction = next((zone for zone in known if zone.name == "tj"), None)
    return junction or max(known, key=lambda zone: zone.celsius or 0.0, default=None)


def fastest_mode(paths: BoardPaths, board: Board, modes: PowerModes) -> PowerMode:
    """The power mode in which this board's GPU does most."""
    highest = gpu_highest_hz(paths)
    return modes.fastest(gpu_hz=highest) if board.kind is None else modes.fastest(board.kind.tpcs, highest)


def _processor_zones(paths: BoardPaths) -> list[Zone]:
    """What the processor's own sensors say; on a PC the kernel makes no thermal zones of them as a rule."""
    zones = []
    for folder in paths.glob("/sys/class/hwmon/hwmon[0-9]*"):
        name = paths.text(folder / "name")
        if name not in _PROCESSOR_SENSORS:
            continue
        readings = [(value, file) for file in folder.glob("temp[0-9]*_input") if (value := paths.number(file))]
        if readings:
            value, file = max(readings)
            zones.append(Zone(name, value / _MILLI, _critical(paths, file)))
    return zones


def _critical(paths: BoardPaths, reading: Path) -> dict[str, float]:
    value = paths.number(reading.with_name(reading.name.replace("_input", "_crit")))
    return {"critical": value / _MILLI} if value else {}
