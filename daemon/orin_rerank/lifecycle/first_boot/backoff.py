"""When what failed is tried again: later every time, and at last not by itself.

A board without a battery for its clock may be in 1970 after a boot, or jump when it learns the time. So a moment is
kept as the wall clock has it and as the time since boot, which does not jump; the wall clock counts only between boots.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["MOST_FAILURES", "WAITS_S", "Moment", "seconds_to_wait"]

WAITS_S: Final = (60.0, 300.0, 1800.0, 7200.0)
"""After the first failure, the second, and so on."""

MOST_FAILURES: Final = len(WAITS_S) + 1
"""So many in a row, and it rests until something changes or a person asks for it."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment on this machine.

    Attributes:
        wall_s: Since 1970, by a clock that may be wrong.
        boot_id: Which boot it is in; empty where that is not known.
        boot_s: Since that boot.
    """

    wall_s: float
    boot_id: str
    boot_s: float

    @classmethod
    def now(cls) -> Moment:
        """This one."""
        try:
            boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            boot_id = ""
        return cls(time.time(), boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))

    def seconds_until(self, later: Moment) -> float | None:
        """How much later another is; None where the clock has gone back between the two."""
        if self.boot_id and self.boot_id == later.boot_id:
            return later.boot_s - self.boot_s
        seconds = later.wall_s - self.wall_s
        return seconds if seconds >= 0 else None


def seconds_to_wait(failures: int, failed_at: Moment, now: Moment, *, unknown_s: float = math.inf) -> float:
    """How long what failed is not to be tried again; infinite where it rests.

    Args:
        failures: How often it failed in a row.
        failed_at: When it failed last.
        now: This moment.
        unknown_s: How much is held to have passed where the clock has gone back, and says nothing. What is counted, and
            rests at last, may be tried too early.
    """
    if failures <= 0:
        return 0.0
    if failures >= MOST_FAILURES:
        return float("inf")
    passed = failed_at.seconds_until(now)
    return max(WAITS_S[failures - 1] - (unknown_s if passed is None else passed), 0.0)
