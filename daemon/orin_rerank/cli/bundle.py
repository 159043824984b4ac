"""`orin-rerank bundle`: what can be said of a bundle as it lies on disk."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.help_text import help_of
from orin_rerank.cli.options import JsonOption  # noqa: TC001 - typer reads annotations at run time

if TYPE_CHECKING:
    from rich.console import Console

    from orin_rerank.lifecycle.bundle_report import BundleReport, CheckResult

__all__ = ["bundle_app"]

bundle_app = typer.Typer(help="Look into a bundle: `orin-rerank bundle verify` checks it.")


def verify(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            envvar="ORIN_RERANK_BUNDLE",
            help="The bundle; else the mini model of a source tree, or the one that is installed.",
            show_default=False,
        ),
    ] = None,
    *,
    run: Annotated[
        bool, typer.Option("--run", help="Score the golden pairs too, on the processor; takes the memory of a start.")
    ] = False,
    json_output: JsonOption = False,
) -> int:
    """Check a bundle, or an INT8 engine, from its manifest to its last file.

    Every file is compared with the size and the SHA-256 that the manifest names. Then what is in them: whether the
    weights are those of the architecture, whether each graph has the known inputs and outputs and takes every weight
    from where it lies, whether the tokenizer has the tokens of the prompts, whether golden pairs and their pictures can
    be read; and of INT8, whether its plan and its smoothing belong together and its gate lets it pass. docs/bundle.md
    describes the format.

    Everything that is wrong is listed, with the file; the exit code is 66 then, and 0 for a bundle that is whole.

    For example:

        orin-rerank bundle verify
        orin-rerank bundle verify /media/usb/qwen3-vl-reranker-8b --run
        orin-rerank bundle verify --json | jq -r '.checks[].faults[] | .item'

    --json writes {"folder", "whole", "name", "digest", "source", "bytes", "checks", "notes"}; each check has {"name",
    "state", "detail", "faults"}, with the state passed, failed or skipped, and each fault {"item", "problem", "hint"}.
    """
    from orin_rerank.cli.bundles import bundle_of
    from orin_rerank.cli.output import console, print_json, progress_console
    from orin_rerank.lifecycle.bundle_check import check_bundle

    place = bundle_of(folder)
    with progress_console().status("reading the manifest") as spinner:

        def show(name: str, done: int, total: int) -> None:
            spinner.update(f"reading {name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")

        report = check_bundle(place, run=run, report=show)
    if json_output:
        print_json(_as_dict(report))
    else:
        _show(report, console())
    return ExitCode.BAD_DATA if report.faults else ExitCode.OK


bundle_app.command(help=help_of(verify))(verify)


def _as_dict(report: BundleReport) -> dict[str, object]:
    """A report as `--json` writes it."""
    import dataclasses

    bundle = report.bundle
    manifest = None if bundle is None else bundle.manifest
    return {
        "folder": str(report.folder),
        "whole": not report.faults,
        "name": None if manifest is None else manifest.name,
        "digest": None if bundle is None else bundle.digest,
        "source": None if manifest is None else manifest.source,
        "bytes": None if manifest is None else sum(entry.bytes for entry in manifest.files.values()),
        "checks": [
            {
                "name": result.check.value,
                "state": result.state.value,
                "detail": result.detail,
                "faults": [dataclasses.asdict(fault) for fault in result.faults],
            }
            for result in report.results
        ],
        "notes": list(report.notes),
    }


def _show(report: BundleReport, out: Console) -> None:
    """A report for people."""
    from rich.text import Text

    from orin_rerank.cli.output import counted, snippet

    bundle = report.bundle
    if bundle is None:
        out.print(str(report.folder), markup=False, soft_wrap=True)
    else:
        kinds = sorted({graph.precision.value for graph in bundle.manifest.graphs})
        line = f"{snippet(bundle.manifest.name, 80)}, {', '.join(kinds)}, digest {bundle.digest[:12]}: {report.folder}"
        out.print(line, markup=False, soft_wrap=True)
    for result in report.results:
        _show_result(result, out)
    for note in report.notes:
        out.print(Text(f"note: {snippet(note, 400)}", style="dim"), soft_wrap=True)
    faults = len(report.faults)
    verdict = f"{counted(faults, 'fault')}: not whole" if faults else "whole"
    out.print(Text(verdict, style="red" if faults else "green"))


def _show_result(result: CheckResult, out: Console) -> None:
    """One check: a line, and one more for everything that is wrong."""
    from rich.text import Text

    from orin_rerank.cli.output import snippet
    from orin_rerank.lifecycle.bundle_report import State

    mark, style = {State.PASSED: ("✓", "green"), State.FAILED: ("✗", "red"), State.SKIPPED: ("-", "yellow")}[
        result.state
    ]
    out.print(Text(f"{mark} {result.check.value:<13}", style=style), snippet(result.detail, 400), soft_wrap=True)
    for fault in result.faults:
        out.print(Text(f"    {snippet(fault.item, 200)}: {snippet(fault.problem, 400)}"), soft_wrap=True)
        if fault.hint:
            out.print(Text(f"      hint: {fault.hint}"), soft_wrap=True)
