"""Power mode and clocks as they shall be: the work of the root service, at every boot and whenever they were undone.

Everything is asked before it is changed, so that a second run changes nothing. What was found before the first change
is kept in the state folder, so that it can be given back when the package goes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.board.jetson_clocks import PROGRAM, clocks_as_root, lock_clocks, restore_clocks, store_clocks
from orin_rerank.board.module import identify_board
from orin_rerank.board.nvpmodel import read_current_mode, set_mode
from orin_rerank.board.power_modes import read_power_modes
from orin_rerank.board.snapshot import fastest_mode
from orin_rerank.durable import part_of, replace_file, sync_folder
from orin_rerank.errors import BoardBusyError, BoardError, RebootNeededError
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.power_modes import PowerMode, PowerModes

__all__ = ["FASTEST", "KEEP", "Tuning", "TuningOutcome", "read_outcome", "restore_board", "tune_board", "wanted_mode"]

_log = logging.getLogger(__name__)

FASTEST: Final = "fastest"
"""Takes the power mode in which the GPU does most."""
KEEP: Final = "keep"
"""Leaves the power mode as it is."""

_FIRST_CLOCKS: Final = "clocks.stored"
_FIRST_MODE: Final = "mode.stored"
_REBOOTED_FOR: Final = "rebooted-for"

_ATTEMPTS: Final = 5
_FIRST_WAIT_S: Final = 2.0
_SETTLE_S: Final = 0.5


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
    """

    mode: str | None = None
    wanted: str | None = None
    clocks_locked: bool | None = None
    reboot_needed: bool = False
    changed: tuple[str, ...] = ()
    problem: str | None = None

    def to_json(self) -> bytes:
        """As `read_outcome` reads it."""
        return json.dumps({"format": 1, **dataclasses.asdict(self)}, indent=1).encode()


def tune_board(
    paths: BoardPaths, tuning: Tuning, state: Path, sleep: Callable[[float], None] = time.sleep
) -> TuningOutcome:
    """Sets power mode and clocks, as root; on a machine that has neither it does nothing.

    A setting that the board does not take yet, as early at boot, is tried again with growing waits, 30 s in all. One
    that fails does not keep the other from being made: clocks are locked in whatever mode the board is in.

    Args:
        paths: The board.
        tuning: How it shall be.
        state: Folder for what was found at first; made if missing.
        sleep: Waits.

    Nothing is raised, so that the daemon always learns what became of it.
    """
    modes, broken = None, None
    try:
        modes = read_power_modes(paths)
    except BoardError as error:
        broken = str(error)
    try:
        state.mkdir(parents=True, exist_ok=True)
        _persistently(lambda: _keep_first(paths, modes, state), sleep)
    except (BoardError, OSError) as error:  # nor is it on a disk that takes nothing
        return TuningOutcome(problem=f"nothing is changed, since what is set now cannot be noted: {error}")
    outcome = TuningOutcome(problem=broken)
    if modes is not None:
        outcome = _tune_mode(paths, modes, tuning, state, sleep)
    if paths.program(PROGRAM) is not None:
        outcome = _tune_clocks(paths, tuning, outcome, sleep)
    return outcome


def restore_board(paths: BoardPaths, state: Path) -> TuningOutcome:
    """Gives back the power mode and clocks that were found before the first change, and forgets them.

    Raises:
        RebootNeededError: If the mode takes a reboot; clocks are given back all the same, the rest is kept for later.
        BoardBusyError: If the board does not take it now.
        BoardError: If what was kept is no longer understood.
    """
    changed: list[str] = []
    first_mode, first_clocks = state / _FIRST_MODE, state / _FIRST_CLOCKS
    reboot: RebootNeededError | None = None
    modes = read_power_modes(paths)
    if modes is not None and first_mode.exists():
        mode = modes.find(first_mode.read_text(encoding="ascii"))
        current = read_current_mode(paths, modes)
        if current is None or current.id != mode.id:
            try:
                set_mode(paths, mode)
                changed.append(f"power mode {mode.name}")
            except RebootNeededError as error:
                reboot = error
    if first_clocks.exists():
        restore_clocks(paths, first_clocks)
        changed.append("clocks as they were")
    if reboot is not None:
        raise reboot
    for file in (first_mode, first_clocks, state / _REBOOTED_FOR):
        file.unlink(missing_ok=True)
    now = read_current_mode(paths, modes)
    return TuningOutcome(mode=None if now is None else now.name, changed=tuple(changed))


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


