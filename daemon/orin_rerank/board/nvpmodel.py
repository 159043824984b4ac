"""Which power mode the board is in."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.power_modes import PowerModes

__all__ = ["STATUS", "CurrentMode", "parse_query", "read_current_mode"]

STATUS: Final = "/var/lib/nvpmodel/status"
"""Where nvpmodel notes the mode that it has set; everyone may read it."""

_QUERY_TIMEOUT_S: Final = 10.0

_NAME = re.compile(r"^NV Power Mode:\s*(\S.*)$")
_NOTED = re.compile(r"\bpmode:\s*(\d+)")


@dataclass(frozen=True, slots=True)
class CurrentMode:
    """The mode that the board is in.

    Attributes:
        id: Its number, None if only the name is known.
        name: Its name, None if only the number is known.
        source: Who says so: `nvpmodel -q` or `/var/lib/nvpmodel/status`.
    """

    id: int | None
    name: str | None
    source: str


def read_current_mode(paths: BoardPaths, modes: PowerModes | None = None) -> CurrentMode | None:
    """Asks nvpmodel, and where it does not answer, reads what it noted; None where neither is to be had.

    Args:
        paths: The board.
        modes: Its modes, to add the name to a number.
    """
    return _asked(paths) or _noted(paths, modes)


def parse_query(output: str) -> CurrentMode | None:
    """Reads what `nvpmodel -q` printed: the mode's name, and its number on the next line; warnings may precede."""
    lines = [line.strip() for line in output.splitlines()]
    for number, line in enumerate(lines):
        if (match := _NAME.match(line)) is not None:
            following = "".join(lines[number + 1 : number + 2])
            return CurrentMode(int(following) if following.isdigit() else None, match[1].strip(), "nvpmodel -q")
    return None


def _asked(paths: BoardPaths) -> CurrentMode | None:
    program = paths.program("nvpmodel")
    if program is None:
        return None
    try:
        # Standard input is closed: with a terminal of ours it may ask, and wait for ever.
        done = subprocess.run(  # noqa: S603 - the board's own program, and fixed arguments
            [program, "-q"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_QUERY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_query(done.stdout)


def _noted(paths: BoardPaths, modes: PowerModes | None) -> CurrentMode | None:
    match = _NOTED.search(paths.text(STATUS) or "")
    if match is None:
        return None
    number = int(match[1])
    known = None if modes is None else modes.modes.get(number)
    return CurrentMode(number, None if known is None else known.name, STATUS)
