"""What doctor found, for a person."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from orin_rerank.cli.output import counted, snippet
from orin_rerank.lifecycle.doctor.finding import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from orin_rerank.lifecycle.doctor.examine import Examined, Report
    from orin_rerank.lifecycle.doctor.finding import Finding

__all__ = ["show_archive", "show_report"]

_SHOWN: Final = {
    Verdict.OK: Text("ok", style="green"),
    Verdict.WARN: Text("warn", style="yellow"),
    Verdict.FAIL: Text("FAIL", style="bold red"),
}
_STYLES: Final = {Verdict.OK: "", Verdict.WARN: "yellow", Verdict.FAIL: "red"}
_LONGEST: Final = 1000


def show_report(report: Report, out: Console, *, archived: bool) -> None:
    """Shows it, subject by subject, with a line in the end that sums it up.

    Args:
        report: What was found.
        out: Where to.
        archived: Whether an archive is going to be written.
    """
    width = max((len(one.check.name) for one in report.examined), default=0)
    for subject, group in itertools.groupby(report.examined, key=lambda one: one.check.subject):
        out.print(Text(subject, style="bold"))
        out.print(_table(list(group), width))
    out.print(_summary(report))
    if not report.healthy and not archived:
        out.print("`orin-rerank doctor --bundle FILE` packs this for somebody who helps.", style="dim")


def show_archive(archive: Path, files: Sequence[str], out: Console) -> None:
    """Says what was packed.

    Args:
        archive: Where it was written.
        files: What is in it.
        out: Where to.
    """
    out.print(f"{archive}: {', '.join(files)}", markup=False)
    out.print("Look through it before you pass it on.", style="dim")


def _table(group: list[Examined], width: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(width=6, justify="right")
    table.add_column(width=width, no_wrap=True)
    table.add_column(overflow="fold")
    for one in group:
        table.add_row(_SHOWN[one.finding.verdict], one.check.name, _lines(one.finding))
    return table


def _lines(finding: Finding) -> Text:
    text = Text(snippet(finding.text, _LONGEST), style=_STYLES[finding.verdict])
    if finding.remedy is not None:
        text.append(f"\n{snippet(finding.remedy, _LONGEST)}", style="default")
    if finding.command is not None:
        text.append(f"\n$ {snippet(finding.command, _LONGEST)}", style="bold default")
    return text


def _summary(report: Report) -> Text:
    failures, warnings = report.count(Verdict.FAIL), report.count(Verdict.WARN)
    checks = counted(len(report.examined), "check")
    if not failures and not warnings:
        return Text(f"{checks}, all ok", style="green")
    parts = [counted(failures, "failure")] if failures else []
    parts += [counted(warnings, "warning")] if warnings else []
    return Text(f"{checks}: {' and '.join(parts)}", style="red" if failures else "yellow")
