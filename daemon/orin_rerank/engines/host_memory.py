"""The machine's memory and this process's, as the kernel tells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orin_rerank.errors import EngineError

__all__ = ["MEMINFO", "HostMemory", "peak_bytes", "read_host_memory"]

MEMINFO: Final = Path("/proc/meminfo")
_STATUS: Final = Path("/proc/self/status")
_PEAK: Final = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_LINE: Final = re.compile(r"^(MemTotal|MemAvailable|SwapFree):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The machine's memory now.

    Attributes:
        total_bytes: What the kernel has to give, in all.
        available_bytes: What it could give without swapping: what is free, and what only caches files.
        swap_free_bytes: Swap that is not used. A GPU's memory is never swapped.
    """

    total_bytes: int
    available_bytes: int
    swap_free_bytes: int


def read_host_memory(path: Path = MEMINFO) -> HostMemory:
    """Asks the kernel.

    Raises:
        EngineError: If it does not say.
    """
    try:
        found = {name: int(kib) << 10 for name, kib in _LINE.findall(path.read_text(encoding="ascii"))}
        return HostMemory(found["MemTotal"], found["MemAvailable"], found.get("SwapFree", 0))
    except (OSError, ValueError, KeyError) as error:
        raise EngineError(f"does not say how much memory there is: {error!r}", item=str(path)) from error


def peak_bytes() -> int:
    """Most memory that this process has held at a time, in bytes.

    `getrusage` says something else: a process that was started with `vfork`, as `subprocess` starts them, begins there
    with the peak of the one that started it.
    """
    found = _PEAK.search(_STATUS.read_text(encoding="utf-8", errors="replace"))
    return int(found[1]) << 10 if found else 0
