"""`orin-rerank calibrate`: INT8 for this machine, from a calibration set, judged before it is served."""

from __future__ import annotations

import enum
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import BundleOption, ConfigOption, JsonOption, ThreadsOption  # noqa: TC001 - typer reads annotations at run time
from orin_rerank.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.store import EngineStore
    from orin_rerank.lifecycle.calibrate import CalibrationOptions, CalibrationResult

__all__ = ["calibrate"]

_SHOWN_PLACES = 8


class Vision(str, enum.Enum):
    """What the vision encoder computes in."""

    WEIGHTS = "weights"
    INT8 = "int8"
    FULL = "full"


def calibrate(
    *,
    bundle: BundleOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The calibration set: your own queries and documents; else the one that ships in a source tree.",
            show_default=False,
        ),
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The judged set that decides; else the one that ships in a source tree.",
            show_default=False,
        ),
    ] = None,
    vision: Annotated[
        Vision,
        typer.Option(
            help="The vision encoder: full precision with weights stored as INT8, INT8 throughout, or full precision "
            "throughout."
        ),
    ] = Vision.WEIGHTS,
    max_wide: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="Largest share of the decoder's work that may stay out of INT8 so that the gate passes.",
        ),
    ] = 0.15,
    max_loss: Annotated[
        float,
        typer.Option(metavar="LOSS", min=0.0, max=1.0, help="By how much NDCG@10 may fall; 0.005 is half a point."),
    ] = 0.005,
    min_correlation: Annotated[
        float, typer.Option(metavar="R", min=0.0, max=1.0, help="Least correlation of the margins.")
    ] = 0.995,
    ranges: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Keep what is observed here, and start from it if it is there.", show_default=False
        ),
    ] = None,
    reuse: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="An earlier engine: its plan is tried first, without calibrating.",
            show_default=False,
        ),
    ] = None,
    threads: ThreadsOption = None,
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> int:
    """Make INT8 for this machine, and put it into service if it ranks as full precision does.

    Runs the calibration set through the model, smooths and rounds weights and activations, measures what INT8 costs
    at each place, and compares the result with full precision on a judged set. What passes is served from the next
    start of the daemon on; what does not is thrown away, and whatever was served before stays. As root it works as the
    owner of the state folder, which is the service's user: that user must be able to read the sets.

    For example:

        orin-rerank calibrate
        orin-rerank calibrate --data /srv/my-queries
        orin-rerank evaluate --precision int8 --against full

    The table of places has, for each: by how much margins move when it alone is INT8 (shift, a root mean square), the
    share of its output that INT8 loses, with its smoothing and without, the smoothing's strength from 0 to 1, and its
    share of the work.

    A calibration set is a folder with dataset.jsonl, one query a line, and pictures; 256 pairs or more, of the kind
    that the machine will see:

        {"query": [{"text": "red fire engine"}], "language": "en",
         "documents": [{"content": [{"image": "images/a.webp"}]},
                       {"content": [{"text": "a ladder"}]}]}

    docs/calibration-data.md says the rest. --json writes {"engine", "digest", "warnings", "removed", "coverage",
    "plan", "gate", "refused", "stages"}; "refused" has the gate's reasons for each plan that was tried before,
    "removed" what was compiled from engines that are gone.
    """
    import dataclasses
    import json

    from orin_rerank.cli.bundles import bundle_of
    from orin_rerank.cli.configured import calibration_set, judged_set, settings_of, state_folder
    from orin_rerank.cli.output import console, print_json, progress_console
    from orin_rerank.cli.owner import become_owner
    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.plan_store import PlanStore
    from orin_rerank.engines.store import EngineStore
    from orin_rerank.graph.scheme import Mode
    from orin_rerank.lifecycle.calibrate import CalibrationOptions
    from orin_rerank.lifecycle.plan_cleaning import remove_stale_plans
    from orin_rerank.lifecycle.planning import PlanOptions
    from orin_rerank.quantization.gate import GateThresholds

    settings = settings_of(config, engine={"threads": threads})
    data = data or calibration_set(settings)
    evaluation = evaluation or judged_set(settings)
    for folder, option in ((data, "--data"), (evaluation, "--evaluation")):
        if folder is None:
            raise SettingsError("name the folder of a set", item=option)
    assert data is not None
    assert evaluation is not None
    mode = {Vision.WEIGHTS: Mode.WEIGHTS, Vision.INT8: Mode.INT8, Vision.FULL: Mode.WIDE}[vision]
    options = CalibrationOptions(
        data,
        evaluation,
        PlanOptions(vision=mode),
        GateThresholds(max_ndcg_loss=max_loss, min_correlation=min_correlation),
        max_wide,
        ranges,
        reuse,
        settings.engine.threads,
    )
    state = state_folder(settings)
    become_owner(state)
    source = Bundle.open(bundle_of(bundle or settings.model.bundle))
    out = progress_console() if json_output else console()
    store = EngineStore(state)
    result = _calibrated(source, options, store, out)
    removed = remove_stale_plans(PlanStore(state), store, keep=[source.digest])
    if json_output:
        print_json(
            {
                "engine": str(result.folder),
                "digest": result.bundle.digest,
                "warnings": list(result.warnings),
                "removed": [dataclasses.asdict(one) for one in removed],
                "coverage": result.coverage.as_dict() if result.coverage is not None else None,
                "plan": json.loads(result.plan.to_json()),
                "gate": json.loads(result.record.to_json()),
                "refused": [list(record.verdict.reasons) for record in result.refused],
                "stages": [dataclasses.asdict(stage) for stage in result.ledger.stages],
            }
        )
    else:
        _show(result, out)
        for one in removed:
            out.print(str(one), markup=False, soft_wrap=True)
    return ExitCode.OK


def _calibrated(source: Bundle, options: CalibrationOptions, store: EngineStore, out: Console) -> CalibrationResult:
    """Calibrates behind a progress display; shows what was refused, if nothing passes."""
    from orin_rerank.cli.calibration_progress import ShownCalibration
    from orin_rerank.cli.evaluation_tables import paired_table
    from orin_rerank.errors import RefusedPrecisionError
    from orin_rerank.lifecycle import calibrate as pipeline

    with ShownCalibration(out) as shown:
        try:
            return pipeline.calibrate(source, options, store, shown)
        except RefusedPrecisionError:
            if shown.last is not None:
                shown.show("")
                shown.show(paired_table(shown.last.report, "int8", "full"))
                shown.show("gate: refused; nothing is installed, and what was in service stays\n")
            raise


def _show(result: CalibrationResult, out: Console) -> None:
    """The plan, the comparison, and where the engine is."""
    from orin_rerank.cli.calibration_tables import plan_summary, plan_table, stages_table
    from orin_rerank.cli.evaluation_tables import paired_table

    out.print()
    if result.plan.ranking:
        out.print(plan_table(result.plan, _SHOWN_PLACES))
    out.print(plan_summary(result.plan), "\n", highlight=False)
    out.print(paired_table(result.record.report, "int8", "full"))
    out.print("gate: passed\n", style="green")
    out.print(stages_table(result.ledger))
    size = sum(entry.bytes for entry in result.bundle.manifest.files.values())
    out.print(f"\n{size / 1e6:.1f} MB, in service from the next start on:")
    out.print(str(result.folder), markup=False, soft_wrap=True)
