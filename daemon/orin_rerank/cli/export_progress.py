"""What a person sees while a checkpoint is exported: how much of the weights is written, how fast, and what remains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from orin_rerank.cli.display import ProgressDisplay
from orin_rerank.cli.output import progress_console
from orin_rerank.lifecycle.export import ExportSpectator

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Task, TaskID

__all__ = ["ShownExport"]

_CHECKING: Final = "checking what is there"
_WRITING: Final = "writing weights"


class ShownExport(ProgressDisplay, ExportSpectator):
    """Shows an export on standard error, where that is a terminal."""

    def __init__(self) -> None:
        self._err = progress_console()
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", markup=False),
            *(_OfBytes(column) for column in (BarColumn(bar_width=20), DownloadColumn(), TransferSpeedColumn())),
            _OfBytes(TimeRemainingColumn(compact=True)),
            console=self._err,
            transient=True,
            disable=not self._err.is_terminal,
        )
        self._task: TaskID | None = None
        self._stage = ""

    def _on_interrupt(self) -> None:
        if self._stage == _WRITING:
            self._err.print(Text("stopped; what is written is kept, and the same command goes on from there"))

    def on_stage(self, stage: str) -> None:
        """Shows what is done from now on."""
        self._begin(stage, 0, None)

    def on_checked(self, done: int, total: int) -> None:
        """Shows how much of what is there has been checked."""
        self._move(_CHECKING, done, total)

    def on_written(self, done: int, total: int) -> None:
        """Shows how much is written."""
        self._move(_WRITING, done, total)

    def _move(self, stage: str, done: int, total: int) -> None:
        if self._stage != stage or self._task is None:
            self._begin(stage, done, total)
        else:
            self._progress.update(self._task, completed=done)

    def _begin(self, stage: str, done: int, total: int | None) -> None:
        if self._task is not None:
            self._progress.update(self._task, total=1, completed=1, visible=False)
        self._stage = stage
        # Bytes of an earlier export count as done, but not towards the speed.
        self._task = self._progress.add_task(stage, total=total, completed=done)


class _OfBytes(ProgressColumn):
    """A column of a stage that is counted in bytes; empty for others."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        """The cell."""
        return Text() if task.total is None else self._column(task)
