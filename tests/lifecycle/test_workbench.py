"""Engines over probing graphs: they compute what they claim to, and nothing but what they probe differs."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engines.running import noise_picture, random_requests
from lifecycle.calibrated import Made
from orin_rerank.engines.bulk import score_requests
from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import CheckpointError
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.scheme import Mode
from orin_rerank.lifecycle.derive import DerivedBundle
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.quantization.array_file import read_arrays
from orin_rerank.quantization.plan import SMOOTHING_FILE
from orin_rerank.quantization.ranges import Provenance, RangeCollector
from orin_rerank.quantization.rounding import weight_steps

if TYPE_CHECKING:
    from orin_rerank.engines.runner import Runner

NOWHERE = Provenance("0" * 64, "0" * 64, "0" * 64)


@pytest.fixture
def bench(made: Made, tmp_path: Path) -> Workbench:
    return Workbench(made.at.bundle, tmp_path, EngineSettings(threads=1))


def margins(bench: Workbench, runner: Runner, *, close: bool = True) -> np.ndarray:
    pictures = [noise_picture(number, 32, 32 + 16 * number) for number in range(3)]
    requests = random_requests(bench.encoder, random.Random(5), 8, 5, pictures)
    values = np.concatenate(score_requests(runner, requests, bench.budget).margins)
    if close:
        runner.close()
    return values


def test_observing_changes_no_margin_and_sees_every_place(bench: Workbench) -> None:
    collector = RangeCollector(bench.places)
    runner, digest = bench.observed(collector)
    np.testing.assert_array_equal(margins(bench, runner), margins(bench, bench.full()))
    ranges = collector.ranges(NOWHERE)
    assert list(ranges) == [place.name for place in bench.places]
    assert all(one.peak > 0 and one.rows > 0 for one in ranges.values())
    again, same = bench.observed(RangeCollector(bench.places))
    again.close()
    assert same == digest


def test_smoothed_activations_are_the_plain_ones_divided(bench: Workbench) -> None:
    (place,) = [place for place in bench.text_places if place.name == "layers.1.gate_up"]
    scales = np.linspace(0.5, 4, place.channels, dtype=np.float32)
    seen, digests = [], []
    for smoothing in ({}, {place.name: scales}):
        collector = RangeCollector([place])
        runner, digest = bench.observed(collector, smoothing)
        margins(bench, runner)
        seen.append(collector.ranges(NOWHERE)[place.name].maxima)
        digests.append(digest)
    np.testing.assert_allclose(seen[1], seen[0] / scales, rtol=1e-6)
    assert digests[0] != digests[1], "what is recorded of one is not taken for the other"


def test_switches_are_what_an_engine_will_be(made: Made, bench: Workbench, tmp_path: Path) -> None:
    """Off, full precision; on, an engine by the same plan, in which nothing else is INT8."""
    places = tuple(
        place if place.mode is Mode.INT8 else dataclasses.replace(place, mode=Mode.WIDE)
        for place in made.result.plan.places
    )
    plan = dataclasses.replace(made.result.plan, places=places, embedding=False)
    scales, _ = read_arrays(made.result.folder / SMOOTHING_FILE)
    int8 = [place for place, planned in zip(bench.places, places, strict=True) if planned.mode is Mode.INT8]
    steps = weight_steps(bench.checkpoint, int8, scales)
    runner, switches = bench.switched(plan.scheme(scales), steps)
    exact = margins(bench, bench.full())
    np.testing.assert_allclose(margins(bench, runner, close=False), exact, atol=1e-5)
    switches.switch_on([place.name for place in int8])
    moved = margins(bench, runner) - exact
    (tmp_path / "engine").mkdir()
    engine = DerivedBundle(bench.bundle, tmp_path / "engine").write_model(
        bench.checkpoint, plan, scales, steps, lambda *_: None
    )
    moved_too = margins(bench, bench.quantized(engine)) - exact
    # Sums that are rounded differently turn a code here and there, and all that follows.
    assert np.median(np.abs(moved_too - moved)) < 0.3 * np.abs(moved).mean()
    assert np.corrcoef(moved_too, moved)[0, 1] > 0.9


def test_a_weight_that_is_no_number_is_named(made: Made, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made.at.bundle.folder, tmp_path / "bundle"))
    name = "model.visual.blocks.1.norm2.bias"
    entry = Checkpoint.open(folder).entry(name)
    contents = bytearray((folder / WEIGHTS_FILE).read_bytes())
    last = np.array([np.nan], {"F16": "<f2", "F32": "<f4"}[entry.dtype]).tobytes()
    contents[entry.end - len(last) : entry.end] = last
    (folder / WEIGHTS_FILE).write_bytes(contents)
    with pytest.raises(CheckpointError, match="NaN") as caught:
        Workbench(Bundle.open(folder), tmp_path, EngineSettings(threads=1)).check_weights()
    assert caught.value.item == name
