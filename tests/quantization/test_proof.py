"""That INT8 can be trusted: what naive INT8 ruins the pipeline keeps, and what it cannot keep it does not serve.

The gate decides on every second query of the shipped judged set, 100 of them, where it asks for 50. What it says on all
200 is in docs/quantization.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.outliers import Outliers, bundle_with_outliers
from fakes.random_set import write_random_set
from lifecycle.calibration_sets import write_part
from lifecycle.int8_bundles import write_int8_bundle
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.errors import CalibrationError
from orin_rerank.evaluation.paired import compare
from orin_rerank.evaluation.scoring import score_set
from orin_rerank.graph.scheme import Mode
from orin_rerank.lifecycle.calibrate import CalibrationOptions, CalibrationResult, calibrate
from orin_rerank.lifecycle.judging import JudgedSet
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.quantization.calibration_set import read_calibration_set
from orin_rerank.quantization.gate import GATE_FILE, GateRecord, GateThresholds, judge
from orin_rerank.quantization.plan import PLAN_FILE

if TYPE_CHECKING:
    from orin_rerank.engines.runner import Runner
    from orin_rerank.evaluation.scoring import ScoredQuery

ROOT = Path(__file__).parents[2]
MINI = ROOT / "engines" / "mini"
CALIBRATION = ROOT / "calibration_data" / "calibration"
EVALUATION = ROOT / "calibration_data" / "evaluation"


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_part(tmp_path_factory.mktemp("judged") / "half", EVALUATION, 2)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> EngineStore:
    return EngineStore(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def few(judged: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 50 queries that the gate asks for, for what is ruined beyond doubt."""
    return write_part(tmp_path_factory.mktemp("judged") / "quarter", judged, 2)


@pytest.fixture(scope="session")
def result(judged: Path, store: EngineStore) -> CalibrationResult:
    """The mini's INT8."""
    return calibrate(Bundle.open(MINI), CalibrationOptions(CALIBRATION, judged), store)


