"""Notices that something has undone the clocks, as every run of nvpmodel does, and asks for them again.

The daemon has no right to set them: it asks the root service by one word in a file (`board.request`). What does not
help is asked for less and less often, up to once an hour.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from orin_rerank.board.clocks import read_clocks
from orin_rerank.board.jetson_clocks import PROGRAM
from orin_rerank.board.module import identify_board
from orin_rerank.board.request import OUTCOME, REQUEST, BoardRequest, write_request
from orin_rerank.board.tuning import read_outcome
from orin_rerank.errors import BoardError
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.tuning import Tuning

__all__ = ["BoardWatch"]

_log = logging.getLogger(__name__)

_PERIOD_S: Final = 10.0
_FIRST_WAIT_S: Final = 30.0
_LONGEST_WAIT_S: Final = 3600.0
_CALM_S: Final = 600.0
"""Clocks that hold for so long are held to be right: the next time, it is asked at once again."""


class BoardWatch:
    """Watches a board in a thread of its own; a context manager.

    Args:
        paths: The board.
        tuning: How it shall be.
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
        self._locks = tuning.lock_clocks and identify_board(paths).is_jetson and paths.program(PROGRAM) is not None
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
        if self._locks:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def look(self) -> bool:
        """Looks once, and asks for the clocks if they are not locked and it is time to.

        Returns:
            Whether it asked.
        """
        if not self._locks:
            return False
        now = self._clock()
        if read_clocks(self._paths).locked:
            self._problems = ()
            self._right_since_s = now if self._right_since_s is None else self._right_since_s
            if now - self._right_since_s >= _CALM_S:
                self._wait_s, self._asked_s = _FIRST_WAIT_S, None
            return False
        self._right_since_s = None
        outcome = read_outcome(self._paths.at(str(OUTCOME)))
        why = f": {outcome.problem}" if outcome is not None and outcome.problem else ""
        self._problems = (f"clocks are not locked{why}; `orin-rerank board show` says more",)
        if self._asked_s is not None and now - self._asked_s < self._wait_s:
            return False
        if self._asked_s is not None:
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        self._asked_s = now
        return self._ask()

    def _ask(self) -> bool:
        try:
            write_request(BoardRequest.TUNE, self._paths.at(str(REQUEST)))
        except BoardError as error:
            _log.warning("clocks cannot be asked for", extra=fields(reason=str(error), again_in_s=self._wait_s))
            return False
        _log.warning("clocks are not locked; asked for them", extra=fields(again_in_s=self._wait_s))
        return True

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            self.look()
