"""What a person sees while a calibration runs: its stages, the set's card, warnings, and what the gate refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from orin_rerank.cli.calibration_tables import coverage_table
from orin_rerank.cli.display import ProgressDisplay
from orin_rerank.cli.output import progress_console
from orin_rerank.lifecycle.calibrate import Spectator

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from orin_rerank.quantization.coverage import Coverage
    from orin_rerank.quantization.gate import GateRecord
    from orin_rerank.quantization.plan import QuantizationPlan

__all__ = ["ShownCalibration"]


class ShownCalibration(ProgressDisplay, Spectator):
    """Shows a calibration: progress and warnings on standard error, tables where results go.

    Args:
        out: For tables.

    Attributes:
        last: What the gate saw last; None before it saw anything.
    """

    def __init__(self, out: Console) -> None:
        self.last: GateRecord | None = None
        self._out = out
        self._err = progress_console()
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=self._err,
            transient=True,
            disable=not self._err.is_terminal,
        )
        self._task: TaskID | None = None
        self._attempts = 0

    def show(self, what: RenderableType) -> None:
        """Prints something among the results, above the progress display where that is on the same screen."""
        same_screen = self._out.is_terminal and self._err.is_terminal
        (self._err if same_screen else self._out).print(what)

    def on_stage(self, stage: str, done: int, total: int) -> None:
        """Shows how far a stage is."""
        if self._task is None or (done, total) == (0, 0):
            if self._task is not None:
                self._progress.update(self._task, total=1, completed=1)
            self._task = self._progress.add_task(stage, total=None, count="")
        count = f"{done / total:.0%}" if total else f"{done:,}"
        self._progress.update(self._task, completed=done, total=total or None, count=count if done else "")

    def on_coverage(self, card: Coverage) -> None:
        """Shows the card at once: whether the rest is worth waiting for can be told by it."""
        self.show(coverage_table(card))

    def on_warning(self, warning: str) -> None:
        """Shows a warning."""
        self._err.print(Text(f"warning: {warning}", style="yellow"))

    def on_attempt(self, plan: QuantizationPlan, record: GateRecord) -> None:
        """Shows why a plan was refused."""
        self.last = record
        self._attempts += 1
        if reasons := record.verdict.reasons:
            wide = f"with {plan.wide_share:.1%} of the decoder's work wide"
            self._err.print(Text(f"plan {self._attempts}, {wide}: {'; '.join(reasons)}", style="yellow"))
