"""`orin-rerank evaluate`: how well a bundle ranks an evaluation set, without a daemon."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import BundleOption, JsonOption  # noqa: TC001 - typer reads annotations at run time
from orin_rerank.errors import SettingsError

if TYPE_CHECKING:
    from rich.table import Table

    from orin_rerank.evaluation.metrics import Estimate
    from orin_rerank.evaluation.run import Report, SplitReport
    from orin_rerank.lifecycle.model import LoadedModel

__all__ = ["evaluate", "report_table"]

_SHIPPED_SET = "calibration_data/evaluation"


def evaluate(
    *,
    bundle: BundleOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The evaluation set; else the one that ships in a source tree.", show_default=False
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this split, and those below it; may be given more than once.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads of the engine; else one a core.", show_default=False)
    ] = None,
    json_output: JsonOption = False,
) -> int:
    """Measure how well a model ranks, split by split, beside chance and BM25.

    Runs the model here, without a daemon. Columns: NDCG@10 with the gain 2^grade - 1 and its 95 % interval
    (bootstrap over the queries), mean reciprocal rank (MRR), and the share of document pairs in the right order.
    Chance is the exact expected NDCG@10 of a random order. BM25 knows words alone: it has a dash where a query or all
    its documents are pictures, and (n) where it can score only n queries of the split.

    For example:

        orin-rerank evaluate
        orin-rerank evaluate --bundle build/my-model --split text-to-image --json > after.json

    A set is a folder with dataset.jsonl, one query a line, and pictures:

        {"id": "q1", "split": "text-to-image", "language": "en",
         "query": [{"text": "red fire engine"}],
         "documents": [{"content": [{"image": "images/a.webp"}], "relevance": 2}, ...]}

    --json writes {"bundle", "splits", "total", "seconds", "documents_per_second", "queries"}; "queries" has every
    query's own values, for paired comparisons.
    """
    from orin_rerank.cli.bundles import bundle_of, repository_folder
    from orin_rerank.cli.output import console, print_json, progress_console
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.lifecycle.startup import load_model

    root = data or repository_folder(_SHIPPED_SET)
    if root is None:
        raise SettingsError("name the folder of an evaluation set", item="--data")
    folder = bundle_of(bundle)
    with progress_console().status("loading the model") as spinner:
        model = load_model(folder, EngineSettings(threads=threads), spinner.update)
    try:
        report = _with_progress(model, root, split or [])
    finally:
        model.close()
    if json_output:
        print_json({"bundle": {"name": model.name, "digest": model.digest}, **report.as_dict()})
    else:
        out = console()
        out.print(report_table(report))
        out.print(
            f"{report.total.documents} documents in {report.seconds:.1f} s: "
            f"{report.documents_per_second:.0f} documents/s; {model.name}, {model.info.name}, {model.info.precision}",
            style="dim",
        )
    return ExitCode.OK


def report_table(report: Report) -> Table:
    """The report as a table: a row a split, and one for all."""
    from rich.table import Table

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


def _cells(row: SplitReport) -> tuple[str, ...]:
    lexical = "—"
    if row.bm25 is not None:
        some = f" ({row.bm25_queries})" if row.bm25_queries < row.queries else ""
        lexical = f"{row.bm25.ndcg.mean:.3f}{some}"
    return (
        row.name,
        str(row.queries),
        _interval(row.model.ndcg),
        f"{row.chance.ndcg:.3f}",
        lexical,
        f"{row.model.mrr.mean:.3f}",
        f"{row.model.pairwise_accuracy.mean:.3f}",
    )


def _interval(value: Estimate) -> str:
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _with_progress(model: LoadedModel, root: Path, splits: list[str]) -> Report:
    """Runs the evaluation behind a progress bar on standard error."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from orin_rerank.cli.output import progress_console
    from orin_rerank.evaluation.run import evaluate as run_evaluation

    columns = (TextColumn("queries"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console(), transient=True) as progress:
        task = progress.add_task("queries", total=None)
        return run_evaluation(
            lambda request: model.rerank(request).margins,
            root,
            splits=splits,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
