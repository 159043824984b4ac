"""Which module this is, and which release of NVIDIA's system runs on it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.board.load import read_memory

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths

__all__ = ["MODULES", "Board", "ModuleKind", "Release", "identify_board"]

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """A module as NVIDIA sells it.

    Attributes:
        key: Short name for settings and tables, such as `agx-orin-64`.
        name: For people, such as `Jetson AGX Orin 64GB`.
        memory_gib: Of its one memory.
        cores: Of its processor.
        tpcs: Texture processing clusters of its GPU, of two multiprocessors each.
    """

    key: str
    name: str
    memory_gib: int
    cores: int
    tpcs: int


AGX_ORIN_64: Final = ModuleKind("agx-orin-64", "Jetson AGX Orin 64GB", 64, 12, 8)
AGX_ORIN_32: Final = ModuleKind("agx-orin-32", "Jetson AGX Orin 32GB", 32, 8, 7)
ORIN_NX_16: Final = ModuleKind("orin-nx-16", "Jetson Orin NX 16GB", 16, 8, 4)
ORIN_NX_8: Final = ModuleKind("orin-nx-8", "Jetson Orin NX 8GB", 8, 6, 4)
ORIN_NANO_8: Final = ModuleKind("orin-nano-8", "Jetson Orin Nano 8GB", 8, 6, 4)
ORIN_NANO_4: Final = ModuleKind("orin-nano-4", "Jetson Orin Nano 4GB", 4, 6, 2)

MODULES: Final[dict[str, ModuleKind]] = {
    "p3701-0000": AGX_ORIN_64,  # of the developer kit, which came with 32 GB at first
    "p3701-0004": AGX_ORIN_32,
    "p3701-0005": AGX_ORIN_64,
    "p3701-0008": AGX_ORIN_64,  # industrial
    "p3767-0000": ORIN_NX_16,
    "p3767-0001": ORIN_NX_8,
    "p3767-0003": ORIN_NANO_8,
    "p3767-0004": ORIN_NANO_4,
    "p3767-0005": ORIN_NANO_8,  # of the developer kit
}
"""By the part number that the device tree names."""

_LESS_THAN_SOLD: Final = 0.75
"""What the system has of a module's memory at least; the rest is set apart at boot. Half would be another module."""

_PART = re.compile(r"(p3701|p3767)-(\d{4})(-super)?")
_RELEASE = re.compile(r"R(\d+)\s*\(release\)\s*,\s*REVISION:\s*(\d+)(?:\.(\d+))?", re.IGNORECASE)

_JETPACKS: Final = (
    ((35, 0), (36, 0), "5.1"),
    ((36, 3), (36, 4), "6.0"),
    ((36, 4), (36, 5), "6.1 or 6.2"),
    ((36, 5), (37, 0), "6.2"),
    ((38, 0), (39, 0), "7.0 or 7.1"),
    ((39, 2), (40, 0), "7.2"),
)
_OLDEST: Final = (36, 4)


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Jetson Linux (L4T).

    Attributes:
        major: Such as 36.
        minor: Such as 4.
        patch: Such as 7; 0 where none is named.
    """

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + (f".{self.patch}" if self.patch else "")

    @property
    def jetpack(self) -> str | None:
        """The JetPack that it came with, None for one that was not known when this was written."""
        for low, high, name in _JETPACKS:
            if low <= (self.major, self.minor) < high:
                return name
        return None

    @property
    def supported(self) -> bool:
        """Whether its TensorRT is new enough: from JetPack 6.1 on."""
        return (self.major, self.minor) >= _OLDEST


@dataclass(frozen=True, slots=True)
class Board:
    """A board.

    Attributes:
        part: The module's part number as the device tree has it, such as `p3767-0005-super`; None on other machines.
        kind: The module, None if it is none that is known.
        model: What the device tree, or else the firmware, calls the machine.
        super_mode: Whether the firmware offers the faster ("Super") power modes.
        release: NVIDIA's system; None on other machines, or where its file is missing or unreadable.
        cores: Processor cores that are present, on or off.
        memory_bytes: What the system has of the memory.
        doubt: What does not fit together, for people; None as a rule.
    """

    part: str | None
    kind: ModuleKind | None
    model: str
    super_mode: bool
    release: Release | None
    cores: int
    memory_bytes: int
    doubt: str | None = None

    @property
    def is_jetson(self) -> bool:
        """Whether it is a Jetson of the Orin family."""
        return self.part is not None


def identify_board(paths: BoardPaths) -> Board:
    """Finds out what the machine is; works on any Linux."""
    compatible = (paths.text("/proc/device-tree/compatible") or "").split("\0")
    model = paths.text("/proc/device-tree/model") or paths.text("/sys/class/dmi/id/product_name") or "unknown machine"
    part, super_mode = _part_of(compatible)
    found, cores = read_memory(paths), _cores(paths)
    memory = 0 if found is None else found.total
    kind = None if part is None else MODULES.get(part.removesuffix("-super"))
    kind, doubt = _checked(kind, part, memory, cores)
    return Board(part, kind, model, super_mode, _release(paths), cores, memory, doubt)


def _part_of(compatible: list[str]) -> tuple[str | None, bool]:
    """The module's part number, which the device tree puts behind the carrier's, as in `p3768-0000+p3767-0005`."""
    for entry in compatible:
        for piece in reversed(entry.removeprefix("nvidia,").split("+")):
            if (match := _PART.fullmatch(piece)) is not None:
                return piece, match[3] is not None
    return None, False


def _checked(
    kind: ModuleKind | None, part: str | None, memory: int, cores: int
) -> tuple[ModuleKind | None, str | None]:
    """Holds the part number to memory and cores: some modules are sold under another's number."""
    if part is None:
        return None, None
    if kind is None:
        return None, f"the module {part} is not known"
    if memory and not _LESS_THAN_SOLD * kind.memory_gib * _GIB <= memory <= kind.memory_gib * _GIB:
        family = [other for other in MODULES.values() if other.key.rsplit("-", 1)[0] == kind.key.rsplit("-", 1)[0]]
        fitting = [other for other in family if _LESS_THAN_SOLD * other.memory_gib <= memory / _GIB <= other.memory_gib]
        doubt = f"{part} is {kind.name}, but the system has {memory / _GIB:.1f} GiB"
        return (fitting[0] if fitting else kind), doubt
    if cores and cores > kind.cores:
        return kind, f"{part} is {kind.name} with {kind.cores} cores, but the system has {cores}"
    return kind, None


def _release(paths: BoardPaths) -> Release | None:
    match = _RELEASE.search(paths.text("/etc/nv_tegra_release") or "")
    return None if match is None else Release(int(match[1]), int(match[2]), int(match[3] or 0))


def _cores(paths: BoardPaths) -> int:
    """Cores that are present, from a list such as `0-3,6`."""
    total = 0
    for span in (paths.text("/sys/devices/system/cpu/present") or "").split(","):
        first, _, last = span.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            total += int(last or first) - int(first) + 1
    return total or os.cpu_count() or 1
