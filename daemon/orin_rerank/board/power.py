"""What the board draws, rail by rail, from its INA3221 monitors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.board.paths import BoardPaths

__all__ = ["Rail", "read_rails", "total_watts"]

_MONITOR: Final = "ina3221"
_TOTAL: Final = "VDD_IN"
"""The rail of Orin NX and Nano that feeds all others. AGX Orin has none: there the rails add up."""

_NO_RAILS: Final = ("nc", "sum of shunt voltages")


@dataclass(frozen=True, slots=True)
class Rail:
    """A supply rail.

    Attributes:
        name: As the board labels it, such as `VDD_GPU_SOC`.
        volts: Its voltage.
        amperes: The current through it.
    """

    name: str
    volts: float
    amperes: float

    @property
    def watts(self) -> float:
        """What is drawn from it."""
        return self.volts * self.amperes


def read_rails(paths: BoardPaths) -> list[Rail]:
    """The rails that are monitored; channels that are not connected are left out."""
    rails = []
    for folder in paths.glob("/sys/class/hwmon/hwmon[0-9]*"):
        if paths.text(folder / "name") != _MONITOR:
            continue
        for file in sorted(folder.glob("in[0-9]*_label")):
            number = file.name.removeprefix("in").removesuffix("_label")
            name = paths.text(file)
            millivolts = paths.number(folder / f"in{number}_input")
            milliamperes = paths.number(folder / f"curr{number}_input")
            if name and name.lower() not in _NO_RAILS and millivolts is not None and milliamperes is not None:
                rails.append(Rail(name, millivolts / 1000, milliamperes / 1000))
    return rails


def total_watts(rails: Sequence[Rail]) -> float | None:
    """What the whole board draws: its input rail, else the sum of all; None without rails."""
    if not rails:
        return None
    return next((rail.watts for rail in rails if rail.name == _TOTAL), sum(rail.watts for rail in rails))
