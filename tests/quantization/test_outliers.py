"""Outliers as large models have them: that they change nothing in full precision, and that naive INT8 collapses."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engines.running import make_encoder, make_engine, make_runner, random_requests
from fakes.outliers import Outliers, bundle_with_outliers, write_with_outliers
from fakes.random_set import write_random_set
from graph.checkpoints import TEXT, VL, write_checkpoint
from orin_rerank.engines.bulk import score_requests
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import CalibrationError
from orin_rerank.evaluation.dataset import DATASET_FILE, read_dataset
from orin_rerank.evaluation.paired import PairedFigures, compare
from orin_rerank.evaluation.scoring import ScoredQuery
from orin_rerank.graph.builder import Dialect
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.scheme import Mode, PlaceScheme, Scheme
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.prompt.content import ImagePart, RerankInput
from orin_rerank.quantization.calibration_set import read_calibration_set
from orin_rerank.quantization.coverage import margin_scale
from orin_rerank.quantization.ranges import Provenance, RangeCollector, Ranges
from orin_rerank.quantization.rounding import weight_steps
from orin_rerank.quantization.survey import CoverageBuilder

if TYPE_CHECKING:
    from orin_rerank.engines.runner import Runner

ROOT = Path(__file__).parents[2]
MINI = ROOT / "engines" / "mini"
EVALUATION = ROOT / "calibration_data" / "evaluation"
CALIBRATION = ROOT / "calibration_data" / "calibration"
EVERY_QUERY, EVERY_REQUEST = 16, 4
GROWN = ("model.layers.1.input_layernorm.weight", "model.language_model.layers.1.input_layernorm.weight")
NOWHERE = Provenance("0" * 64, "0" * 64, "0" * 64)


@pytest.mark.parametrize("vision", [False, True])
@pytest.mark.parametrize("config", [VL, TEXT], ids=["vl", "text"])
def test_function_stays_what_it_was(
    config: dict[str, Any], vision: bool, tmp_path: Path, pictures: list[ImagePart]
) -> None:
    options = ExportOptions(max_tokens=1024, min_pixels=1)
    checkpoint = write_checkpoint(tmp_path / "plain", config)
    changed = write_with_outliers(checkpoint, tmp_path / "outliers", Outliers(channels=3, vision=vision))
    bundles = [export_checkpoint(c, tmp_path / c.name / "bundle", options).bundle for c in (checkpoint, changed)]
    requests = random_requests(make_encoder(bundles[0]), random.Random(4), 5, 3, pictures if config is VL else [])

    def margins(bundle: Bundle) -> np.ndarray:
        runner = make_runner(bundle, make_engine(bundle, Dialect.FUSED))
        return np.concatenate(score_requests(runner, requests, TokenBudget.fixed(256)).margins)

    assert np.abs(margins(bundles[1]) - margins(bundles[0])).max() < 1e-4
    grown = [Checkpoint.open(bundle.folder).read(GROWN[config is VL]) for bundle in bundles]
    factors = grown[1] / grown[0]
    assert ((factors > 49) & (factors < 1001)).sum() == 3
    assert (factors == 1).sum() == len(factors) - 3


class Trial:
    """A model on a part of the shipped sets: in full precision, and with INT8 steps that just fit what was seen."""

    def __init__(self, bundle: Bundle, scratch: Path) -> None:
        scratch.mkdir()
        self.bench = Workbench(bundle, scratch, EngineSettings(threads=1))
        self.queries = list(itertools.islice(read_dataset(EVALUATION), 0, None, EVERY_QUERY))
        self.exact = self._score(self.bench.full())
        self.ranges = self._observe()

    def naive(self) -> PairedFigures:
        """Full precision against naive INT8 in the decoder: a step a tensor, from its largest value, unsmoothed."""
        bench = self.bench
        naive = {p.name: PlaceScheme(Mode.INT8, self.ranges[p.name].peak / 127) for p in bench.text_places}
        scheme = Scheme(naive | {p.name: PlaceScheme(Mode.WIDE) for p in bench.vision_places})
        runner, switches = bench.switched(scheme, weight_steps(bench.checkpoint, bench.text_places, {}))
        switches.switch_on(naive)
        return compare(self.exact, self._score(runner)).total

    def _score(self, runner: Runner) -> list[ScoredQuery]:
        requests = (
            self.bench.encoder.encode(RerankInput(q.query, [d.content for d in q.documents], q.instruction))
            for q in self.queries
        )
        margins = score_requests(runner, requests, self.bench.budget).margins
        runner.close()
        return [ScoredQuery.of(query, values) for query, values in zip(self.queries, margins, strict=True)]

    def _observe(self) -> Ranges:
        collector = RangeCollector(self.bench.places)
        runner, _ = self.bench.observed(collector)
        chosen = itertools.islice(read_calibration_set(CALIBRATION), 0, None, EVERY_REQUEST)
        score_requests(runner, (self.bench.encoder.encode(one.request) for one in chosen), self.bench.budget)
        runner.close()
        return collector.ranges(NOWHERE)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(Bundle.open(MINI), tmp_path_factory.mktemp("mini") / "scratch")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder = tmp_path_factory.mktemp("outliers")
    return Trial(bundle_with_outliers(MINI, folder / "mini", Outliers(vision=True)), folder / "scratch")


def test_the_mini_keeps_its_margins(plain: Trial, changed: Trial) -> None:
    total = compare(plain.exact, changed.exact).total
    assert total.documents >= 200
    assert total.largest_shift < 1e-4


def test_outliers_stand_out_where_large_models_have_them(plain: Trial, changed: Trial) -> None:
    """By themselves, only the mini's `layers.5.down` has a channel over 10 times the median."""

    def peaks(trial: Trial) -> np.ndarray:
        ranges = [trial.ranges[place.name] for place in trial.bench.places if place.producers]
        return np.array([one.peak / np.median(one.maxima) for one in ranges])

    assert (peaks(plain) > 10).sum() == 1
    assert peaks(changed).min() > 100
    # A channel that grew is large for every token; spikes of their size come with a few tokens only.
    down = np.abs(changed.ranges["layers.3.down"].samples[:, -2 * Outliers().spikes :])
    assert (down.max(axis=0) > 100 * np.median(down, axis=0)).all()


