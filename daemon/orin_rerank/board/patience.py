"""How long a board is given for what it does not take yet."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import BoardBusyError
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Patience"]

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_FIRST_WAIT_S: Final = 2.0
_LEAST_S: Final = 1.0
"""Less time is none for a program."""


class Patience:
    """Tries again, with growing waits, until the time is up: at boot drivers may not be up yet, and programs may hang.

    Args:
        limit_s: How long that may take, programs and waits together.
        sleep: Waits.
        clock: Monotonic seconds.
    """

    def __init__(
        self, limit_s: float, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sleep = sleep
        self._clock = clock
        self._end_s = clock() + limit_s

    def persist(self, action: Callable[[float], None]) -> None:
        """Does something, and tries again what the board does not take yet.

        Args:
            action: Is given how many seconds are left for what it starts.

        Raises:
            BoardBusyError: The last of them, if the board has not taken it.
        """
        wait = _FIRST_WAIT_S
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                action(max(_LEAST_S, self._end_s - self._clock()))
            except BoardBusyError as error:
                if attempt == _ATTEMPTS or self._clock() + wait + _LEAST_S > self._end_s:
                    raise
                _log.warning("the board does not take it yet", extra=fields(reason=str(error), again_in_s=wait))
            else:
                return
            self._sleep(wait)
            wait *= 2
