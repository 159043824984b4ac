"""What a person sees while a machine is prepared: the step, and how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from orin_rerank.cli.display import ProgressDisplay
from orin_rerank.cli.output import progress_console, snippet

if TYPE_CHECKING:
    from orin_rerank.lifecycle.first_boot.progress import Progress as Step

__all__ = ["ShownPreparation"]

_CELLS: Final = 70


class ShownPreparation(ProgressDisplay):
    """Shows steps on standard error: a bar where that is a terminal, a line for each step elsewhere."""

    stopping: bool = False

    def __init__(self) -> None:
        self._err = progress_console()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            console=self._err,
            transient=True,
            disable=not self._err.is_terminal,
        )
        self._task: TaskID | None = None
        self._step = ""

    def __call__(self, progress: Step, /) -> None:
        """Shows how far a step is."""
        step = progress.step.value
        if step != self._step:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(step, total=1)
            self._step = step
            if not self._err.is_terminal:
                self._err.print(step, markup=False)
        if self._task is not None:
            total = None if progress.fraction is None else 1.0
            self._progress.update(
                self._task,
                total=total,
                completed=progress.fraction or 0.0,
                description=snippet(str(progress), _CELLS),
            )
