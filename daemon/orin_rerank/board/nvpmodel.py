"""Which power mode the board is in, and how it gets into another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.board.programs import run_program
from orin_rerank.errors import BoardBusyError, BoardError, RebootNeededError

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.power_modes import PowerMode, PowerModes

__all__ = [
    "PROGRAM",
    "QUERY_TIMEOUT_S",
    "STATUS",
    "CurrentMode",
    "how_to_reboot_for",
    "parse_query",
    "read_current_mode",
    "read_noted_mode",
    "set_mode",
]

PROGRAM: Final = "nvpmodel"
STATUS: Final = "/var/lib/nvpmodel/status"
"""Where nvpmodel notes the mode that it has set; everyone may read it."""

QUERY_TIMEOUT_S: Final = 5.0
_SET_TIMEOUT_S: Final = 25.0
"""It takes a few seconds."""

_WANTS_REBOOT: Final = "reboot required"
_UNKNOWN: Final = "invalid power mode"

_REMARK: Final = "NVPM "

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
        modes: Its modes, to add the name to a number, or the number to a name.
    """
    asked = _asked(paths)
    if asked is None:
        return read_noted_mode(paths, modes)
    if asked.id is not None or modes is None:
        return asked
    number = next((mode.id for mode in modes.modes.values() if mode.name == asked.name), None)
    return CurrentMode(number, asked.name, asked.source)


def read_noted_mode(paths: BoardPaths, modes: PowerModes | None = None) -> CurrentMode | None:
    """Reads which mode nvpmodel noted last, which starts no program; None if it has noted none.

    Args:
        paths: The board.
        modes: Its modes, to add the name to a number.
    """
    match = _NOTED.search(paths.text(STATUS) or "")
    if match is None:
        return None
    number = int(match[1])
    known = None if modes is None else modes.modes.get(number)
    return CurrentMode(number, None if known is None else known.name, STATUS)


def set_mode(paths: BoardPaths, mode: PowerMode, timeout_s: float = _SET_TIMEOUT_S, *, reboot: bool = False) -> None:
    """Puts the board into a power mode, as root.

    nvpmodel may ask whether to reboot. It finds its standard input closed then, gives up, and notes nothing: the board
    stays in its mode, whatever else it is rebooted for. With a terminal it would wait for ever.

    Args:
        paths: The board.
        mode: The mode.
        timeout_s: How long it may take.
        reboot: Whether to answer yes to that: nvpmodel notes the mode and **reboots the machine at once**.

    Raises:
        RebootNeededError: If the mode takes a reboot, which was not allowed.
        BoardBusyError: If the board does not take it now: the driver is not up yet, or nvpmodel hangs.
        BoardError: If the board knows no such mode, or has no nvpmodel.
    """
    limit = min(_SET_TIMEOUT_S, timeout_s)
    answer = run_program(paths, PROGRAM, "-m", str(mode.id), timeout_s=limit, answer="YES\n" if reboot else None)
    if _WANTS_REBOOT in answer.output.lower() and not (reboot and answer.code == 0):
        raise RebootNeededError(
            f"takes a reboot that is made for it: {how_to_reboot_for(mode)}", item=f"power mode {mode.name}"
        )
    if _UNKNOWN in answer.output.lower():
        raise BoardError(f"nvpmodel does not know it: {answer.gist}", item=f"power mode {mode.name}")
    if answer.code != 0:
        raise BoardBusyError(f"nvpmodel failed: {answer.gist}", item=f"power mode {mode.name}")


def how_to_reboot_for(mode: PowerMode) -> str:
    """What a person does about a mode that takes a reboot; any other reboot would leave the board in its mode."""
    return f"`sudo {PROGRAM} -m {mode.id}`, and YES"


def parse_query(output: str) -> CurrentMode | None:
    """Reads what `nvpmodel -q` printed: the mode's name, and its number on the next line; warnings may be between."""
    lines = [line.strip() for line in output.splitlines() if not line.lstrip().startswith(_REMARK)]
    for number, line in enumerate(lines):
        if (match := _NAME.match(line)) is not None:
            following = "".join(lines[number + 1 : number + 2])
            return CurrentMode(int(following) if following.isdigit() else None, match[1].strip(), "nvpmodel -q")
    return None


def _asked(paths: BoardPaths) -> CurrentMode | None:
    try:
        return parse_query(run_program(paths, PROGRAM, "-q", timeout_s=QUERY_TIMEOUT_S).output)
    except BoardError:  # there is none, or it hangs
        return None
