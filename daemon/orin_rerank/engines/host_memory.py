"""The machine's memory and this process's, as the kernel tells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orin_rerank.board.load import MEMINFO, read_memory
from orin_rerank.board.paths import BoardPaths
from orin_rerank.errors import EngineError

__all__ = ["HostMemory", "peak_bytes", "read_host_memory"]

_HERE: Final = BoardPaths()
"""The machine itself, whatever tree stands for its board: that is what a model has to fit into."""
_STATUS: Final = Path("/proc/self/status")
_PEAK: Final = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


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


def read_host_memory(paths: BoardPaths = _HERE) -> HostMemory:
    """Asks the kernel.

    Raises:
        EngineError: If it does not say.
    """
    memory = read_memory(paths)
    if memory is None:
        raise EngineError("does not say how much memory there is", item=str(paths.at(MEMINFO)))
    return HostMemory(memory.total, memory.available, memory.swap_free)


def peak_bytes() -> int:
    """Most memory that this process has held at a time, in bytes.

    `getrusage` says something else: a process that was started with `vfork`, as `subprocess` starts them, begins there
    with the peak of the one that started it.
    """
    found = _PEAK.search(_STATUS.read_text(encoding="utf-8", errors="replace"))
    return int(found[1]) << 10 if found else 0
