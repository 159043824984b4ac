"""`orin-rerank evaluate`: how well a bundle ranks an evaluation set, and what INT8 costs it, without a daemon."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import (  # noqa: TC001 - typer reads annotations at run time
    BundleOption,
    ConfigOption,
    DeviceOption,
    JsonOption,
    PrecisionOption,
    ThreadsOption,
)
from orin_rerank.engines.settings import PrecisionChoice
from orin_rerank.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.engines.store import EngineStore
    from orin_rerank.evaluation.scoring import Progress, ScoredSet, Scorer
    from orin_rerank.lifecycle.model import LoadedModel
    from orin_rerank.quantization.gate import GateVerdict

__all__ = ["evaluate"]

_T = TypeVar("_T")


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
    precision: PrecisionOption = None,
    device: DeviceOption = None,
    against: Annotated[
        PrecisionChoice | None,
        typer.Option(metavar="<full|int8>", help="Compare with this precision, query by query.", show_default=False),
    ] = None,
    threads: ThreadsOption = None,
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> int:
    """Measure how well a model ranks, split by split, beside chance and BM25, or what INT8 costs.

    Runs the model here, without a daemon. Columns: NDCG@10 with the gain 2^grade - 1 and its 95 % interval
    (bootstrap over the queries), mean reciprocal rank (MRR), and the share of document pairs in the right order.
    Chance is the exact expected NDCG@10 of a random order. BM25 knows words alone: it has a dash where a query or all
    its documents are pictures, and (n) where it can score only n queries of the split.

    With --against, two precisions are compared. Columns: n queries; NDCG@10 of both, in points of a hundred, and the
    change with its 95 % interval (paired bootstrap); flips, the share of document pairs whose order changed; the
    correlation of the margins; and the largest shift of one. INT8 against full precision over a whole set is also
    judged by the gate that decides whether INT8 is served.

    For example:

        orin-rerank evaluate
        orin-rerank evaluate --precision int8 --against full
        orin-rerank evaluate --bundle build/my-model --split text-to-image --json > after.json

    A set is a folder with dataset.jsonl, one query a line, and pictures:

        {"id": "q1", "split": "text-to-image", "language": "en",
         "query": [{"text": "red fire engine"}],
         "documents": [{"content": [{"image": "images/a.webp"}], "relevance": 2}, ...]}

    --json writes {"bundle", "splits", "total", "seconds", "documents_per_second", "queries"}; "queries" has every
    query's own values. With --against it writes {"candidate", "reference", "splits", "total", "gate", "queries"}.
    """
    from orin_rerank.cli.bundles import bundle_of
    from orin_rerank.cli.configured import judged_set, settings_of, state_folder
    from orin_rerank.engines.store import EngineStore

    settings = settings_of(config, engine={"precision": precision, "device": device, "threads": threads})
    root = data or judged_set(settings)
    if root is None:
        raise SettingsError("name the folder of an evaluation set", item="--data")
    subject = _Subject(bundle_of(bundle or settings.model.bundle), settings.engine, EngineStore(state_folder(settings)))
    if against is None:
        _report(subject, root, split or [], as_json=json_output)
    elif {subject.settings.precision, against} != {PrecisionChoice.FULL, PrecisionChoice.INT8}:
        raise SettingsError(
            "compare int8 with full: give one of them to --precision and the other to --against", item="--against"
        )
    else:
        _comparison(subject, subject.computed_in(against), root, split or [], as_json=json_output)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is evaluated: a bundle, how it is computed, and where its engines are."""

    folder: Path
    settings: EngineSettings
    store: EngineStore

    def computed_in(self, precision: PrecisionChoice) -> _Subject:
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, precision=precision))


