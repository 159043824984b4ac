"""Power modes as /etc/nvpmodel.conf defines them, and which of them lets the GPU do most.

Neither a mode's number nor its name says how fast it is. On an Orin NX 16GB the mode `25W` caps the GPU at 408 MHz,
below the 612 MHz of `15W`; on Orin Nano there may be no `MAXN`, and numbers have gaps. What a mode does is in its
lines: the GPU's clock, and the mask of texture processing clusters that stay without power.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import BoardError

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths

__all__ = ["CONFIG", "PowerMode", "PowerModes", "read_power_modes"]

CONFIG: Final = "/etc/nvpmodel.conf"

_HEADING = re.compile(r"<\s*(?P<what>\w+)(?P<attributes>[^<>]*)>")
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*\"?([^\s\">]+)\"?")

_DEFAULT_TPCS: Final = 8
"""Of the largest Orin, where the module is not known; modes of one board compare alike whatever stands here."""


@dataclass(frozen=True, slots=True)
class PowerMode:
    """A power mode.

    Attributes:
        id: Its number.
        name: Its name.
        gpu_max_hz: What it caps the GPU's clock at, in Hz; None if at nothing.
        emc_max_hz: What it caps the memory's clock at, in Hz; None if at nothing.
        tpc_mask: Which texture processing clusters of the GPU are without power, a bit for each.
        cores: How many processor cores it leaves on; None if it does not say.
    """

    id: int
    name: str
    gpu_max_hz: int | None
    emc_max_hz: int | None
    tpc_mask: int
    cores: int | None

    def tpcs(self, of: int) -> int:
        """How many of a GPU's texture processing clusters have power."""
        return of - (self.tpc_mask & ((1 << of) - 1)).bit_count()

    def speed(self, tpcs: int, gpu_hz: int) -> tuple[float, ...]:
        """What modes of one board are ordered by: clusters times clock, then the memory's clock, then cores.

        Args:
            tpcs: Texture processing clusters that the GPU has.
            gpu_hz: The GPU's clock where nothing caps it.
        """
        clock = gpu_hz if self.gpu_max_hz is None else min(self.gpu_max_hz, gpu_hz)
        emc = float("inf") if self.emc_max_hz is None else self.emc_max_hz
        return self.tpcs(tpcs) * clock, self.gpu_max_hz is None, emc, self.cores or 0


@dataclass(frozen=True, slots=True)
class PowerModes:
    """A board's power modes.

    Attributes:
        modes: By number.
        default: Number of the mode that a fresh system starts in; None if the file does not say.
    """

    modes: dict[int, PowerMode]
    default: int | None

    def fastest(self, tpcs: int = _DEFAULT_TPCS, gpu_hz: int | None = None) -> PowerMode:
        """The mode in which the GPU does most; of equal ones the one that holds the rest back least.

        Args:
            tpcs: Texture processing clusters that the GPU has.
            gpu_hz: The GPU's highest clock; None takes the highest cap of any mode.
        """
        caps = [mode.gpu_max_hz for mode in self.modes.values() if mode.gpu_max_hz is not None]
        highest = gpu_hz or max(caps, default=1)
        return max(self.modes.values(), key=lambda mode: (*mode.speed(tpcs, highest), -mode.id))

    def find(self, wanted: str) -> PowerMode:
        """A mode by name or number, as a person writes them in the settings.

        Raises:
            BoardError: If there is none.
        """
        for mode in self.modes.values():
            if wanted.strip().casefold() in (mode.name.casefold(), str(mode.id)):
                return mode
        known = ", ".join(f"{mode.name} ({mode.id})" for mode in self.modes.values())
        raise BoardError(f"there is no such power mode; this board has {known}", item=wanted)


@dataclass(slots=True)
class _Draft:
    """A mode whose lines are being read."""

    id: int
    name: str
    values: dict[tuple[str, str], str] = field(default_factory=dict)

    def mode(self) -> PowerMode:
        online = [value for (what, _), value in self.values.items() if what == "CPU_ONLINE"]
        return PowerMode(
            self.id,
            self.name,
            _cap(self.values.get(("GPU", "MAX_FREQ"))),
            _cap(self.values.get(("EMC", "MAX_FREQ"))),
            max(0, _whole(self.values.get(("TPC_POWER_GATING", "TPC_PG_MASK"))) or 0),
            sum(_whole(value) == 1 for value in online) if online else None,
        )


def read_power_modes(paths: BoardPaths) -> PowerModes | None:
    """Reads the board's power modes; None if it has none, as on a PC.

    The file is read leniently: spaces, the order of attributes and lines that are not known do not matter.

    Raises:
        BoardError: If the file is there and defines no mode.
    """
    text = paths.text(CONFIG)
    if text is None:
        return None
    drafts: dict[int, _Draft] = {}
    default: int | None = None
    current: _Draft | None = None
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        heading = _HEADING.fullmatch(line)
        if heading is None:
            words = line.split()
            if current is not None and len(words) >= 3:  # unit, setting, value
                current.values[(words[0].upper(), words[1].upper())] = words[2]
            continue
        attributes = {key.upper(): value for key, value in _ATTRIBUTE.findall(heading["attributes"])}
        current = None
        number = _whole(attributes.get("ID"))
        if heading["what"].upper() == "POWER_MODEL" and number is not None:
            current = drafts[number] = _Draft(number, attributes.get("NAME", str(number)))
        elif heading["what"].upper() == "PM_CONFIG":
            default = _whole(attributes.get("DEFAULT"))
    if not drafts:
        raise BoardError("defines no power mode", item=CONFIG)
    return PowerModes({number: draft.mode() for number, draft in sorted(drafts.items())}, default)


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def _cap(text: str | None) -> int | None:
    """A clock in Hz; -1, 0 and nothing at all mean no cap."""
    value = _whole(text)
    return value if value is not None and value > 0 else None
