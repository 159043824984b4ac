"""INT8 beside full precision and transformers, with an engine that is calibrated first, here and now."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich.table import Table
from timing import best_batch, timed
from transformers_model import TransformersModel
from workloads import Workload

from orin_rerank.cli.calibration_tables import plan_summary, stages_table
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.lifecycle.calibrate import CalibrationOptions, CalibrationResult, calibrate
from orin_rerank.lifecycle.startup import load_model

__all__ = ["calibrated", "calibration_table", "int8_rows"]


def calibrated(bundle: Path, sets: Path, store: EngineStore, threads: int) -> CalibrationResult:
    """Makes the engine from the sets that ship."""
    options = CalibrationOptions(sets / "calibration", sets / "evaluation", threads=threads)
    return calibrate(Bundle.open(bundle), options, store)


def calibration_table(result: CalibrationResult) -> Table:
    """What the calibration took, and what it came to."""
    table = stages_table(result.ledger)
    size = sum(entry.bytes for entry in result.bundle.manifest.files.values())
    total = result.record.report.total
    table.caption = (
        f"{plan_summary(result.plan)}; plan {result.attempts}; {size / 1e6:.1f} MB; NDCG@10 "
        f"{100 * total.difference.mean:+.2f} [{100 * total.difference.low:+.1f}, {100 * total.difference.high:+.1f}], "
        f"flips {total.flips:.1%}, correlation {total.correlation:.4f}, largest shift {total.largest_shift:.2f}"
    )
    table.caption_justify = "left"
    return table


def int8_rows(
    bundle: Path,
    store: EngineStore,
    theirs: TransformersModel,
    workloads: Iterable[Workload],
    *,
    threads: int,
    rounds: int,
    table: Table,
) -> None:
    """Adds a row for each workload: the three run in turn, round by round."""
    full, int8 = (
        load_model(bundle, EngineSettings(precision=choice, threads=threads), store=store)
        for choice in (PrecisionChoice.FULL, PrecisionChoice.INT8)
    )
    for workload in workloads:
        requests = [full.encoder.encode(workload.request(seed)) for seed in range(rounds + 1)]
        size = best_batch(theirs, requests[0])
        for model in (full, int8):
            model.score(requests[0])
        times: list[tuple[float, float, float]] = []
        worst = 0.0
        for request in requests[1:]:
            theirs_s, _ = timed(lambda: theirs.score(request, size))
            full_s, exact = timed(lambda: full.score(request))
            int8_s, margins = timed(lambda: int8.score(request))
            times.append((theirs_s, full_s, int8_s))
            worst = max(worst, float(np.abs(margins - exact).max()))
        n = workload.documents
        table.add_row(
            workload.name,
            f"{n / statistics.median(i for _, _, i in times):.1f}",
            f"{n / statistics.median(f for _, f, _ in times):.1f}",
            f"{n / statistics.median(t for t, _, _ in times):.1f}",
            f"{statistics.median(f / i for _, f, i in times):.2f}x",
            f"{statistics.median(t / i for t, _, i in times):.2f}x",
            f"{worst:.2f}",
        )
    full.close()
    int8.close()
