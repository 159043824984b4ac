# ruff: noqa: T201
"""What a person gets who has a GPU: the model as it is loaded, and the daemon, each ranking the judged set."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orin_rerank.cli.client import DaemonClient
from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.inputs import to_proto
from orin_rerank.cli.status import status_as_dict
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import DeviceChoice, EngineSettings
from orin_rerank.engines.store import STATE_VARIABLE, EngineStore
from orin_rerank.errors import DeadlineError, UnreachableError
from orin_rerank.evaluation.dataset import JudgedQuery, read_dataset
from orin_rerank.evaluation.paired import PairedFigures, compare
from orin_rerank.evaluation.scoring import ScoredQuery, ScoredSet, score_query, score_set
from orin_rerank.lifecycle.self_test import HALF_TOLERANCE, TOLERANCE, read_golden_pairs, self_test
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import RerankInput
from orin_rerank.v1 import rerank_pb2

NDCG_LOSS = 0.005
"""Most NDCG@10 by which an engine may rank the set worse than the processor does in float32."""

START_S = 120.0
STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Expected:
    """What an engine is compared with.

    Attributes:
        engine: The engine that is to be chosen.
        precision: Its precision.
        tolerance: Most by which a margin may be off.
    """

    engine: str
    precision: str
    tolerance: float


GPU = Expected("onnxruntime-cuda", "fp16", HALF_TOLERANCE)
PROCESSOR = Expected("onnxruntime-cpu", "fp32", TOLERANCE)


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a daemon runs under, as under its unit.

    Attributes:
        system_calls: Arguments of `filtered.py` that say which may be made: `--unit FILE` or `--filter FILE`.
        user: The user that it runs as, without any capability.
        memlock: Bytes that it may lock in memory; -1 is as many as possible.
    """

    system_calls: tuple[str, ...]
    user: str
    memlock: int

    def command(self, report: Path) -> list[str]:
        """What is to be put before the daemon's command; it writes what was refused into `report`."""
        wrapper = [sys.executable, str(Path(__file__).with_name("filtered.py")), *self.system_calls]
        return [*wrapper, "--user", self.user, "--memlock", str(self.memlock), "--report", str(report), "--"]


