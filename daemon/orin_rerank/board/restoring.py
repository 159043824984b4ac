"""What was found is given back: the work of the package's last moment, before there is no program that could."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from orin_rerank.board.found import FoundSettings, exclusively
from orin_rerank.board.jetson_clocks import clocks_as_root, restore_clocks
from orin_rerank.board.nvpmodel import read_current_mode, set_mode
from orin_rerank.board.patience import Patience
from orin_rerank.board.power_modes import CONFIG, read_power_modes
from orin_rerank.board.tuner import CLOCKS_S, MODE_S, REBOOTED_FOR
from orin_rerank.board.tuning import TuningOutcome
from orin_rerank.errors import BoardError, RebootNeededError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.power_modes import PowerModes

__all__ = ["restore_board"]


def restore_board(
    paths: BoardPaths,
    state: Path,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> TuningOutcome:
    """Gives back the power mode and the clocks that were found before they were changed, as root.

    One that cannot be given back does not keep the other from it. What was given back is forgotten, and the rest is
    kept for another try. A mode that somebody else has set since is left alone.

    Args:
        paths: The board.
        state: Folder of what was found.
        sleep: Waits.
        clock: Monotonic seconds.

    Raises:
        BoardBusyError: If another is at work on the board.
        PermissionError: If this is not root.
    """
    if not state.is_dir():
        return TuningOutcome(lock_clocks=False)
    with exclusively(state):
        found = FoundSettings(state)
        outcome = TuningOutcome(lock_clocks=False)
        modes: PowerModes | None = None
        try:
            modes = read_power_modes(paths)
            outcome = _restore_mode(paths, modes, found, Patience(MODE_S, sleep, clock))
        except RebootNeededError as error:
            outcome = dataclasses.replace(outcome, reboot_needed=True, problem=str(error))
        except BoardError as error:
            outcome = dataclasses.replace(outcome, problem=f"the power mode is not given back: {error}")
        else:
            _forget(found.mode_file)
            _forget(state / REBOOTED_FOR)
        if found.clocks_file.exists():
            outcome = _restore_clocks(paths, found, Patience(CLOCKS_S, sleep, clock), outcome)
        now = read_current_mode(paths, modes)
        locked = clocks_as_root(paths).locked if outcome.clocks_locked is not None else None
        return dataclasses.replace(outcome, mode=None if now is None else now.name, clocks_locked=locked)


def _restore_mode(
    paths: BoardPaths, modes: PowerModes | None, found: FoundSettings, patience: Patience
) -> TuningOutcome:
    noted = found.modes()
    nothing = TuningOutcome(lock_clocks=False)
    if not noted:
        return nothing
    if modes is None:
        raise BoardError("is missing", item=CONFIG)
    first, *ours = noted
    current = read_current_mode(paths, modes)
    if current is not None and (first.is_same(current) or not any(mode.is_same(current) for mode in ours)):
        return nothing
    mode = first.among(modes)
    patience.persist(lambda left_s: set_mode(paths, mode, left_s))
    return dataclasses.replace(nothing, changed=(f"power mode {mode.name}",))


def _restore_clocks(
    paths: BoardPaths, found: FoundSettings, patience: Patience, outcome: TuningOutcome
) -> TuningOutcome:
    try:
        patience.persist(lambda left_s: restore_clocks(paths, found.clocks_file, left_s))
    except BoardError as error:
        problem = "; ".join(one for one in (outcome.problem, f"the clocks are not given back: {error}") if one)
        return dataclasses.replace(outcome, clocks_locked=True, problem=problem)
    _forget(found.clocks_file)
    return dataclasses.replace(outcome, clocks_locked=False, changed=(*outcome.changed, "clocks as they were"))


def _forget(note: Path) -> None:
    """Removes a note; one that a disk does not let go has the same given back once more."""
    with contextlib.suppress(OSError):
        note.unlink(missing_ok=True)
