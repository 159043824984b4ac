"""Notices that something has changed the power mode or undone the clocks, and asks for them again.

Any run of nvpmodel undoes the clocks, and one from the desktop, a script or an update of NVIDIA's changes the mode with
them. The daemon has no right to set either: it asks the root service by one word in a file (`board.request`), which
goes by the settings as they are then. What does not help is asked for less and less often, up to once an hour.

Every look reads a few files and starts no program. How it should be is what the root service has said last: settings
that were changed since are that service's to take up.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from orin_rerank.board.jetson_clocks import PROGRAM as CLOCKS_PROGRAM
from orin_rerank.board.module import identify_board
from orin_rerank.board.nvpmodel import PROGRAM as MODE_PROGRAM
from orin_rerank.board.nvpmodel import read_noted_mode
from orin_rerank.board.power_modes import read_power_modes
from orin_rerank.board.request import OUTCOME, REQUEST, BoardRequest, write_request
from orin_rerank.board.tuning import KEEP, are_clocks_locked, read_outcome
from orin_rerank.errors import BoardError
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.tuning import Tuning, TuningOutcome

__all__ = ["BoardWatch"]

_log = logging.getLogger(__name__)

_PERIOD_S: Final = 10.0
_FIRST_WAIT_S: Final = 30.0
_LONGEST_WAIT_S: Final = 3600.0
_CALM_S: Final = 600.0
"""A board that stays as it should be for so long is held to be right: the next time, it is asked at once again."""


class BoardWatch:
    """Watches a board in a thread of its own; a context manager.

    Args:
        paths: The board.
        tuning: How it shall be; what it leaves alone is not watched.
        period_s: Between two looks.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        paths: BoardPaths,
        tuning: Tuning,
        *,
        period_s: float = _PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._period_s = period_s
        self._clock = clock
        is_jetson = identify_board(paths).is_jetson
        self._sets_mode = is_jetson and tuning.power_mode != KEEP and paths.program(MODE_PROGRAM) is not None
        self._locks = is_jetson and tuning.lock_clocks and paths.program(CLOCKS_PROGRAM) is not None
        self._problems: tuple[str, ...] = ()
        self._wait_s = _FIRST_WAIT_S
        self._asked_s: float | None = None
        self._right_since_s: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="board-watch", daemon=True)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is not as it shall be, for people."""
        return self._problems

    def __enter__(self) -> Self:
        if self._sets_mode or self._locks:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def look(self) -> bool:
        """Looks once, and asks for mode and clocks if they are not as they shall be and it is time to.

        Returns:
            Whether it asked.
        """
        now = self._clock()
        outcome = read_outcome(self._paths.at(str(OUTCOME)))
        found = (self._mode_problem(outcome), self._clocks_problem(outcome))
        self._problems = tuple(problem for problem in found if problem is not None)
        if not self._problems:
            self._right_since_s = now if self._right_since_s is None else self._right_since_s
            if now - self._right_since_s >= _CALM_S:
                self._wait_s, self._asked_s = _FIRST_WAIT_S, None
            return False
        self._right_since_s = None
        if self._asked_s is not None and now - self._asked_s < self._wait_s:
            return False
        if self._asked_s is not None:
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        self._asked_s = now
        return self._ask()

    def _mode_problem(self, outcome: TuningOutcome | None) -> str | None:
        """What is wrong with the power mode, as far as asking may help.

        It does not where the mode waits for a reboot, or the board has none of that name: what the root service found
        out once it would find out again.
        """
        if not self._sets_mode or outcome is None or outcome.wanted is None:
            return None
        try:
            modes = read_power_modes(self._paths)
            noted = read_noted_mode(self._paths, modes)
            if modes is None or noted is None or modes.find(outcome.wanted).id == noted.id:
                return None
        except BoardError:
            return None
        name = noted.name or str(noted.id)
        if outcome.reboot_needed and name == outcome.mode:
            return None
        return (
            f"the power mode is {name}, though it should be {outcome.wanted}{_because(outcome)}; "
            f'power_mode = "{KEEP}" in [board] of the settings leaves it alone'
        )

    def _clocks_problem(self, outcome: TuningOutcome | None) -> str | None:
        if not self._locks or (outcome is not None and not outcome.lock_clocks):
            return None
        if are_clocks_locked(self._paths, outcome):
            return None
        return f"clocks are not locked{_because(outcome)}; `orin-rerank board show` says more"

    def _ask(self) -> bool:
        try:
            write_request(BoardRequest.TUNE, self._paths.at(str(REQUEST)))
        except BoardError as error:
            values = fields(reason=str(error), again_in_s=self._wait_s)
            _log.warning("power mode and clocks cannot be asked for", extra=values)
            return False
        values = fields(reason="; ".join(self._problems), again_in_s=self._wait_s)
        _log.warning("power mode or clocks are not as they should be; asked for them", extra=values)
        return True

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            self.look()


def _because(outcome: TuningOutcome | None) -> str:
    return f": {outcome.problem}" if outcome is not None and outcome.problem else ""
