"""Heat and current: how far the board is from slowing itself down, and whether it already does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from orin_rerank.board.module import identify_board
from orin_rerank.board.snapshot import hottest_zone, read_temperatures
from orin_rerank.board.thermal import OverCurrentRates, read_over_current, read_throttle_alerts
from orin_rerank.lifecycle.doctor.finding import Check, fail, ok, warn

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.finding import Finding

__all__ = ["CHECKS"]

_SUBJECT: Final = "heat and current"
_COOLING: Final = "clean the heat sink, see that the fan turns, give it air; or take a slower power mode"
_CLOSE_C: Final = 10.0
_WATCHED_S: Final = 0.5
_SUPPLY: Final = "take a supply that can give more, or a slower power mode"


def check_temperature(paths: BoardPaths, _: Context) -> Finding | None:
    """How far the warmest part is from its limit."""
    hottest = hottest_zone(read_temperatures(paths))
    if hottest is None or hottest.celsius is None:
        return (
            warn("no sensor can be read", "nothing will slow down before the hardware does")
            if (identify_board(paths).is_jetson)
            else None
        )
    text = f"{hottest.celsius:.0f} °C ({hottest.name})"
    headroom = hottest.headroom
    if headroom is None:
        return ok(text)
    if headroom <= 0:
        return fail(f"{text}, at or over the limit of {hottest.celsius + headroom:.0f} °C", _COOLING)
    if headroom < _CLOSE_C:
        return warn(f"{text}, {headroom:.0f} degrees below the limit", _COOLING)
    return ok(f"{text}, {headroom:.0f} degrees below the limit")


def check_throttling(paths: BoardPaths, _: Context) -> Finding | None:
    """Whether the hardware slows something down for heat."""
    alerts = read_throttle_alerts(paths)
    if alerts:
        return warn(f"slowed down for heat now: {', '.join(alerts)}", _COOLING)
    return ok("nothing is slowed down for heat") if identify_board(paths).is_jetson else None


def check_current(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether over-current limits are being hit; `oc3`, the instantaneous one, rises on healthy boards too."""
    first = read_over_current(paths, time.monotonic)
    if first is None:
        return None
    context.sleep(_WATCHED_S)
    second = read_over_current(paths, time.monotonic)
    rates = OverCurrentRates()
    rates.update(first)
    hit = {} if second is None else rates.update(second)
    for name, what in (("oc1", "the supply's voltage is too low"), ("oc2", "more current is drawn than allowed")):
        if hit.get(name, 0.0) > 0:
            return warn(f"{what}: {hit[name]:.0f} times a second, and clocks fall each time", _SUPPLY)
    return ok("no limit is being hit")


CHECKS: Final = (
    Check(_SUBJECT, "temperature", check_temperature),
    Check(_SUBJECT, "throttling", check_throttling),
    Check(_SUBJECT, "current", check_current),
)
