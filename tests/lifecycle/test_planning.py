"""Plans from a calibration set: what may be INT8, what is smoothed, and what it is measured on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fakes.outliers import Outliers, write_with_outliers
from lifecycle.calibrated import Made
from orin_rerank.engines.bulk import score_requests
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.graph.scheme import ROW_SCALE, Mode
from orin_rerank.lifecycle.derive import DerivedBundle
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.ledger import Ledger
from orin_rerank.lifecycle.planning import (
    MadePlan,
    Observations,
    PlanOptions,
    encode,
    even_scales,
    make_plan,
    observe,
)
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.quantization.array_file import read_arrays
from orin_rerank.quantization.calibration_set import read_calibration_set
from orin_rerank.quantization.plan import SMOOTHING_FILE
from orin_rerank.quantization.ranges import Ranges
from orin_rerank.quantization.smoothing import read_place_weights

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.engines.runner import Runner


def silent() -> Ledger:
    return Ledger(lambda *_: None)


def workbench(bundle: Bundle, scratch: Path) -> Workbench:
    scratch.mkdir(parents=True, exist_ok=True)
    return Workbench(bundle, scratch, EngineSettings(threads=1))


def planned(
    bench: Workbench, data: Path, options: PlanOptions, ledger: Ledger | None = None
) -> tuple[Observations, MadePlan]:
    ledger = ledger or silent()
    seen = observe(bench, data, ledger, options)
    return seen, make_plan(bench, data, seen, ledger, options)


@pytest.fixture(scope="module")
def outliers(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The tiny model with outliers everywhere, its matrices in float32."""
    folder = tmp_path_factory.mktemp("outliers")
    checkpoint = write_with_outliers(made.at.bundle.folder, folder / "checkpoint", Outliers(vision=True))
    return export_checkpoint(checkpoint, folder / "bundle", ExportOptions(max_tokens=512, min_pixels=1)).bundle


def test_places_are_int8_where_that_saves_something(made: Made, tmp_path: Path) -> None:
    bench = workbench(made.at.bundle, tmp_path)
    seen, result = planned(bench, made.at.calibration, PlanOptions())
    assert result.plan == dataclasses.replace(made.result.plan, smoothing="")
    modes = {place.name: plan.mode for place, plan in zip(bench.places, result.plan.places, strict=True)}
    for place in bench.places:
        assert (modes[place.name] is Mode.INT8) == (not place.vision and not place.final), place.name
    assert set(seen.ranges) == {name for name, mode in modes.items() if mode is Mode.INT8}


def test_shares_are_of_the_work_of_each_graph(made: Made) -> None:
    for vision in (False, True):
        assert sum(p.share for p in made.result.plan.places if p.vision is vision) == pytest.approx(1)
    shares = {p.place: p.share for p in made.result.plan.places}
    assert shares["layers.2.down"] == 0, "it sees last tokens only"
    assert shares["layers.2.qkv"] == shares["layers.0.qkv"] > 0


def test_what_is_stored_as_int8_has_scales_where_it_can(made: Made, tmp_path: Path) -> None:
    """Searched for what is INT8; for the rest it follows from the weights, and the larger a column the smaller it."""
    bench = workbench(made.at.bundle, tmp_path)
    searched, _ = read_arrays(made.result.folder / SMOOTHING_FILE)
    even = even_scales(bench, made.result.plan, silent())
    assert not searched.keys() & even.keys()
    assert searched.keys() | even.keys() == {place.name for place in bench.places if place.producers}
    (place,) = [place for place in bench.places if place.name == "blocks.1.fc1"]
    peaks = read_place_weights(bench.checkpoint, place).peaks
    np.testing.assert_allclose(np.ptp(np.log(even[place.name] * peaks)), 0, atol=1e-5)
    places = tuple(dataclasses.replace(p, mode=Mode.WIDE) if p.vision else p for p in made.result.plan.places)
    full = dataclasses.replace(made.result.plan, places=places)
    assert even_scales(bench, full, silent()).keys() == {p.name for p in bench.text_places if p.final}
    widened = made.result.plan.widened(["layers.0.down", "layers.1.qkv"], "to see")
    assert even_scales(bench, widened, silent()).keys() == even.keys(), "what was searched stays"


