"""From a full-precision bundle and a calibration set to INT8 that is served only if it ranks as well.

::

    judged set, full precision -> reference margins
    calibration set            -> card, ranges, smoothing, steps, sensitivity -> plan
    plan -> weights and graphs -> judged set, INT8 -> gate -> installed
              ^                                         |
              +--- the costliest places stay wide <-----+ refused

Everything is written into a folder of its own, and one rename puts it into service; until then, and if the gate
refuses, the engine that was there stays.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.engines.bulk import score_requests
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import CalibrationError, NonFiniteScoreError, RefusedPrecisionError, SettingsError
from orin_rerank.evaluation.dataset import read_dataset
from orin_rerank.evaluation.paired import compare
from orin_rerank.evaluation.scoring import ScoredQuery
from orin_rerank.lifecycle.derive import COVERAGE_FILE, DerivedBundle
from orin_rerank.lifecycle.ledger import Ledger
from orin_rerank.lifecycle.planning import PlanOptions, make_plan, observe
from orin_rerank.lifecycle.self_test import record_golden_pairs
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.prompt.content import RerankInput
from orin_rerank.quantization.array_file import read_arrays, write_arrays
from orin_rerank.quantization.calibration_set import dataset_digest
from orin_rerank.quantization.coverage import margin_scale
from orin_rerank.quantization.gate import GateRecord, GateSubject, GateThresholds, engine_digest
from orin_rerank.quantization.plan import PLAN_FILE, SMOOTHING_FILE, QuantizationPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.runner import Runner
    from orin_rerank.engines.store import EngineStore
    from orin_rerank.lifecycle.ledger import Stage, Watcher
    from orin_rerank.prompt.encoded import EncodedRequest, Float32Array
    from orin_rerank.quantization.coverage import Coverage

__all__ = ["CalibrationOptions", "CalibrationResult", "calibrate"]

_SMOOTHING_METADATA: Final = "bundle"


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """What a person may choose.

    Attributes:
        data: Folder of the calibration set.
        evaluation: Folder of the judged set that decides.
        plan: What may be INT8.
        thresholds: The gate's.
        max_wide: Largest share of the decoder's multiply-adds that may stay wide so that the gate passes.
        ranges: A file to keep what was observed in, and to start from where it exists.
        reuse: An engine's folder or a copy of it, whose plan is applied as it is.
        threads: Processor cores to compute on; None means those that this process may use.

    Raises:
        SettingsError: If a value is out of its range; the item names it.
    """

    data: Path
    evaluation: Path
    plan: PlanOptions = field(default_factory=PlanOptions)
    thresholds: GateThresholds = field(default_factory=GateThresholds)
    max_wide: float = 0.15
    ranges: Path | None = None
    reuse: Path | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.max_wide <= 1:
            raise SettingsError(f"must be from 0 to 1, not {self.max_wide}", item="max_wide")


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """What came of it; an engine that was refused is an error instead.

    Attributes:
        folder: The engine, in service.
        bundle: Its bundle.
        plan: What is INT8 in it.
        coverage: The calibration set's card; None where it was not read again.
        warnings: What the set lacks, and other things to know, a sentence each.
        record: What the gate saw.
        attempts: How many plans the gate was asked about.
        ledger: What was done, and what that took.
    """

    folder: Path
    bundle: Bundle
    plan: QuantizationPlan
    coverage: Coverage | None
    warnings: tuple[str, ...]
    record: GateRecord
    attempts: int
    ledger: Ledger


def calibrate(
    source: Bundle,
    options: CalibrationOptions,
    store: EngineStore,
    watch: Watcher = lambda _stage, _done, _total: None,
    on_coverage: Callable[[Coverage], None] = lambda _: None,
) -> CalibrationResult:
    """Makes an INT8 engine, has it judged, and puts it into service.

    Args:
        source: The full-precision bundle.
        options: What is wanted.
        store: Where engines are.
        watch: Told how it gets on.
        on_coverage: Given the calibration set's card before it is judged.

    Raises:
        BundleError: If the bundle is damaged.
        DatasetError: If a set is malformed.
        CalibrationError: If the calibration set is no fit for the model, what is to be reused is of another one, or the
            bundle is INT8 itself.
        CheckpointError: If a weight is not finite.
        RefusedPrecisionError: If no plan within the limits passes the gate; the message says why.
        StoreError: If the engine cannot be written.
    """
    if source.manifest.source is not None:
        raise CalibrationError("is INT8 itself; name the full-precision bundle", item=str(source.folder))
    with tempfile.TemporaryDirectory(prefix="orin-rerank-") as scratch, store.staging(source.digest) as staged:
        bench = Workbench(source, Path(scratch), EngineSettings(threads=options.threads))
        ledger = Ledger(watch, lambda: bench.checkpoint.bytes_read)
        with ledger.stage("verifying the bundle"):
            source.verify()
        return _Calibration(bench, options, store, staged, ledger, on_coverage).run()


@dataclass(slots=True)
class _Calibration:
    bench: Workbench
    options: CalibrationOptions
    store: EngineStore
    staged: Path
    ledger: Ledger
    on_coverage: Callable[[Coverage], None]
    _reference: tuple[ScoredQuery, ...] = ()
    _scales: dict[str, Float32Array] = field(default_factory=dict)
    _steps: dict[str, Float32Array] = field(default_factory=dict)
    _coverage: Coverage | None = None
    _warnings: list[str] = field(default_factory=list)

    def run(self) -> CalibrationResult:
        with self.ledger.stage("judged set in full precision") as stage:
            self._reference = self._score(self.bench.full, stage)
        plan = self._planned() if self.options.reuse is None else self._reused(self.options.reuse)
        derived = DerivedBundle(self.bench.bundle, self.staged)
        write_arrays(self._own(SMOOTHING_FILE), self._scales, {_SMOOTHING_METADATA: self.bench.bundle.digest})
        plan = dataclasses.replace(plan, smoothing=_digest_of(self._own(SMOOTHING_FILE)))
        if self._coverage is not None:
            derived.write_text(COVERAGE_FILE, json.dumps(self._coverage.as_dict(), indent=1) + "\n")
        attempts = 0
        for wider in _widening(plan, self.options.max_wide):
            attempts += 1
            record = self._attempt(derived, wider)
            if record.verdict.passed:
                bundle = derived.add_gate(record)
                with self.ledger.stage("installing"):
                    folder = self.store.install(self.bench.bundle.digest, self.staged)
                return CalibrationResult(
                    folder,
                    dataclasses.replace(bundle, folder=folder),
                    wider,
                    self._coverage,
                    tuple(self._warnings),
                    record,
                    attempts,
                    self.ledger,
                )
        raise RefusedPrecisionError(
            f"INT8 is refused: {'; '.join(record.verdict.reasons)} (tried {attempts} plans, "
            f"up to {self.options.max_wide:.0%} of the multiply-adds wide)",
            item=self.bench.bundle.manifest.name,
        )

    def _planned(self) -> QuantizationPlan:
        options = self.options
        scale = margin_scale([margin for query in self._reference for margin in query.margins])
        seen = observe(self.bench, options.data, self.ledger, options.plan, scale, options.ranges)
        if seen.coverage is not None:
            self._coverage = seen.coverage
            self.on_coverage(seen.coverage)
            self._warnings += seen.coverage.check()
            if options.ranges is not None:
                seen.ranges.save(options.ranges)
        made = make_plan(self.bench, options.data, seen, self.ledger, options.plan)
        self._scales, self._steps = made.scales, made.weight_steps
        return made.plan

    def _reused(self, folder: Path) -> QuantizationPlan:
        digest = self.bench.bundle.digest
        plan = QuantizationPlan.load(folder / PLAN_FILE, bundle=digest, places=self.bench.places)
        path = folder / SMOOTHING_FILE
        arrays, metadata = read_arrays(path)
        if metadata.get(_SMOOTHING_METADATA) != digest or _digest_of(path) != plan.smoothing:
            raise CalibrationError("the scales are not those that the plan was made with", item=str(path))
        self._scales = dict(arrays)
        return plan

    def _attempt(self, derived: DerivedBundle, plan: QuantizationPlan) -> GateRecord:
        """Writes an engine by a plan and has it judged."""
        with self.ledger.stage("writing INT8 weights") as stage:
            bundle = derived.write_model(
                self.bench.checkpoint,
                plan,
                self._scales,
                self._steps,
                lambda done, total: self.ledger.tell(stage, done, total),
            )
        bundle = derived.add_golden(self._record_golden(bundle))
        with self.ledger.stage("judged set in INT8") as stage:
            candidate = self._score(lambda: self.bench.quantized(bundle), stage)
        return GateRecord(
            GateSubject(self.bench.bundle.digest, engine_digest(bundle.manifest.files)),
            dataset_digest(self.options.evaluation),
            self.options.thresholds,
            compare(self._reference, candidate),
        )

    def _record_golden(self, bundle: Bundle) -> list[str]:
        """Records what the engine gives for the golden pairs, for the self-test at every start."""
        runner = self.bench.quantized(bundle)

        def score(request: RerankInput) -> Float32Array:
            return score_requests(runner, [self.bench.encoder.encode(request)], self.bench.budget).margins[0]

        try:
            return record_golden_pairs(self.bench.bundle, self.staged, score)
        except NonFiniteScoreError:
            return []  # the gate will say so
        finally:
            runner.close()

    def _score(self, make: Callable[[], Runner], stage: Stage) -> tuple[ScoredQuery, ...]:
        """Scores the judged set; a margin that is not finite makes all of them so, for the gate to refuse."""
        queries: list[tuple[str, str, tuple[int, ...]]] = []

        def requests() -> Iterator[EncodedRequest]:
            for query in read_dataset(self.options.evaluation):
                queries.append((query.id, query.split, query.grades))
                contents = [document.content for document in query.documents]
                yield self.bench.encoder.encode(RerankInput(query.query, contents, query.instruction))
                self.ledger.tell(stage, len(queries), 0)

        runner = make()
        margins: Sequence[Float32Array]
        try:
            scores = score_requests(runner, requests(), self.bench.budget)
            margins = scores.margins
            stage.tokens, stage.images = scores.tokens, scores.images
        except NonFiniteScoreError:
            queries = [(query.id, query.split, query.grades) for query in read_dataset(self.options.evaluation)]
            margins = [np.full(len(grades), np.nan, np.float32) for _, _, grades in queries]
        finally:
            runner.close()
        stage.pairs = sum(len(grades) for _, _, grades in queries)
        return tuple(
            ScoredQuery(name, split, grades, tuple(float(m) for m in own))
            for (name, split, grades), own in zip(queries, margins, strict=True)
        )

    def _own(self, name: str) -> Path:
        path = self.staged / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def _widening(plan: QuantizationPlan, most: float) -> Iterator[QuantizationPlan]:
    """The plan, then with more and more of its costliest places wide, as far as their share of the work allows.

    Each time as many are added as there are already, so that few plans are tried where many places must go.
    """
    yield plan
    wide: list[str] = []
    share = plan.wide_share
    step = 1
    left = [place for place in plan.ranking if place.step is not None]
    while left:
        added = 0
        for place in list(left):
            if added == step:
                break
            left.remove(place)
            if share + place.share <= most:
                share += place.share
                wide.append(place.place)
                added += 1
        if added:
            yield plan.widened(wide, "stays wide: among those that cost the margins most, and the gate asked for it")
        step = max(1, len(wide))


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
