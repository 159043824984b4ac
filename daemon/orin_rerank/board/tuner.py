"""Sets power mode and clocks: the work of the root service, at every boot and whenever they were undone.

Everything is asked before it is changed, so that a second run changes nothing. What was found before the first change
is kept in the state folder (`board.found`), so that it can be given back when the package goes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Final

from orin_rerank.board.found import LOCK_WAIT_S, FoundSettings, exclusively
from orin_rerank.board.jetson_clocks import PROGRAM as CLOCKS_PROGRAM
from orin_rerank.board.jetson_clocks import TIMEOUT_S as CLOCKS_TIMEOUT_S
from orin_rerank.board.jetson_clocks import clocks_as_root, lock_clocks
from orin_rerank.board.module import identify_board
from orin_rerank.board.mounts import outlives_reboot
from orin_rerank.board.nvpmodel import QUERY_TIMEOUT_S, how_to_reboot_for, read_current_mode, set_mode
from orin_rerank.board.packages import are_changing
from orin_rerank.board.patience import Patience
from orin_rerank.board.power_modes import read_power_modes
from orin_rerank.board.tuning import TuningOutcome, wanted_mode
from orin_rerank.durable import replace_file
from orin_rerank.errors import BoardBusyError, BoardError, RebootNeededError
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.board.nvpmodel import CurrentMode
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.power_modes import PowerMode, PowerModes
    from orin_rerank.board.tuning import Tuning

__all__ = ["CLOCKS_S", "LONGEST_S", "MODE_S", "REBOOTED_FOR", "tune_board"]

_log = logging.getLogger(__name__)

REBOOTED_FOR: Final = "rebooted-for"
"""In the state folder: the mode, and the release of the system, that the board was rebooted for."""

_STORE_S: Final = 30.0
MODE_S: Final = 50.0
CLOCKS_S: Final = 40.0
_REBOOT_S: Final = 10.0
_LOOKS_S: Final = 2 * QUERY_TIMEOUT_S + 2 * CLOCKS_TIMEOUT_S
LONGEST_S: Final = LOCK_WAIT_S + _LOOKS_S + _STORE_S + MODE_S + _REBOOT_S + CLOCKS_S
"""What all of it may take if every program hangs; a service that is stopped before could not say what is the matter."""

_SETTLE_S: Final = 0.5


def tune_board(
    paths: BoardPaths,
    tuning: Tuning,
    state: Path,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> TuningOutcome:
    """Sets power mode and clocks, as root; on a machine that has neither it does nothing.

    A setting that the board does not take yet, as early at boot, is tried again with growing waits, for half a minute
    or so. One that fails does not keep the other from being made: clocks are locked in whatever mode the board is in.
    What goes wrong is in the outcome, so that the daemon always learns what became of it.

    Args:
        paths: The board.
        tuning: How it shall be.
        state: Folder for what was found at first; made if missing.
        sleep: Waits.
        clock: Monotonic seconds.

    Raises:
        BoardBusyError: If another is at work on it, who will say what became of it.
        PermissionError: If this is not root.
    """
    modes, broken = None, None
    try:
        modes = read_power_modes(paths)
    except BoardError as error:
        broken = str(error)
    if modes is None and broken is None and paths.program(CLOCKS_PROGRAM) is None:
        return TuningOutcome(lock_clocks=tuning.lock_clocks)
    try:
        with exclusively(state):
            return _Tuner(paths, modes, tuning, state, sleep, clock).tune(broken)
    except PermissionError:
        raise
    except OSError as error:
        problem = f"nothing is changed, since what is set now cannot be noted: {error}"
        return TuningOutcome(problem=problem, lock_clocks=tuning.lock_clocks)


class _Tuner:
    """Does it, on a board that is ours alone meanwhile."""

    def __init__(
        self,
        paths: BoardPaths,
        modes: PowerModes | None,
        tuning: Tuning,
        state: Path,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._paths = paths
        self._modes = modes
        self._tuning = tuning
        self._state = state
        self._found = FoundSettings(state)
        self._mark = state / REBOOTED_FOR
        self._sleep = sleep
        self._clock = clock

    def tune(self, broken: str | None) -> TuningOutcome:
        """Sets the mode, and then the clocks, which every change of the mode undoes.

        Args:
            broken: Why the board's modes cannot be read.
        """
        outcome = TuningOutcome(problem=broken)
        current: CurrentMode | None = None
        wanted: PowerMode | None = None
        if self._modes is not None:
            current = read_current_mode(self._paths, self._modes)
            now = None if current is None else current.name or str(current.id)
            try:
                wanted = wanted_mode(self._paths, self._modes, self._tuning)
                outcome = TuningOutcome(now, now if wanted is None else wanted.name)
                self._forget_mark_of_another(wanted)
            except BoardError as error:
                outcome = TuningOutcome(now, self._tuning.power_mode, problem=f"[board] power_mode: {error}")
        is_right = wanted is None or (current is not None and current.id == wanted.id)
        has_clocks = self._paths.program(CLOCKS_PROGRAM) is not None
        locked = clocks_as_root(self._paths).locked if has_clocks else None
        unkept: str | None = None
        if self._tuning.lock_clocks and has_clocks and not (is_right and locked):
            unkept = self._keep_clocks()
        if wanted is not None and not is_right:
            outcome = self._set_mode(current, wanted, outcome)
            locked = clocks_as_root(self._paths).locked if has_clocks else None  # whatever came of it
        outcome = dataclasses.replace(outcome, clocks_locked=locked, lock_clocks=self._tuning.lock_clocks)
        if not self._tuning.lock_clocks or not has_clocks or locked or "rebooting" in outcome.changed:
            return outcome
        return _also(outcome, unkept) if unkept is not None else self._lock_clocks(outcome)

    def _patience(self, limit_s: float) -> Patience:
        return Patience(limit_s, self._sleep, self._clock)

    def _keep_clocks(self) -> str | None:
        """Notes clocks before they are locked; returns why that cannot be done."""
        try:
            self._patience(_STORE_S).persist(lambda left_s: self._found.keep_clocks(self._paths, left_s))
        except BoardError as error:
            return f"clocks are not locked, since what they are now cannot be noted: {error}"
        return None

    def _set_mode(self, current: CurrentMode | None, wanted: PowerMode, outcome: TuningOutcome) -> TuningOutcome:
        try:
            self._found.keep_mode(current, wanted)
        except BoardError as error:
            problem = f"power mode {wanted.name}: not set, since the one before it cannot be noted: {error}"
            return dataclasses.replace(outcome, problem=problem)
        try:
            self._patience(MODE_S).persist(lambda left_s: set_mode(self._paths, wanted, left_s))
        except RebootNeededError as error:
            return self._needing_reboot(wanted, dataclasses.replace(outcome, problem=str(error)))
        except BoardError as error:
            return dataclasses.replace(outcome, problem=str(error))
        after = read_current_mode(self._paths, self._modes)
        if after is None or after.id != wanted.id:
            problem = f"power mode {wanted.name}: nvpmodel set it, but says that the board is in {after and after.name}"
            return dataclasses.replace(outcome, problem=problem)
        _log.info("power mode set", extra=fields(mode=wanted.name, before=outcome.mode))
        return dataclasses.replace(outcome, mode=wanted.name, changed=(f"power mode {wanted.name}",))

    def _needing_reboot(self, wanted: PowerMode, outcome: TuningOutcome) -> TuningOutcome:
        """Reboots for a mode where that is allowed, and never twice for the same one."""
        outcome = dataclasses.replace(outcome, reboot_needed=True)
        if not self._tuning.reboot:
            return _also(outcome, "or reboot = true in [board] of the settings")
        if self._marked() is not None:
            problem = "the board was rebooted for it before, and is not in it; not rebooted again"
            problem = f"power mode {wanted.name}: {problem}: {how_to_reboot_for(wanted)}, does so"
            return dataclasses.replace(outcome, problem=problem)
        unnoted = self._note_reboot(wanted)
        if unnoted is not None:
            return _also(outcome, f"not rebooted, since {unnoted}")
        _log.warning("rebooting for a power mode", extra=fields(mode=wanted.name))
        try:
            set_mode(self._paths, wanted, _REBOOT_S, reboot=True)
        except BoardError as error:
            return dataclasses.replace(outcome, problem=str(error))
        return dataclasses.replace(outcome, changed=("rebooting",))

    def _note_reboot(self, wanted: PowerMode) -> str | None:
        """Notes a reboot before it is made; returns why it is not to be made."""
        if are_changing(self._paths):
            return "packages are being installed: it is at the next boot"
        if not outlives_reboot(self._paths, self._state):
            return f"{self._state} may not outlive it"
        # On disk before the reboot: a machine that reboots for ever is worse than a slow one.
        try:
            replace_file(self._mark, self._marking(wanted))
        except OSError as error:
            return f"that cannot be noted: {error.strerror}"
        return None

    def _marking(self, wanted: PowerMode) -> bytes:
        """What is noted of a reboot: an upgrade of the system, which may forget the mode, allows another."""
        return f"{wanted.id} {wanted.name}, L4T {identify_board(self._paths).release}".encode()

    def _marked(self) -> bytes | None:
        """What the board was rebooted for, None if for nothing; a mark that cannot be read is one."""
        try:
            return self._mark.read_bytes()
        except FileNotFoundError:
            return None
        except OSError:
            return b""

    def _forget_mark_of_another(self, wanted: PowerMode | None) -> None:
        """A board that was rebooted for a mode may be rebooted for another."""
        mark = self._marked()
        if mark and (wanted is None or mark != self._marking(wanted)):
            with contextlib.suppress(OSError):
                self._mark.unlink()

    def _lock_clocks(self, outcome: TuningOutcome) -> TuningOutcome:
        def lock(left_s: float) -> None:
            lock_clocks(self._paths, left_s)
            self._sleep(_SETTLE_S)  # the memory's clock follows a moment later
            if not clocks_as_root(self._paths, left_s).locked:
                raise BoardBusyError("ran, but the clocks are not at their highest", item=CLOCKS_PROGRAM)

        try:
            self._patience(CLOCKS_S).persist(lock)
        except BoardError as error:
            return _also(dataclasses.replace(outcome, clocks_locked=False), str(error))
        _log.info("clocks locked", extra=fields())
        return dataclasses.replace(outcome, clocks_locked=True, changed=(*outcome.changed, "clocks locked"))


def _also(outcome: TuningOutcome, problem: str) -> TuningOutcome:
    """An outcome with something more that is not as it shall be."""
    text = "; ".join(one for one in (outcome.problem, problem) if one)
    return dataclasses.replace(outcome, problem=text)
