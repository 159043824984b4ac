"""Between what loads a model, on a thread of its own, and the daemon's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orin_rerank.errors import UnavailableError

if TYPE_CHECKING:
    import threading

    from orin_rerank.lifecycle.first_boot.progress import Progress
    from orin_rerank.serving.state import DaemonState

__all__ = ["Reporter"]


class Reporter:
    """Told what loading is at; satisfies `lifecycle.first_boot.progress.Listener`."""

    def __init__(self, state: DaemonState, stopping: threading.Event) -> None:
        self._state = state
        self._stopping = stopping

    def __call__(self, what: Progress | str, /) -> None:
        """Passes on what loading is at; where the daemon is to stop, that is the place to leave off.

        Raises:
            UnavailableError: If it is to stop.
        """
        if self._stopping.is_set():
            raise UnavailableError("the daemon stops")
        self._state.report(what)

    @property
    def stopping(self) -> bool:
        """Whether the daemon is to stop."""
        return self._stopping.is_set()