def _keep_first(paths: BoardPaths, modes: PowerModes | None, state: Path) -> None:
    """Notes mode and clocks before anything is changed; what is noted is never noted again."""
    file = state / _FIRST_MODE
    if not file.exists():
        current = read_current_mode(paths, modes)
        if current is not None and current.id is not None:
            replace_file(file, str(current.id).encode())
    file = state / _FIRST_CLOCKS
    if not file.exists() and paths.program(PROGRAM) is not None:
        part = part_of(file)  # it writes in place, so a power cut would leave half
        part.unlink(missing_ok=True)
        store_clocks(paths, part)
        with part.open("rb") as stored:
            if not stored.read(1):
                raise BoardBusyError("stored no clocks", item=PROGRAM)
            os.fsync(stored.fileno())
        part.replace(file)
        sync_folder(state)


def _tune_mode(
    paths: BoardPaths, modes: PowerModes, tuning: Tuning, state: Path, sleep: Callable[[float], None]
) -> TuningOutcome:
    current = read_current_mode(paths, modes)
    now = None if current is None else current.name or str(current.id)
    try:
        wanted = wanted_mode(paths, modes, tuning)
    except BoardError as error:
        return TuningOutcome(now, tuning.power_mode, problem=f"[board] power_mode: {error}")
    if wanted is None or (current is not None and current.id == wanted.id):
        (state / _REBOOTED_FOR).unlink(missing_ok=True)
        return TuningOutcome(mode=now, wanted=now)
    try:
        _persistently(lambda: set_mode(paths, wanted), sleep)
    except RebootNeededError as error:
        return _needing_reboot(paths, wanted, tuning, state, TuningOutcome(now, wanted.name, problem=str(error)))
    except BoardError as error:
        return TuningOutcome(now, wanted.name, problem=str(error))
    after = read_current_mode(paths, modes)
    if after is None or after.id != wanted.id:
        problem = f"power mode {wanted.name}: nvpmodel set it, but says that the board is in {after and after.name}"
        return TuningOutcome(now, wanted.name, problem=problem)
    _log.info("power mode set", extra=fields(mode=wanted.name, before=now))
    return TuningOutcome(wanted.name, wanted.name, changed=(f"power mode {wanted.name}",))


def _needing_reboot(
    paths: BoardPaths, wanted: PowerMode, tuning: Tuning, state: Path, outcome: TuningOutcome
) -> TuningOutcome:
    """Reboots for a mode where that is allowed, and never twice for the same one."""
    outcome = dataclasses.replace(outcome, reboot_needed=True)
    mark = state / _REBOOTED_FOR
    if not tuning.reboot:
        return outcome
    if mark.exists() and mark.read_text(encoding="ascii") == str(wanted.id):
        problem = f"power mode {wanted.name}: the board was rebooted for it, and is not in it; not rebooted again"
        return dataclasses.replace(outcome, problem=problem)
    # On disk before the reboot: a machine that reboots for ever is worse than a slow one.
    try:
        replace_file(mark, str(wanted.id).encode())
    except OSError as error:
        problem = f"{outcome.problem}; not rebooted, since that cannot be noted: {error.strerror}"
        return dataclasses.replace(outcome, problem=problem)
    _log.warning("rebooting for a power mode", extra=fields(mode=wanted.name))
    try:
        set_mode(paths, wanted, reboot=True)
    except BoardError as error:
        return dataclasses.replace(outcome, problem=str(error))
    return dataclasses.replace(outcome, changed=("rebooting",))


def _tune_clocks(
    paths: BoardPaths, tuning: Tuning, outcome: TuningOutcome, sleep: Callable[[float], None]
) -> TuningOutcome:
    locked = clocks_as_root(paths).locked
    if not tuning.lock_clocks or locked or "rebooting" in outcome.changed:
        return dataclasses.replace(outcome, clocks_locked=locked)

    def lock() -> None:
        lock_clocks(paths)
        sleep(_SETTLE_S)  # the memory's clock follows a moment later
        if not clocks_as_root(paths).locked:
            raise BoardBusyError("ran, but the clocks are not at their highest", item=PROGRAM)

    try:
        _persistently(lock, sleep)
    except BoardBusyError as error:
        problems = [outcome.problem, str(error)]
        text = "; ".join(problem for problem in problems if problem)
        return dataclasses.replace(outcome, clocks_locked=False, problem=text)
    _log.info("clocks locked", extra=fields())
    return dataclasses.replace(outcome, clocks_locked=True, changed=(*outcome.changed, "clocks locked"))


def _persistently(action: Callable[[], None], sleep: Callable[[float], None]) -> None:
    """Tries again what the board does not take yet."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            action()
        except BoardBusyError as error:  # noqa: PERF203 - it waits for seconds
            if attempt == _ATTEMPTS:
                raise
            wait = _FIRST_WAIT_S * 2 ** (attempt - 1)
            _log.warning("the board does not take it yet", extra=fields(reason=str(error), again_in_s=wait))
            sleep(wait)
        else:
            return
