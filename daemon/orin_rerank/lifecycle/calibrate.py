"""From a full-precision bundle and a calibration set to INT8 that is served only if it ranks as well.

::

    calibration set            -> ranges
    judged set, full precision -> reference margins -> is the calibration set one that the model understands?
    ranges                     -> smoothing, steps, sensitivity -> plan
    plan -> weights and graphs -> judged set, INT8 -> gate -> installed
              ^                                         |
              +--- the costliest places stay wide <-----+ refused

Everything is written into a folder of its own, and one rename puts it into service; until then, and if the gate
refuses, the engine that was there stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bulk import score_requests
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import (
    CalibrationError,
    NonFiniteScoreError,
    RefusedPrecisionError,
    SettingsError,
    StoreError,
)
from orin_rerank.evaluation.paired import compare
from orin_rerank.lifecycle.derive import COVERAGE_FILE, DerivedBundle
from orin_rerank.lifecycle.judging import REFERENCE_FILE, JudgedSet, without_scores, write_reference
from orin_rerank.lifecycle.ledger import Ledger
from orin_rerank.lifecycle.planning import PlanOptions, even_scales, make_plan, observe
from orin_rerank.lifecycle.self_test import record_golden_pairs
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.quantization.array_file import read_arrays, write_arrays
from orin_rerank.quantization.calibration_set import read_calibration_set
from orin_rerank.quantization.coverage import margin_scale
from orin_rerank.quantization.gate import GateRecord, GateSubject, GateThresholds, engine_digest
from orin_rerank.quantization.plan import PLAN_FILE, SMOOTHING_FILE, QuantizationPlan
from orin_rerank.quantization.widening import widening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.runner import Runner
    from orin_rerank.engines.store import EngineStore
    from orin_rerank.evaluation.scoring import ScoredQuery
    from orin_rerank.lifecycle.ledger import Stage
    from orin_rerank.lifecycle.planning import Observations
    from orin_rerank.prompt.content import RerankInput
    from orin_rerank.prompt.encoded import Float32Array
    from orin_rerank.quantization.coverage import Coverage

__all__ = ["CalibrationOptions", "CalibrationResult", "Spectator", "calibrate"]

_SMOOTHING_METADATA: Final = "bundle"


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """What a person may choose.

    Attributes:
        data: Folder of the calibration set; not read where a plan is reused.
        evaluation: Folder of the judged set that decides.
        plan: What may be INT8.
        thresholds: The gate's.
        max_wide: Largest share of a graph's multiply-adds that may stay wide so that the gate passes.
        ranges: A file to keep what was observed in, and to start from where it exists.
        reuse: An engine's folder or a copy of it, whose plan is the first to be tried.
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
        if self.ranges is not None and not self.ranges.absolute().parent.is_dir():
            raise SettingsError("is in no folder that exists", item=f"ranges: {self.ranges}")


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
        refused: What it saw of the plans that it refused before.
        ledger: What was done, and what that took.
    """

    folder: Path
    bundle: Bundle
    plan: QuantizationPlan
    coverage: Coverage | None
    warnings: tuple[str, ...]
    record: GateRecord
    refused: tuple[GateRecord, ...]
    ledger: Ledger

    @property
    def attempts(self) -> int:
        """How many plans the gate was asked about."""
        return len(self.refused) + 1


class Spectator:
    """Who is told how a calibration gets on; this one does not care."""

    def on_stage(self, stage: str, done: int, total: int) -> None:
        """A stage has done so much of so much; a total of 0 means that it is not known."""

    def on_coverage(self, card: Coverage) -> None:
        """The calibration set has been scored, and is about to be judged."""

    def on_warning(self, warning: str) -> None:
        """Something is not as it should be, but no reason to stop; a sentence."""

    def on_attempt(self, plan: QuantizationPlan, record: GateRecord) -> None:
        """The gate has seen what a plan gives."""


def calibrate(
    source: Bundle, options: CalibrationOptions, store: EngineStore, spectator: Spectator | None = None
) -> CalibrationResult:
    """Makes an INT8 engine, has it judged, and puts it into service.

    Args:
        source: The full-precision bundle.
        options: What is wanted.
        store: Where engines are.
        spectator: Told how it gets on.

    Raises:
        BundleError: If the bundle is damaged.
        DatasetError: If a set is malformed, or the judged one too small.
        CalibrationError: If the calibration set is no fit for the model, what is to be reused is of another one, or the
            bundle is INT8 itself.
        CheckpointError: If a weight is not finite.
        RefusedPrecisionError: If no plan within the limits passes the gate; the message says why.
        StoreError: If the engine cannot be written, or another process is writing one.
    """
    if source.manifest.source is not None:
        raise CalibrationError("is INT8 itself; name the full-precision bundle", item=str(source.folder))
    spectator = spectator or Spectator()
    with (
        _disk_errors(store.root),
        store.staging(source.digest) as staged,
        # Beside what is staged, and named like it: what a kill leaves is cleared away with it.
        tempfile.TemporaryDirectory(prefix=f"{staged.name}-", dir=staged.parent) as scratch,
    ):
        bench = Workbench(source, Path(scratch), EngineSettings(threads=options.threads))
        ledger = Ledger(spectator.on_stage, lambda: bench.checkpoint.bytes_read)
        with ledger.stage("verifying the bundle"):
            source.verify()
            bench.check_weights()
        with ledger.stage("reading the sets"):
            if options.reuse is None:
                for _ in read_calibration_set(options.data):
                    pass
            judged = JudgedSet.open(options.evaluation, least=options.thresholds.min_queries)
        return _Calibration(bench, options, store, staged, ledger, spectator, judged).run()


@dataclass(slots=True)
class _Calibration:
    bench: Workbench
    options: CalibrationOptions
    store: EngineStore
    staged: Path
    ledger: Ledger
    spectator: Spectator
    judged: JudgedSet
    _reference: tuple[ScoredQuery, ...] = ()
    _scales: dict[str, Float32Array] = field(default_factory=dict)
    _steps: dict[str, Float32Array] = field(default_factory=dict)
    _coverage: Coverage | None = None
    _warnings: list[str] = field(default_factory=list)

    def run(self) -> CalibrationResult:
        plan = self._planned() if self.options.reuse is None else self._reused(self.options.reuse)
        derived = DerivedBundle(self.bench.bundle, self.staged)
        write_arrays(self._own(SMOOTHING_FILE), self._scales, {_SMOOTHING_METADATA: self.bench.bundle.digest})
        plan = dataclasses.replace(plan, smoothing=_digest_of(self._own(SMOOTHING_FILE)))
        self._scales |= even_scales(self.bench, plan, self.ledger)
        # What is compiled from this engine is another one, and is held against the same margins.
        write_reference(self._own(REFERENCE_FILE), self.judged, self.bench.bundle.digest, self._reference)
        if self._coverage is not None:
            derived.write_text(COVERAGE_FILE, json.dumps(self._coverage.as_dict(), indent=1) + "\n")
        refused: list[GateRecord] = []
        for wider in widening(plan, self.options.max_wide):
            record = self._attempt(derived, wider)
            self.spectator.on_attempt(wider, record)
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
                    tuple(refused),
                    self.ledger,
                )
            refused.append(record)
        raise RefusedPrecisionError(
            f"INT8 is refused: {'; '.join(refused[-1].verdict.reasons)} (plan {len(refused)}, "
            f"{wider.wide_share:.0%} of the decoder's work wide, of at most {self.options.max_wide:.0%})",
            item=self.bench.bundle.manifest.name,
        )

    def _planned(self) -> QuantizationPlan:
        options = self.options
        with self._finite():
            seen = observe(self.bench, options.data, self.ledger, options.plan, options.ranges)
        self._score_reference()
        self._check_coverage(seen)
        if options.ranges is not None and seen.coverage is not None:
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
        self._score_reference()
        return plan

    def _score_reference(self) -> None:
        with self.ledger.stage("judged set in full precision") as stage, self._finite():
            runner = self.bench.full()
            try:
                self._reference = self._score(runner, stage)
            finally:
                runner.close()

    def _score(self, runner: Runner, stage: Stage) -> tuple[ScoredQuery, ...]:
        scores = self.judged.score(
            runner, self.bench.encoder, self.bench.budget, lambda done, total: self.ledger.tell(stage, done, total)
        )
        stage.pairs, stage.tokens, stage.images = scores.pairs, scores.tokens, scores.images
        return scores.queries

    def _check_coverage(self, seen: Observations) -> None:
        """Refuses a set that the model cannot make sense of; one whose ranges were kept was looked at before."""
        if seen.ranges.provenance.dataset == self.judged.digest:
            self._warn("the judged set is the calibration set itself, so INT8 will seem better than it is")
        if seen.coverage is None:
            return
        scale = margin_scale([margin for query in self._reference for margin in query.margins])
        self._coverage = seen.coverage.coverage(self.bench.bundle.manifest.prompt, scale)
        self.spectator.on_coverage(self._coverage)
        for warning in self._coverage.check():
            self._warn(warning)

    def _warn(self, warning: str) -> None:
        self._warnings.append(warning)
        self.spectator.on_warning(warning)

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
        with self.ledger.stage("judged set in INT8") as stage:
            runner = self.bench.quantized(bundle)
            try:
                bundle = derived.add_golden(self._record_golden(runner))
                candidate = self._score(runner, stage)
            except NonFiniteScoreError:
                candidate = without_scores(self._reference)
            finally:
                runner.close()
        return GateRecord(
            GateSubject(self.bench.bundle.digest, engine_digest(bundle.manifest.files)),
            self.judged.digest,
            self.options.thresholds,
            compare(self._reference, candidate),
        )

    def _record_golden(self, runner: Runner) -> list[str]:
        """Records what the engine gives for the golden pairs, for the self-test at every start."""

        def score(request: RerankInput) -> Float32Array:
            return score_requests(runner, [self.bench.encoder.encode(request)], self.bench.budget).margins[0]

        return record_golden_pairs(self.bench.bundle, self.staged, score)

    @contextlib.contextmanager
    def _finite(self) -> Iterator[None]:
        """For what is computed in full precision: if that fails, nothing is the matter with INT8."""
        try:
            yield
        except NonFiniteScoreError as error:
            raise CalibrationError(
                "full precision gives scores that are not finite numbers", item=self.bench.bundle.manifest.name
            ) from error

    def _own(self, name: str) -> Path:
        path = self.staged / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@contextlib.contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    """Makes a full disk, or one that fails, an error that a person can read."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the engine cannot be made: {error.strerror}", item=str(error.filename or root)) from error


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