@pytest.fixture(scope="session")
def outliers(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The mini with channels 50 to 1000 times larger than others at every place, and spikes before every down."""
    return bundle_with_outliers(MINI, tmp_path_factory.mktemp("outliers") / "mini", Outliers(vision=True))


class TestMini:
    def test_it_ranks_as_full_precision_does(self, result: CalibrationResult) -> None:
        total = result.record.report.total
        assert (total.queries, total.non_finite) == (100, 0)
        assert total.candidate_distinct >= 0.99 * total.reference_distinct
        assert total.correlation > 0.999
        assert total.rms_shift < 0.05 * total.spread
        assert total.flips < 0.02
        assert total.difference.mean >= -0.005

    def test_the_decoder_is_int8_nearly_all_of_it(self, result: CalibrationResult) -> None:
        assert result.plan.wide_share <= 0.15
        assert result.plan.counts()[Mode.INT8] >= 18  # of 24, of which 3 see last tokens only

    def test_all_of_it_is_small(self, result: CalibrationResult) -> None:
        assert sum(path.stat().st_size for path in result.folder.rglob("*") if path.is_file()) <= 16e6

    def test_it_is_served_and_evaluated_as_it_was_judged(
        self, result: CalibrationResult, judged: Path, store: EngineStore, tmp_path: Path
    ) -> None:
        part = write_part(tmp_path / "part", judged, 10)
        scored = {}
        for choice in PrecisionChoice:
            model = load_model(MINI, EngineSettings(choice, token_budget=512), store=store)
            if choice is not PrecisionChoice.FULL:
                assert (model.info.precision, model.digest) == ("int8", result.bundle.digest)
                assert model.precision_reason.startswith("INT8 passed its gate: NDCG@10 0.")
            scored[choice] = score_set(lambda request, model=model: model.rerank(request).margins, part).queries
            model.close()
        assert scored[PrecisionChoice.INT8] == scored[PrecisionChoice.AUTO]
        moved = compare(scored[PrecisionChoice.FULL], scored[PrecisionChoice.AUTO]).total
        whole = result.record.report.total
        assert 0 < moved.largest_shift <= whole.largest_shift + 0.1  # packs are cut otherwise here
        assert moved.rms_shift < 2 * whole.rms_shift

    def test_a_person_can_read_why(self, result: CalibrationResult) -> None:
        plan = json.loads((result.folder / PLAN_FILE).read_text())
        assert [place["place"] for place in plan["places"]] == [place.place for place in result.plan.places]
        for place in plan["places"]:
            assert place["why"]
            if place["mode"] == "int8":
                assert place["step"] > 0
                assert f"moves the margins by {place['margin_shift']:.3f}" in place["why"]
        record = GateRecord.from_json((result.folder / GATE_FILE).read_text())
        assert record == result.record

    def test_its_plan_gives_the_same_engine_again(self, result: CalibrationResult, few: Path, tmp_path: Path) -> None:
        lenient = GateThresholds(max_ndcg_loss=0.05)  # 50 queries alone are no measure of half a point
        options = CalibrationOptions(CALIBRATION, few, thresholds=lenient, reuse=result.folder)
        again = calibrate(Bundle.open(MINI), options, EngineStore(tmp_path))
        # The engine's files, among them the golden pairs with its own scores.
        assert again.record.subject == result.record.subject
        assert again.plan == result.plan


class TestOutliers:
    def test_naive_int8_is_refused(self, outliers: Bundle, few: Path, tmp_path: Path) -> None:
        """A step a tensor that fits the largest value seen, no smoothing, the whole decoder INT8; a real engine."""
        requests = (request.request for request in read_calibration_set(CALIBRATION, decode=False))
        naive = write_int8_bundle(outliers, tmp_path / "naive", requests)
        (tmp_path / "scratch").mkdir()
        bench = Workbench(outliers, tmp_path / "scratch", EngineSettings())
        exact, rounded = (_scored(bench, runner, few) for runner in (bench.full(), bench.quantized(naive)))
        report = compare(exact, rounded)
        verdict = judge(report, GateThresholds())
        assert not verdict.passed
        assert any("scores collapsed" in reason for reason in verdict.reasons)
        assert not report.total.correlation > 0.5
        assert report.total.difference.mean < -0.3

    def test_the_pipelines_int8_passes(self, outliers: Bundle, judged: Path, store: EngineStore) -> None:
        result = calibrate(outliers, CalibrationOptions(CALIBRATION, judged), store)
        total = result.record.report.total
        assert result.record.thresholds == GateThresholds()
        assert total.difference.mean >= -0.005
        assert total.correlation > 0.998
        assert total.candidate_distinct >= 0.99 * total.reference_distinct
        assert result.plan.wide_share <= 0.15
        plain = {place.place: place.plain_error for place in result.plan.ranking}
        assert min(error or 0 for error in plain.values()) > 0.5, "unsmoothed, every place loses most of its output"
        model = load_model(outliers.folder, EngineSettings(token_budget=512), store=store)
        assert (model.info.precision, model.digest) == ("int8", result.bundle.digest)
        model.close()

    def test_a_random_calibration_set_is_refused(
        self, outliers: Bundle, few: Path, tmp_path: Path, store: EngineStore
    ) -> None:
        before = store.quantized(outliers.digest)
        data = write_random_set(tmp_path / "random", MINI)
        with pytest.raises(CalibrationError, match="the model's margins spread by") as caught:
            calibrate(outliers, CalibrationOptions(data, few), store)
        assert caught.value.item == "margins"
        assert store.quantized(outliers.digest) == before


def _scored(bench: Workbench, runner: Runner, folder: Path) -> tuple[ScoredQuery, ...]:
    try:
        return JudgedSet.open(folder, least=50).score(runner, bench.encoder, bench.budget, lambda *_: None).queries
    finally:
        runner.close()
