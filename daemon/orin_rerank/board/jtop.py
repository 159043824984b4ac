"""What jetson-stats knows beside: its service runs as root, and reads what others may not.

An optional source: asked only where its service's socket and its module are there, in a process of its own, within a
time limit, and never for more than values; its setters change the board, and one reboots it. What it says counts only
where the board's own files say nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.board.apart import run_apart, tell_and_leave
from orin_rerank.board.clocks import Clock
from orin_rerank.board.power import Rail

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.snapshot import BoardSnapshot

__all__ = ["SOCKET", "JtopReading", "merge_jtop", "read_jtop", "run"]

SOCKET: Final = "/run/jtop.sock"
"""Where the service of jetson-stats listens."""

_MODULE: Final = "jtop"
_TIMEOUT_S: Final = 8.0
"""It sends values every second as a rule, and its client takes one to start."""

_KHZ: Final = 1000


@dataclass(frozen=True, slots=True)
class JtopReading:
    """What jetson-stats says.

    Attributes:
        jetpack: Which JetPack it takes this to be; None if it does not know.
        emc: Clock of the memory; None if it does not say.
        emc_load: Share of the memory's bandwidth that is used, 0 to 1.
        gpu_load: Share of time that the GPU is busy, 0 to 1.
        watts: What the whole board draws.
        rails: The same, rail by rail.
    """

    jetpack: str | None = None
    emc: Clock | None = None
    emc_load: float | None = None
    gpu_load: float | None = None
    watts: float | None = None
    rails: tuple[Rail, ...] = ()


def read_jtop(paths: BoardPaths, timeout_s: float = _TIMEOUT_S) -> JtopReading | None:
    """Asks jetson-stats; None where it is not installed, does not run, or does not answer in time.

    Args:
        paths: The board.
        timeout_s: How long it may take.
    """
    if not paths.at(SOCKET).exists() or importlib.util.find_spec(_MODULE) is None:
        return None
    told = run_apart(__name__, timeout_s=timeout_s)
    return _reading(told.values[0]) if told.values else None


def merge_jtop(snapshot: BoardSnapshot, reading: JtopReading | None) -> BoardSnapshot:
    """A snapshot with what jetson-stats says, where the board's own files say nothing."""
    if reading is None:
        return snapshot
    clocks = snapshot.clocks
    return dataclasses.replace(
        snapshot,
        clocks=clocks if clocks.emc is not None else dataclasses.replace(clocks, emc=reading.emc),
        rails=snapshot.rails or list(reading.rails),
        gpu_load=reading.gpu_load if snapshot.gpu_load is None else snapshot.gpu_load,
        jtop=reading,
    )


def run() -> None:
    """What the process does."""
    tell_and_leave(_find)


def _find(tell: Callable[[dict[str, Any]], None]) -> None:
    from jtop import jtop  # noqa: PLC0415 - optional

    with jtop() as jetson:
        if not jetson.ok():
            return
        stats: dict[str, Any] = jetson.stats
        found: dict[str, Any] = {
            "emc_percent": stats.get("EMC"),
            "gpu_percent": stats.get("GPU"),
            "milliwatts": stats.get("Power TOT"),
        }
        # Releases differ in what stands beside the figures that all of them give.
        with contextlib.suppress(Exception):
            found["jetpack"] = str(jetson.board["hardware"]["Jetpack"])
        with contextlib.suppress(Exception):
            found["emc_khz"] = [int(jetson.memory["EMC"][key]) for key in ("min", "max", "cur")]
        with contextlib.suppress(Exception):
            found["rails"] = [
                [str(name), int(rail["volt"]), int(rail["curr"])] for name, rail in jetson.power["rail"].items()
            ]
        tell(found)


def _reading(value: dict[str, Any]) -> JtopReading:
    emc = value.get("emc_khz")
    milliwatts = _number(value.get("milliwatts"))
    return JtopReading(
        jetpack=value.get("jetpack") or None,
        emc=None if emc is None else Clock(*(_KHZ * khz for khz in emc)),
        emc_load=_share(value.get("emc_percent")),
        gpu_load=_share(value.get("gpu_percent")),
        watts=None if milliwatts is None else milliwatts / 1000,
        rails=tuple(Rail(name, volts / 1000, amperes / 1000) for name, volts, amperes in value.get("rails", [])),
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _share(percent: object) -> float | None:
    """Of a number in percent; what is off is text there."""
    number = _number(percent)
    return None if number is None else min(max(number, 0.0), 100.0) / 100