def _report(subject: _Subject, root: Path, splits: list[str], *, as_json: bool) -> None:
    """Evaluates one precision and shows it."""
    from orin_rerank.cli.evaluation_tables import report_table
    from orin_rerank.cli.output import console, print_json
    from orin_rerank.evaluation import run

    with _loaded(subject) as model:
        report = _with_progress(
            "queries", lambda told: run.evaluate(_scorer(model), root, splits=splits, on_progress=told)
        )
    if as_json:
        print_json({"bundle": {"name": model.name, "digest": model.digest}, **report.as_dict()})
        return
    out = console()
    out.print(report_table(report))
    out.print(
        f"{report.total.documents} documents in {report.seconds:.1f} s: "
        f"{report.documents_per_second:.0f} documents/s; {model.name}, {model.info.name}, {model.info.precision}",
        style="dim",
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two precisions that are compared."""

    name: str
    digest: str
    engine: str
    precision: str
    choice: str
    scored: ScoredSet

    @classmethod
    def of(cls, subject: _Subject, root: Path, splits: list[str]) -> _Side:
        """Loads, scores and closes: only one of two models is in memory at a time."""
        from orin_rerank.evaluation.scoring import score_set

        choice = subject.settings.precision.value
        with _loaded(subject) as model:
            scored = _with_progress(
                choice, lambda told: score_set(_scorer(model), root, splits=splits, on_progress=told)
            )
            return cls(model.name, model.digest, model.info.name, model.info.precision, choice, scored)

    def as_dict(self) -> dict[str, object]:
        return {
            "bundle": {"name": self.name, "digest": self.digest},
            "precision": self.precision,
            "seconds": self.scored.seconds,
            "documents_per_second": self.scored.documents_per_second,
        }


def _comparison(subject: _Subject, other: _Subject, root: Path, splits: list[str], *, as_json: bool) -> None:
    """Evaluates two precisions, one after the other, and shows what lies between them."""
    from orin_rerank.cli.evaluation_tables import paired_table
    from orin_rerank.cli.output import console, print_json
    from orin_rerank.evaluation.paired import compare
    from orin_rerank.quantization.gate import GateThresholds, judge

    candidate, reference = (_Side.of(one, root, splits) for one in (subject, other))
    report = compare(reference.scored.queries, candidate.scored.queries)
    # The gate's thresholds are for INT8, and for a whole set.
    judged = subject.settings.precision is PrecisionChoice.INT8 and not splits
    verdict = judge(report, GateThresholds()) if judged else None
    if as_json:
        print_json(
            {
                "candidate": candidate.as_dict(),
                "reference": reference.as_dict(),
                **report.as_dict(),
                "gate": None if verdict is None else {"passed": verdict.passed, "reasons": list(verdict.reasons)},
                "queries": [
                    {
                        "id": after.id,
                        "split": after.split,
                        "grades": after.grades,
                        "candidate": after.json_margins,
                        "reference": before.json_margins,
                    }
                    for before, after in zip(reference.scored.queries, candidate.scored.queries, strict=True)
                ],
            }
        )
        return
    out = console()
    out.print(paired_table(report, candidate.choice, reference.choice))
    for side in (candidate, reference):
        out.print(
            f"{side.choice}: {side.scored.documents_per_second:.0f} documents/s; "
            f"{side.name}, {side.engine}, {side.precision}",
            style="dim",
        )
    if verdict is not None:
        for text, style in _verdict_lines(verdict):
            out.print(text, style=style, markup=False)


def _verdict_lines(verdict: GateVerdict) -> Iterator[tuple[str, str]]:
    if verdict.passed:
        yield "gate: passed", "green"
    else:
        yield from ((f"gate: refused: {reason}", "red") for reason in verdict.reasons)


@contextmanager
def _loaded(subject: _Subject) -> Iterator[LoadedModel]:
    """A model that is loaded behind a spinner, and closed in the end."""
    from orin_rerank.cli.output import progress_console
    from orin_rerank.lifecycle.startup import load_model

    with progress_console().status("loading the model") as spinner:
        model = load_model(subject.folder, subject.settings, spinner.update, store=subject.store)
    try:
        yield model
    finally:
        model.close()


def _scorer(model: LoadedModel) -> Scorer:
    return lambda request: model.rerank(request).margins


def _with_progress(label: str, work: Callable[[Progress], _T]) -> _T:
    """Works behind a progress bar on standard error."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from orin_rerank.cli.output import progress_console

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=progress_console(), transient=True) as bars:
        task = bars.add_task(label, total=None)
        return work(lambda done, total: bars.update(task, completed=done, total=total))