def rank_loaded(bundle: Path, data: Path, device: DeviceChoice) -> tuple[ScoredSet, dict[str, Any]]:
    """Loads a model on a device as every command does, and ranks a set with it.

    Returns:
        The set with its margins; and which engine was chosen, why, and how far its golden pairs are off.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as state:
        model = load_model(bundle, EngineSettings(device=device), store=EngineStore(Path(state)))
    seconds = time.perf_counter() - started
    try:
        chosen = {
            "engine": model.info.name,
            "precision": model.info.precision,
            "slots": model.info.slots,
            "engine_reason": model.engine_reason,
            "precision_reason": model.precision_reason,
            "token_budget": model.budget.best,
            "load_s": round(seconds, 2),
            "golden_pairs_off_by": self_test(model, read_golden_pairs(Bundle.open(bundle)), HALF_TOLERANCE),
        }
        return score_set(lambda request: model.rerank(request).margins, data), chosen
    finally:
        model.close()


def rank_served(
    bundle: Path, data: Path, device: DeviceChoice, clients: int, confinement: Confinement | None = None
) -> tuple[tuple[ScoredQuery, ...], dict[str, Any]]:
    """Starts `orin-rerank serve` on a device, ranks a set through clients that ask at the same time, and stops it.

    Returns:
        The queries with their margins; and what the daemon said of itself, and was refused where it was confined.
    """
    queries = list(read_dataset(data))
    with _daemon(bundle, device, confinement) as (process, target, start_s, report):
        with DaemonClient(target, timeout_s=60) as client, ThreadPoolExecutor(clients) as threads:

            def ask(query: JudgedQuery) -> ScoredQuery:
                return score_query(lambda request: _margins(client, request), query)[0]

            started = time.perf_counter()
            scored = tuple(threads.map(ask, queries))
            seconds = time.perf_counter() - started
            status = status_as_dict(client.status())
        shown = _command("status", "--address", target)
        locked = _locked(process.pid)
        process.terminate()
        code = process.wait(STOP_S)
        confined = {} if confinement is None else json.loads(report.read_text(encoding="utf-8"))
    documents = sum(query.documents for query in scored)
    figures = {
        "status": status,
        "shown": shown,
        "start_s": round(start_s, 2),
        "clients": clients,
        "documents": documents,
        "documents_per_s": round(documents / seconds),
        "locked_kb": locked,
        "confined": confined,
        "exit_code": code,
    }
    assert code == ExitCode.OK, figures
    return scored, figures


def check_chosen(chosen: dict[str, Any], expected: Expected) -> None:
    """The engine that was expected was chosen, and it says why none before it was."""
    assert (chosen["engine"], chosen["precision"]) == (expected.engine, expected.precision), chosen
    if expected.engine == GPU.engine:
        assert chosen["engine_reason"].startswith("TensorRT"), chosen


def check_ranking(reference: Sequence[ScoredQuery], got: Sequence[ScoredQuery], expected: Expected) -> dict[str, Any]:
    """The set is ranked as by the reference.

    Returns:
        What the two come to.
    """
    report = compare(reference, got)
    figures = _as_figures(report.total)
    figures["splits"] = {split.name: _as_figures(split) for split in report.splits}
    assert report.total.non_finite == 0, figures
    assert report.total.largest_shift <= expected.tolerance, figures
    assert report.total.difference.mean >= -NDCG_LOSS, figures
    return figures


def _as_figures(total: PairedFigures) -> dict[str, Any]:
    return {
        "queries": total.queries,
        "documents": total.documents,
        "ndcg_processor": round(total.reference.mean, 5),
        "ndcg": round(total.candidate.mean, 5),
        "difference": [
            round(value, 6) for value in (total.difference.low, total.difference.mean, total.difference.high)
        ],
        "flips": total.flips,
        "correlation": total.correlation,
        "rms_shift": total.rms_shift,
        "largest_shift": total.largest_shift,
        "spread": round(total.spread, 3),
    }


def _margins(client: DaemonClient, request: RerankInput) -> list[float]:
    """One request over the wire; the answer's margins in the request's order."""
    response = client.rerank(
        rerank_pb2.RerankRequest(
            query=to_proto(tuple(request.query)),
            documents=[to_proto(tuple(document)) for document in request.documents],
            instruction=request.instruction,
        )
    )
    margins = [float("nan")] * len(request.documents)
    for result in response.results:
        margins[result.index] = result.margin
    return margins


def _command(*arguments: str) -> str:
    """What `orin-rerank` prints; it has to succeed."""
    command = [sys.executable, "-m", "orin_rerank.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def _locked(process: int) -> dict[str, int]:
    """KiB that a process, and what it started, has locked in memory, and pinned, as the kernel counts it."""
    found = {"VmLck": 0, "VmPin": 0}
    started = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    for pid in [process, *map(int, started.split())]:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] += int(value.split()[0])
    return found


@contextmanager
def _daemon(
    bundle: Path, device: DeviceChoice, confinement: Confinement | None
) -> Iterator[tuple[subprocess.Popen[bytes], str, float, Path]]:
    """A daemon that serves, where it listens, how many seconds it took to start, and where its refusals come to lie."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "daemon"
        folder.mkdir()
        if confinement is not None:
            Path(parent).chmod(0o755)
            shutil.chown(folder, confinement.user)
        socket, journal, report = folder / "s", Path(parent) / "journal", Path(parent) / "refused.json"
        command = [] if confinement is None else confinement.command(report)
        command += [sys.executable, "-m", "orin_rerank.cli.main", "serve"]
        command += ["--bundle", str(bundle), "--socket", str(socket), "--device", device.value]
        environment = {**os.environ, STATE_VARIABLE: f"{folder}/state", "HOME": str(folder)}
        started = time.perf_counter()
        with journal.open("wb") as log:
            process = subprocess.Popen(command, stderr=log, env=environment)
        try:
            while not _serves(f"unix:{socket}"):
                assert process.poll() is None, f"left with {process.returncode}: {journal.read_text()[-3000:]}"
                assert time.perf_counter() - started < START_S, journal.read_text()[-3000:]
                time.sleep(0.1)
            yield process, f"unix:{socket}", time.perf_counter() - started, report
        finally:
            process.kill()
            process.wait()
            print(journal.read_text()[-3000:], flush=True)


def _serves(target: str) -> bool:
    try:
        with DaemonClient(target, timeout_s=5) as client:
            return client.status().state == rerank_pb2.STATE_SERVING
    except (UnreachableError, DeadlineError):
        return False
