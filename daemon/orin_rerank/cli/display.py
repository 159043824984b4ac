"""What every progress display has in common: it is there for as long as its context lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress
    from typing_extensions import Self

__all__ = ["ProgressDisplay"]


class ProgressDisplay:
    """A context that shows `_progress`, which who derives from it sets up."""

    _progress: Progress

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._on_interrupt()

    def _on_interrupt(self) -> None:
        """Says what Ctrl-C has left; as a rule nothing."""
