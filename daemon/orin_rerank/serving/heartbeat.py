"""What systemd hears of the daemon: how it gets on, and that it lives, as long as there is proof of it.

While it starts, something must have been heard from the step that is taken within that step's patience; then it is
given more time. While it serves, every engine thread must have come round for its next pack, or run one that is not
overdue. A thread that hangs, and an event loop that does, starve the watchdog. Nothing is sent by the clock alone.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from orin_rerank.lifecycle.first_boot.progress import Progress, Step
from orin_rerank.v1 import rerank_pb2 as pb

if TYPE_CHECKING:
    from orin_rerank.serving.state import DaemonState
    from orin_rerank.telemetry.notify import Notifier

__all__ = ["Heartbeat"]

_EXTENSION_S: Final = 60.0
"""For how long each sign of life holds while it starts."""
_USUAL_S: Final = 10.0
_LOADING: Final = Progress(Step.LOAD, "loading")
"""What it is at where nothing is said of steps."""
_SHARE: Final = 3.0
"""Signs of life in the time that systemd waits for one."""


class Heartbeat:
    """Speaks for a daemon from its start to its end; belongs to its event loop.

    Args:
        notifier: Where to.
        state: The daemon's.
    """

    def __init__(self, notifier: Notifier, state: DaemonState) -> None:
        self._notifier = notifier
        self._state = state
        watchdog_s = notifier.watchdog_s
        self._period_s = _USUAL_S if watchdog_s is None else min(watchdog_s / _SHARE, _USUAL_S)
        self._patience_s = _USUAL_S if watchdog_s is None else watchdog_s / 2
        self._said = ""
        self._preparation_ends = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins, if anybody listens."""
        if self._notifier.heard:
            self._task = asyncio.ensure_future(self._beat())

    def ready(self) -> None:
        """Requests are served from now on."""
        self._said = self._state.line
        self._notifier.ready(self._said)

    def reloading(self) -> bool:
        """Settings are read again, and `ready` follows; False where it is not ready yet, and nothing is said."""
        if self._state.state != pb.STATE_SERVING:
            return False
        self._notifier.reloading(time.monotonic_ns() // 1000)
        return True

    def stopping(self, within_s: float) -> None:
        """The daemon is on its way out: a preparation that is being ended gets no more time.

        Args:
            within_s: How long requests that run may take, and their threads; where the settings give them more than
                the unit's TimeoutStopSec, systemd hears of it.
        """
        self._preparation_ends = True
        self._notifier.stopping(self._state.line)
        if self._state.scheduler is not None:
            self._notifier.extend(within_s)

    def stop(self) -> None:
        """Says no more."""
        if self._task is not None:
            self._task.cancel()

    async def _beat(self) -> None:
        while True:
            self._tell()
            if self._state.scheduler is not None:
                if self._state.scheduler.proves_life(self._patience_s):
                    self._notifier.alive()
            elif not self._preparation_ends and self._is_heard():
                self._notifier.extend(_EXTENSION_S)
                self._notifier.alive()
            await asyncio.sleep(self._period_s)

    def _tell(self) -> None:
        line = self._state.line
        if line != self._said:
            self._said = line
            self._notifier.status(line)

    def _is_heard(self) -> bool:
        """Whether the step that is taken moved within its patience."""
        progress = self._state.progress or _LOADING
        return time.monotonic() - self._state.heard_s < progress.patience_s