def test_steps_reach_beyond_what_was_seen(made: Made, tmp_path: Path) -> None:
    """After smoothing, that is: dividing the maxima gives the smoothed ones, give or take an image of pixels."""
    bench = workbench(made.at.bundle, tmp_path)
    seen, result = planned(bench, made.at.calibration, PlanOptions(vision=Mode.INT8))
    rows = 0
    for place in result.plan.places:
        if place.mode is not Mode.INT8:
            continue
        assert place.step is not None
        if place.by_row:
            rows += 1
            assert place.step == ROW_SCALE
        else:
            peak = (seen.ranges[place.place].maxima / result.scales.get(place.place, 1)).max()
            assert 1.05 * peak < 127 * place.step < 2 * peak
    assert rows < len(result.plan.places)


def test_each_place_is_tried_on_requests_from_all_over_the_set(made: Made, tmp_path: Path) -> None:
    ledger = silent()
    bench = workbench(made.at.bundle, tmp_path)
    _, result = planned(bench, made.at.calibration, PlanOptions(sensitivity_pairs=12), ledger)
    (tried,) = [stage for stage in ledger.stages if stage.name == "trying each place in INT8"]
    assert tried.pairs == (9 + 2) * 12  # none, each of nine, all
    shifts = [place.margin_shift for place in result.plan.places if place.mode is Mode.INT8]
    assert all(shift is not None and 0 < shift < 1 for shift in shifts)
    assert shifts != [p.margin_shift for p in made.result.plan.places if p.mode is Mode.INT8], "tried on other pairs"


def test_ranges_serve_as_well_from_a_file(made: Made, tmp_path: Path) -> None:
    bench = workbench(made.at.bundle, tmp_path)
    ledger = silent()
    seen = observe(bench, made.at.calibration, ledger, PlanOptions(), made.ranges)
    assert seen.coverage is None
    loaded = Ranges.load(made.ranges, seen.ranges.provenance)
    assert loaded.provenance.bundle == made.at.bundle.digest
    result = make_plan(bench, made.at.calibration, seen, ledger, PlanOptions())
    assert result.plan == dataclasses.replace(made.result.plan, smoothing="")


class TestOutliers:
    """A channel that is large has small columns, which steps that fit the other columns would round away."""

    def test_weights_that_are_only_stored_as_int8_survive_them(
        self, made: Made, outliers: Bundle, tmp_path: Path
    ) -> None:
        bench = workbench(outliers, tmp_path / "scratch")
        _, result = planned(bench, made.at.calibration, PlanOptions())
        stored = result.plan.widened([p.place for p in result.plan.places], "all of it")
        exact = self._margins(made, bench, bench.full())
        moved = {}
        smoothed = result.scales | even_scales(bench, result.plan, silent())
        for name, scales in (("smoothed", smoothed), ("unsmoothed", {})):
            out = tmp_path / name
            out.mkdir()
            engine = DerivedBundle(outliers, out).write_model(bench.checkpoint, stored, scales, {}, lambda *_: None)
            moved[name] = np.sqrt(np.mean(np.square(self._margins(made, bench, bench.quantized(engine)) - exact)))
        assert moved["smoothed"] < 0.1 * exact.std()
        assert moved["unsmoothed"] > 5 * moved["smoothed"]

    def test_smoothing_takes_most_of_the_error(self, made: Made, outliers: Bundle, tmp_path: Path) -> None:
        bench = workbench(outliers, tmp_path)
        _, result = planned(bench, made.at.calibration, PlanOptions())
        for place in result.plan.ranking:
            assert place.error is not None
            assert place.plain_error is not None
            assert place.error < 0.1 * place.plain_error, place.place

    @staticmethod
    def _margins(made: Made, bench: Workbench, runner: Runner) -> np.ndarray:
        requests = (encode(bench, request) for request in read_calibration_set(made.at.calibration))
        margins = np.concatenate(score_requests(runner, requests, bench.budget).margins)
        runner.close()
        return margins
