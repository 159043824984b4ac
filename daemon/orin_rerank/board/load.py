"""How busy the GPU is, the fan, and the memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths

__all__ = ["MEMINFO", "Memory", "read_fan_share", "read_gpu_load", "read_memory"]

MEMINFO: Final = "/proc/meminfo"

_GPU_LOADS: Final = ("/sys/devices/platform/gpu.0/load", "/sys/devices/gpu.0/load")
"""In permille; the second is JetPack 5's."""

_KIB: Final = 1024
_FULL_PWM: Final = 255


@dataclass(frozen=True, slots=True)
class Memory:
    """The machine's memory, in bytes.

    Attributes:
        total: What the system has.
        available: What can be had without swapping.
        swap_total: Swap space.
        swap_free: Swap space that is not used.
        zram_total: What of the swap space is compressed memory, and so takes memory itself.
    """

    total: int
    available: int
    swap_total: int
    swap_free: int
    zram_total: int


def read_gpu_load(paths: BoardPaths) -> float | None:
    """The share of time that the GPU is busy, 0 to 1; None where it is not said."""
    for path in _GPU_LOADS:
        permille = paths.number(path)
        if permille is not None:
            return min(max(permille, 0), 1000) / 1000
    return None


def read_fan_share(paths: BoardPaths) -> float | None:
    """How hard the fan is driven, 0 to 1; None without one."""
    for folder in paths.glob("/sys/class/hwmon/hwmon[0-9]*"):
        if paths.text(folder / "name") == "pwmfan":
            pwm = paths.number(folder / "pwm1")
            if pwm is not None:
                return min(max(pwm, 0), _FULL_PWM) / _FULL_PWM
    return None


def read_memory(paths: BoardPaths) -> Memory | None:
    """What the kernel says of the memory; None where it says nothing."""
    found = dict(re.findall(r"^(\w+):\s*(\d+) kB", paths.text(MEMINFO) or "", re.MULTILINE))
    values = {key: int(value) * _KIB for key, value in found.items()}
    if "MemTotal" not in values:
        return None
    zram = sum(paths.number(file) or 0 for file in paths.glob("/sys/block/zram[0-9]*/disksize"))
    return Memory(
        values["MemTotal"],
        values.get("MemAvailable", values.get("MemFree", 0)),
        values.get("SwapTotal", 0),
        values.get("SwapFree", 0),
        zram,
    )
