"""`make bench`: documents per second beside transformers, what each lever brings, and what the socket costs.

Everything that is compared runs in turn in this one process and run, round by round; a ratio is the median of the
rounds' ratios. The machine's speed may drift and other programs may run: the ratios hold where single figures do not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from int8_bench import calibrated, calibration_table, int8_rows
from levers import lever_variants
from rich.console import Console
from rich.table import Table
from socket_bench import socket_rows
from timing import best_batch, timed
from transformers_model import TransformersModel
from workloads import WORKLOADS, Workload

from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.lifecycle.model import LoadedModel
from orin_rerank.lifecycle.startup import load_model

ROOT = Path(__file__).resolve().parents[2]


def against_transformers(
    ours: LoadedModel, theirs: TransformersModel, workloads: Iterable[Workload], rounds: int, table: Table
) -> None:
    """Adds a row for each workload."""
    for workload in workloads:
        requests = [ours.encoder.encode(workload.request(seed)) for seed in range(rounds + 1)]
        size = best_batch(theirs, requests[0])
        ours.score(requests[0])
        worst = 0.0
        pairs = []
        for request in requests[1:]:
            theirs_s, reference = timed(lambda: theirs.score(request, size))
            ours_s, margins = timed(lambda: ours.score(request))
            pairs.append((ours_s, theirs_s))
            worst = max(worst, float(np.abs(margins - reference).max()))
        n = workload.documents
        table.add_row(
            workload.name,
            f"{n / statistics.median(o for o, _ in pairs):.1f}",
            f"{n / statistics.median(t for _, t in pairs):.1f}",
            str(size),
            f"{statistics.median(t / o for o, t in pairs):.2f}x",
            f"{worst:.0e}",
        )


def levers(bundle: Path, threads: int, rounds: int, workload: Workload, table: Table) -> None:
    """Adds a row for each variant of the engine, against the shipped one."""
    with tempfile.TemporaryDirectory() as scratch:
        variants = lever_variants(bundle, Path(scratch), threads)
        base = load_model(bundle, EngineSettings(precision=PrecisionChoice.FULL, threads=threads))
        for name, make in variants:
            model = make()
            pairs = []
            for seed in range(rounds + 1):
                request = base.encoder.encode(workload.request(1000 + seed))
                pairs.append((timed(lambda: base.score(request))[0], timed(lambda: model.score(request))[0]))
            model.close()
            n = workload.documents
            table.add_row(
                name,
                f"{n / statistics.median(v for _, v in pairs[1:]):.1f}",
                f"{statistics.median(b / v for b, v in pairs[1:]):.2f}x",
            )
        base.close()


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--bundle", type=Path, default=Path(os.environ.get("ORIN_RERANK_BUNDLE", ROOT / "engines/mini"))
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--match", default="", help="only requests whose name holds this")
    parser.add_argument("--only", choices=("transformers", "int8", "levers", "socket"), action="append")
    options = parser.parse_args()
    parts = options.only or ["transformers", "int8", "levers", "socket"]
    console = Console(width=120)
    console.print(f"{options.bundle.name}, full precision, {options.threads} cores, medians of {options.rounds} rounds")

    if "transformers" in parts:
        ours = load_model(options.bundle, EngineSettings(precision=PrecisionChoice.FULL, threads=options.threads))
        image = ours.profile.image
        assert image is not None, "the benchmark's bundle takes images"
        theirs = TransformersModel.load(options.bundle, image, options.threads)
        table = Table(title=f"against transformers (packs of {ours.budget.best} tokens here)", title_justify="left")
        for column in ("request", "docs/s", "transformers", "its best batch", "ratio", "margins differ"):
            table.add_column(column, justify="left" if column == "request" else "right")
        chosen = [workload for workload in WORKLOADS if options.match in workload.name]
        against_transformers(ours, theirs, chosen, options.rounds, table)
        ours.close()
        console.print(table)
    if "int8" in parts:
        with tempfile.TemporaryDirectory() as scratch:
            store = EngineStore(Path(scratch))
            result = calibrated(options.bundle, ROOT / "calibration_data", store, options.threads)
            image = result.bundle.manifest.prompt.image
            assert image is not None, "the benchmark's bundle takes images"
            theirs = TransformersModel.load(options.bundle, image, options.threads)
            console.print(calibration_table(result))
            table = Table(title="INT8", title_justify="left")
            for column in (
                "request",
                "INT8, docs/s",
                "float32",
                "transformers",
                "of float32",
                "of transformers",
                "shift",
            ):
                table.add_column(column, justify="left" if column == "request" else "right")
            chosen = [workload for workload in WORKLOADS if options.match in workload.name]
            int8_rows(
                options.bundle, store, theirs, chosen, threads=options.threads, rounds=options.rounds, table=table
            )
            console.print(table)
    if "levers" in parts:
        table = Table(title="what each lever brings, 50 texts", title_justify="left")
        for column in ("variant", "docs/s", "of the shipped engine"):
            table.add_column(column, justify="left" if column == "variant" else "right")
        levers(options.bundle, options.threads, options.rounds, WORKLOADS[0], table)
        console.print(table)
    if "socket" in parts:
        table = Table(title="over the socket", title_justify="left")
        for column in ("what", "figure", "bar"):
            table.add_column(column, justify="left" if column == "what" else "right")
        for row in socket_rows(options.bundle, options.threads, options.rounds, WORKLOADS[0]):
            table.add_row(*row)
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