def test_naive_int8_collapses_on_outliers_and_only_there(plain: Trial, changed: Trial) -> None:
    with_outliers, without = changed.naive(), plain.naive()
    assert without.correlation > 0.99
    assert without.candidate_distinct == without.reference_distinct
    assert with_outliers.correlation < 0.5
    assert with_outliers.difference.mean < -0.2
    assert with_outliers.candidate_distinct < 0.5 * with_outliers.reference_distinct


@pytest.mark.parametrize("pictures", [0, 16])
def test_random_sets_are_well_formed_and_refused(tmp_path: Path, plain: Trial, pictures: int) -> None:
    root = write_random_set(tmp_path / "random", MINI, pictures=pictures)
    again = write_random_set(tmp_path / "again", MINI, pictures=pictures)
    assert (root / DATASET_FILE).read_bytes() == (again / DATASET_FILE).read_bytes()
    requests = list(read_calibration_set(root))
    encoded = [plain.bench.encoder.encode(one.request) for one in requests]
    runner = plain.bench.full()
    margins = score_requests(runner, encoded, plain.bench.budget).margins
    runner.close()
    builder = CoverageBuilder()
    for request, prompt, values in zip(requests, encoded, margins, strict=True):
        builder.add(request, prompt, values)
    scale = margin_scale(np.concatenate([query.margins for query in plain.exact]))
    card = builder.coverage(plain.bench.bundle.manifest.prompt, scale)
    assert card.pairs == 200
    assert bool(card.image_count) == bool(pictures)
    with pytest.raises(CalibrationError, match="margins"):
        card.check()
