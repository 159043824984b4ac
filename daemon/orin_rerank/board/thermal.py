"""How warm the board is, where its limits are, and whether the hardware holds it back already."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths

__all__ = ["OverCurrent", "OverCurrentRates", "Zone", "read_over_current", "read_throttle_alerts", "read_zones"]

_MILLI: Final = 1000.0
_COLDEST_C: Final = -50.0
"""Below this a reading is no temperature: zones whose unit is off read -256 on JetPack 5."""

_ALERT: Final = "-throttle-alert"
_OVER_CURRENT: Final = "soctherm_oc"


@dataclass(frozen=True, slots=True)
class Zone:
    """A thermal zone.

    Attributes:
        name: Its type in small letters, without `-thermal` behind it, such as `tj` or `gpu`.
        celsius: Its temperature; None while its unit is without power.
        trips: At which temperatures what happens, by the trip's type, such as `passive` and `critical`; of several
            of one type the lowest.
    """

    name: str
    celsius: float | None
    trips: Mapping[str, float] = field(default_factory=dict)

    @property
    def headroom(self) -> float | None:
        """Degrees to the trip at which the system begins to slow itself down, None where that is not known."""
        limit = self.trips.get("passive", self.trips.get("hot", self.trips.get("critical")))
        return None if limit is None or self.celsius is None else limit - self.celsius


@dataclass(frozen=True, slots=True)
class OverCurrent:
    """How often an over-current limit was hit since the board started.

    Attributes:
        events: By the limit's name: `oc1` is under-voltage, `oc2` the average current, `oc3` the instantaneous one.
        at_s: When that was read, in seconds of the monotonic clock.
    """

    events: Mapping[str, int]
    at_s: float


def read_zones(paths: BoardPaths) -> list[Zone]:
    """Thermal zones, by their types: their numbers differ from release to release. Of a PC those that it has."""
    zones = []
    for folder in paths.glob("/sys/class/thermal/thermal_zone[0-9]*"):
        kind = paths.text(folder / "type")
        if kind:
            name = kind.lower().removesuffix("-thermal").removesuffix("_thermal")
            zones.append(Zone(name, _celsius(paths, folder / "temp"), _trips(paths, folder)))
    return zones


def read_throttle_alerts(paths: BoardPaths) -> list[str]:
    """Units that the hardware slows down for heat at this moment, such as `gpu`."""
    alerts = []
    for folder in paths.glob("/sys/class/thermal/cooling_device[0-9]*"):
        kind = (paths.text(folder / "type") or "").lower()
        if kind.endswith(_ALERT) and (paths.number(folder / "cur_state") or 0) > 0:
            alerts.append(kind.removesuffix(_ALERT))
    return alerts


def read_over_current(paths: BoardPaths, clock: Callable[[], float] = time.monotonic) -> OverCurrent | None:
    """The over-current counters; None where there are none.

    They only ever rise, and some events are harmless (`oc3` rose 28 times a second on a healthy board), so it is the
    rate that tells: see `OverCurrentRates`.
    """
    for folder in paths.glob("/sys/class/hwmon/hwmon[0-9]*"):
        if paths.text(folder / "name") == _OVER_CURRENT:
            counters = {
                file.name.removesuffix("_event_cnt"): count
                for file in sorted(folder.glob("oc[0-9]*_event_cnt"))
                if (count := paths.number(file)) is not None
            }
            return OverCurrent(counters, clock())
    return None


class OverCurrentRates:
    """Events a second, from one reading to the next."""

    def __init__(self) -> None:
        self._last: OverCurrent | None = None

    def update(self, reading: OverCurrent) -> dict[str, float]:
        """Takes a reading; returns events a second since the last one, by name; nothing at the first.

        A counter that fell has been started anew, and counts from 0.
        """
        last, self._last = self._last, reading
        if last is None or reading.at_s <= last.at_s:
            return {}
        seconds = reading.at_s - last.at_s
        return {
            name: (count - before if count >= (before := last.events.get(name, 0)) else count) / seconds
            for name, count in reading.events.items()
        }


def _celsius(paths: BoardPaths, file: Path) -> float | None:
    value = paths.number(file)
    celsius = None if value is None else value / _MILLI
    return celsius if celsius is not None and celsius > _COLDEST_C else None


def _trips(paths: BoardPaths, folder: Path) -> dict[str, float]:
    trips: dict[str, float] = {}
    for file in sorted(folder.glob("trip_point_[0-9]*_temp")):
        kind = paths.text(folder / file.name.replace("_temp", "_type"))
        celsius = _celsius(paths, file)
        if kind and celsius is not None and celsius > 0:
            trips[kind] = min(celsius, trips.get(kind, celsius))
    return trips
