"""How an evaluation is shown: a report of one precision, and a comparison of two."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from orin_rerank.cli.output import snippet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.evaluation.metrics import Estimate
    from orin_rerank.evaluation.paired import PairedFigures, PairedReport
    from orin_rerank.evaluation.run import Report, SplitReport

__all__ = ["paired_table", "report_table"]

_LONGEST_NAME = 60


def report_table(report: Report) -> Table:
    """The report as a table: a row a split, and one for all."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("split", no_wrap=True)
    table.add_column("queries", justify="right")
    table.add_column("NDCG@10 [95 %]", justify="right", no_wrap=True)
    table.add_column("chance", justify="right", style="dim")
    table.add_column("BM25", justify="right", style="dim", no_wrap=True)
    table.add_column("MRR", justify="right")
    table.add_column("pairs", justify="right")
    for row in report.splits:
        table.add_row(*_cells(row))
    if len(report.splits) > 1:
        table.add_section()
        table.add_row(*_cells(report.total), style="bold")
    return table


def _cells(row: SplitReport) -> tuple[str | Text, ...]:
    lexical = "—"
    if row.bm25 is not None:
        some = f" ({row.bm25_queries})" if row.bm25_queries < row.queries else ""
        lexical = f"{row.bm25.ndcg.mean:.3f}{some}"
    return (
        _name(row.name),
        str(row.queries),
        _interval(row.model.ndcg),
        f"{row.chance.ndcg:.3f}",
        lexical,
        f"{row.model.mrr.mean:.3f}",
        f"{row.model.pairwise_accuracy.mean:.3f}",
    )


def _interval(value: Estimate) -> str:
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"


def paired_table(report: PairedReport, candidate: str, reference: str) -> Table:
    """The comparison as a table that fits 80 columns: a row a split, and one for all.

    Args:
        report: What is shown.
        candidate: What to call the candidate.
        reference: What to call the reference.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NDCG@10 x 100", overflow="fold")
    table.add_column("n", justify="right", style="dim", no_wrap=True)
    table.add_column(reference, justify="right", no_wrap=True)
    table.add_column(candidate, justify="right", no_wrap=True)
    table.add_column("change [95 %]", justify="right", no_wrap=True)
    table.add_column("flips", justify="right", no_wrap=True)
    table.add_column("corr", justify="right", no_wrap=True)
    table.add_column("shift", justify="right", no_wrap=True)
    for label, row in _grouped(report):
        table.add_row(label, *(() if row is None else _paired_cells(row)))
    if len(report.splits) > 1:
        table.add_section()
        table.add_row(report.total.name, *_paired_cells(report.total), style="bold")
    return table


def _name(split: str) -> Text:
    """A split's name as the set gives it, which is text and no markup."""
    return Text(snippet(split, _LONGEST_NAME))


def _grouped(report: PairedReport) -> Iterator[tuple[Text, PairedFigures | None]]:
    """Splits such as `text-to-image/unseen-style` below a line of their common beginning, which saves its width."""
    heading = ""
    for split in report.splits:
        head, slash, tail = split.name.partition("/")
        if slash and head != heading:
            yield _name(head), None
        heading = head if slash else ""
        yield (Text("  ") + _name(tail) if slash else _name(split.name)), split


def _paired_cells(row: PairedFigures) -> tuple[str, ...]:
    if row.non_finite:
        return (str(row.queries), "", "", f"{row.non_finite} margins not finite", "", "", "")
    mean, low, high = (100 * part for part in (row.difference.mean, row.difference.low, row.difference.high))
    return (
        str(row.queries),
        f"{100 * row.reference.mean:.1f}",
        f"{100 * row.candidate.mean:.1f}",
        f"{mean:+.2f} [{low:+.1f}, {high:+.1f}]",
        "—" if math.isnan(row.flips) else f"{row.flips:.1%}",
        # at most 1, so its leading zero says nothing
        "—" if math.isnan(row.correlation) else f"{row.correlation:.4f}".replace("0.", ".", 1),
        f"{row.largest_shift:.2f}",
    )
