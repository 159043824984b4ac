"""Clocks of processor, GPU and memory, and whether they are locked at their highest.

jetson_clocks locks them: processor and GPU get a lowest clock equal to the highest. The memory's lowest clock stays at
204 MHz whatever happens, so there the clock that it runs at counts. Any run of nvpmodel undoes it all.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths

__all__ = ["Clock", "Clocks", "gpu_highest_hz", "parse_show", "read_clocks"]

_KHZ: Final = 1000
_GPU_FOLDERS: Final = "/sys/class/devfreq/17000000.*"
"""17000000.gpu, on JetPack 5 17000000.ga10b."""
_EMC: Final = "/sys/kernel/debug/bpmp/debug/clk/emc"
"""Readable by root alone."""
_EMC_CAPS: Final = (
    "/sys/kernel/nvpmodel_clk_cap/emc",
    "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap",  # JetPack 5
)
"""What the power mode caps the memory's clock at, in Hz; jetson_clocks goes no higher.

The first, which everybody may read, always has the highest clock that is allowed, capped or not
(nvpmodel-clk-cap.c of nvidia-oot); the second has 0 without a cap (nvpmodel_emc_cap.c of the kernel before that).
"""

_FIELD = re.compile(r"(\w+)=(\S+)")
_CPU = re.compile(r"^cpu(\d+):")


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock, in Hz.

    Attributes:
        lowest: What it may fall to.
        highest: What it may rise to.
        current: What it is now, None where that is not known.
    """

    lowest: int
    highest: int
    current: int | None

    @property
    def locked(self) -> bool:
        """Whether it can only be at its highest."""
        return self.lowest == self.highest


@dataclass(frozen=True, slots=True)
class Clocks:
    """A board's clocks.

    Attributes:
        cpus: Of each core that is on, by its number.
        gpu: Of the GPU; None where there is none that is known.
        emc: Of the memory; None where it cannot be read.
    """

    cpus: dict[int, Clock]
    gpu: Clock | None
    emc: Clock | None

    @property
    def locked(self) -> bool:
        """Whether processor and GPU are locked, and the memory, where that is known, runs at its highest."""
        if self.gpu is None or not self.gpu.locked or not all(clock.locked for clock in self.cpus.values()):
            return False
        return self.emc is None or self.emc.current is None or self.emc.current >= self.emc.highest


def read_clocks(paths: BoardPaths) -> Clocks:
    """Reads clocks from the kernel's files."""
    cpus = {}
    for folder in paths.glob("/sys/devices/system/cpu/cpu[0-9]*/cpufreq"):
        clock = _clock(paths, folder, ("scaling_min_freq", "scaling_max_freq", "scaling_cur_freq"), _KHZ)
        if clock is not None and paths.number(folder.parent / "online") != 0:
            cpus[int(folder.parent.name.removeprefix("cpu"))] = clock
    found = (_clock(paths, folder, ("min_freq", "max_freq", "cur_freq"), 1) for folder in paths.glob(_GPU_FOLDERS))
    gpu = next((clock for clock in found if clock is not None), None)
    emc = _clock(paths, paths.at(_EMC), ("min_rate", "max_rate", "rate"), 1)
    cap = next((cap for path in _EMC_CAPS if (cap := paths.number(path) or 0) > 0), None)
    if emc is not None and cap is not None:
        emc = dataclasses.replace(emc, highest=min(cap, emc.highest))
    return Clocks(cpus, gpu, emc)


def gpu_highest_hz(paths: BoardPaths) -> int | None:
    """The highest clock that the GPU knows, whatever caps it now; None where it is not said."""
    for folder in paths.glob(_GPU_FOLDERS):
        words = (paths.text(folder / "available_frequencies") or "").split()
        known = [int(word) for word in words if word.isdigit()]
        if known:
            return max(known)
    return None


def parse_show(output: str) -> Clocks:
    """Reads what `jetson_clocks --show` printed; fields that a release leaves out are no error."""
    cpus: dict[int, Clock] = {}
    gpu = emc = None
    for raw in output.splitlines():
        line = raw.strip()
        values = {key.lower(): value for key, value in _FIELD.findall(line)}
        clock = _shown(values)
        if clock is None:
            continue
        if (match := _CPU.match(line)) is not None:
            if values.get("online", "1") != "0":
                cpus[int(match[1])] = Clock(clock.lowest * _KHZ, clock.highest * _KHZ, (clock.current or 0) * _KHZ)
        elif line.startswith("GPU"):
            gpu = clock
        elif line.startswith("EMC"):
            emc = clock
    return Clocks(cpus, gpu, emc)


def _shown(values: dict[str, str]) -> Clock | None:
    try:
        current = values.get("currentfreq")
        return Clock(int(values["minfreq"]), int(values["maxfreq"]), None if current is None else int(current))
    except (KeyError, ValueError):
        return None


def _clock(paths: BoardPaths, folder: Path, names: tuple[str, str, str], unit_hz: int) -> Clock | None:
    low, high, now = (paths.number(folder / name) for name in names)
    if low is None or high is None:
        return None
    return Clock(low * unit_hz, high * unit_hz, None if now is None else now * unit_hz)
