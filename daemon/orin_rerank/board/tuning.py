"""How a board shall be, what came of it, and whether it is so."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.board.clocks import read_clocks
from orin_rerank.board.module import identify_board
from orin_rerank.board.snapshot import fastest_mode
from orin_rerank.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.power_modes import PowerMode, PowerModes

__all__ = ["FASTEST", "KEEP", "Tuning", "TuningOutcome", "are_clocks_locked", "read_outcome", "wanted_mode"]

FASTEST: Final = "fastest"
"""Takes the power mode in which the GPU does most."""
KEEP: Final = "keep"
"""Leaves the power mode as it is."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the board shall be.

    Attributes:
        power_mode: `fastest`, `keep`, or a mode's name or number.
        lock_clocks: Whether clocks shall be locked at their highest.
        reboot: Whether the machine may be rebooted, once, for a power mode that takes it, before it serves.
    """

    power_mode: str = FASTEST
    lock_clocks: bool = True
    reboot: bool = False

    def __post_init__(self) -> None:
        """Takes `Fastest` for `fastest`.

        Raises:
            SettingsError: If the power mode can be none.
        """
        mode = self.power_mode.strip()
        if not mode:
            raise SettingsError(f'is empty; "{FASTEST}", "{KEEP}", or a mode\'s name or number', item="power_mode")
        if mode.startswith("-") and mode[1:].isdigit():
            raise SettingsError("is negative; modes count from 0", item="power_mode")
        object.__setattr__(self, "power_mode", mode.lower() if mode.lower() in (FASTEST, KEEP) else mode)


@dataclass(frozen=True, slots=True)
class TuningOutcome:
    """What came of it.

    Attributes:
        mode: Name of the power mode that the board is in; None where it has none.
        wanted: Name of the one that it shall be in.
        clocks_locked: Whether clocks are locked; None where the board has no jetson_clocks.
        reboot_needed: Whether the wanted mode waits for a reboot.
        changed: What was changed, for people; empty where everything was as it shall be.
        problem: What is not as it shall be and why, for people; None if all is.
        lock_clocks: Whether clocks shall be locked.
    """

    mode: str | None = None
    wanted: str | None = None
    clocks_locked: bool | None = None
    reboot_needed: bool = False
    changed: tuple[str, ...] = ()
    problem: str | None = None
    lock_clocks: bool = True

    def to_json(self) -> bytes:
        """As `read_outcome` reads it."""
        return json.dumps({"format": 1, **dataclasses.asdict(self)}, indent=1).encode()


def read_outcome(file: Path) -> TuningOutcome | None:
    """What the root service noted last; None if there is nothing that can be read."""
    try:
        value: dict[str, Any] = json.loads(file.read_bytes())
        if value.pop("format") != 1:
            return None
        return TuningOutcome(**{**value, "changed": tuple(value["changed"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def wanted_mode(paths: BoardPaths, modes: PowerModes, tuning: Tuning) -> PowerMode | None:
    """The power mode that the board shall be in; None where it is to stay as it is.

    Raises:
        BoardError: If the board has no such mode.
    """
    if tuning.power_mode == KEEP:
        return None
    if tuning.power_mode == FASTEST:
        return fastest_mode(paths, identify_board(paths), modes)
    return modes.find(tuning.power_mode)


def are_clocks_locked(paths: BoardPaths, outcome: TuningOutcome | None) -> bool:
    """Whether clocks are locked, as far as somebody sees who is not root.

    Where the GPU's clock is at a place that is not known, only root sees it: then what the root service saw counts, as
    long as the processor's clocks are locked.

    Args:
        paths: The board.
        outcome: What the root service said last.
    """
    clocks = read_clocks(paths)
    if clocks.gpu is not None:
        return clocks.locked
    return outcome is not None and outcome.clocks_locked is True and all(one.locked for one in clocks.cpus.values())
