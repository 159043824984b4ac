"""The search for smoothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from graph.checkpoints import uniform, write_safetensors
from orin_rerank.errors import CheckpointError
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.places import Place, Producer
from orin_rerank.quantization.magnitudes import BINS
from orin_rerank.quantization.ranges import PlaceRanges
from orin_rerank.quantization.rounding import fake_quantize, row_steps
from orin_rerank.quantization.smoothing import (
    PlaceSmoothing,
    PlaceWeights,
    even_columns,
    read_place_weights,
    search_smoothing,
)
from orin_rerank.quantization.steps import HEADROOM

if TYPE_CHECKING:
    from pathlib import Path

CHANNELS, OUTPUTS, ROWS = 48, 64, 200
PLACE = Place("layers.0.qkv", CHANNELS, OUTPUTS, ("w",), (Producer("norm"),), (1, 1, CHANNELS))


def _ranges(samples: np.ndarray) -> PlaceRanges:
    return PlaceRanges(np.abs(samples).max(0), len(samples), np.zeros(BINS, np.int64), 0.0, samples)


def _weights(weight: np.ndarray) -> PlaceWeights:
    return PlaceWeights(np.abs(weight).max(0), weight)


def _error(samples: np.ndarray, weight: np.ndarray, found: PlaceSmoothing) -> float:
    """The relative squared error of the place's output, computed anew."""
    values, scaled = samples / found.scales, weight * found.scales
    reach = np.abs(values).max(1, keepdims=True) if found.by_row else HEADROOM * np.abs(values).max()
    outputs = fake_quantize(values, reach / 127) @ fake_quantize(scaled, row_steps(scaled)[:, None]).T
    exact = samples @ weight.T
    return float(np.square(outputs - exact).sum() / np.square(exact).sum())


@pytest.fixture
def weight() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(OUTPUTS, CHANNELS)).astype(np.float32)


@pytest.fixture
def samples() -> np.ndarray:
    """Rows of which every channel has a size of its own, as behind a norm with unequal weights."""
    rng = np.random.default_rng(2)
    return (rng.uniform(-1, 1, (ROWS, CHANNELS)) * rng.uniform(0.2, 2, CHANNELS)).astype(np.float32)


def test_errors_are_those_of_the_outputs(samples: np.ndarray, weight: np.ndarray) -> None:
    found = search_smoothing(PLACE, _ranges(samples), _weights(weight))
    plain = PlaceSmoothing(0.0, np.ones(CHANNELS, np.float32), False, 0.0, 0.0)
    assert found.error == pytest.approx(_error(samples, weight, found), rel=1e-3)
    assert found.plain_error == pytest.approx(_error(samples, weight, plain), rel=1e-3)


def test_large_channels_stop_costing_the_others_their_precision(samples: np.ndarray, weight: np.ndarray) -> None:
    """Outliers as large models have them, and in a form that changes nothing but how it rounds."""
    factors = np.ones(CHANNELS, np.float32)
    factors[[3, 17, 40]] = 60, 250, 1000
    outliers = _ranges(samples * factors)
    plain = search_smoothing(PLACE, _ranges(samples), _weights(weight))
    found = search_smoothing(PLACE, outliers, _weights(weight / factors))
    assert found.plain_error > 500 * plain.plain_error
    assert found.error < 1.05 * plain.error
    assert found.strength == plain.strength
    assert found.by_row == plain.by_row
    # The scales take up exactly what was put in.
    ratio = found.scales / plain.scales / factors
    assert ratio == pytest.approx(np.full(CHANNELS, ratio[0]), rel=1e-4)


def test_rows_that_reach_far_beyond_the_others_get_steps_of_their_own(samples: np.ndarray, weight: np.ndarray) -> None:
    rng = np.random.default_rng(3)
    for row in range(0, ROWS, 9):  # single values, each in another channel
        samples[row, rng.integers(CHANNELS)] = rng.uniform(60, 120)
    found = search_smoothing(PLACE, _ranges(samples), _weights(weight))
    assert found.by_row
    assert found.error == pytest.approx(_error(samples, weight, found), rel=1e-3)
    ordinary = np.abs(samples).max(1) < 10
    outputs = (
        fake_quantize(
            samples[ordinary] / found.scales,
            np.abs(samples[ordinary] / found.scales).max(1, keepdims=True) / 127,
        )
        @ (weight * found.scales).T
    )
    exact = samples[ordinary] @ weight.T
    assert np.square(outputs - exact).sum() < 1e-3 * np.square(exact).sum()


def test_rows_alike_share_a_step(samples: np.ndarray, weight: np.ndarray) -> None:
    assert not search_smoothing(PLACE, _ranges(samples), _weights(weight)).by_row


def test_strength_is_judged_on_rows_that_the_maxima_are_not_of(weight: np.ndarray) -> None:
    """With heavy tails every row is the largest in some channel; fitting channels to it would clip the next one."""
    rng = np.random.default_rng(4)
    heavy = (rng.standard_t(2.5, (ROWS, CHANNELS))).astype(np.float32)
    even = rng.uniform(-1, 1, (ROWS, CHANNELS)).astype(np.float32)
    size = np.geomspace(0.1, 10, CHANNELS, dtype=np.float32)
    strengths = [search_smoothing(PLACE, _ranges(rows * size), _weights(weight)).strength for rows in (heavy, even)]
    assert strengths[0] < strengths[1]


def test_channels_of_one_row_share_a_scale(samples: np.ndarray, weight: np.ndarray) -> None:
    """Behind attention, query heads that share a value head."""
    samples[:, 5] *= 100
    place = Place("layers.0.output", CHANNELS, OUTPUTS, ("w",), (Producer("v"),), (2, 3, 8))
    found = search_smoothing(place, _ranges(samples), _weights(weight))
    grouped = found.scales.reshape(2, 3, 8)
    assert (grouped == grouped[:, :1]).all()
    assert found.scales.std() > 0
    assert found.error < found.plain_error


def test_scales_need_somewhere_to_go(samples: np.ndarray, weight: np.ndarray) -> None:
    place = Place("blocks.0.fc2", CHANNELS, OUTPUTS, ("w",), (), (1, 1, CHANNELS))
    found = search_smoothing(place, _ranges(samples * np.geomspace(1, 100, CHANNELS)), _weights(weight))
    assert found.strength == 0
    assert (found.scales == 1).all()
    assert found.error == found.plain_error or found.by_row


def test_without_rows_to_judge_by_nothing_is_smoothed(samples: np.ndarray, weight: np.ndarray) -> None:
    found = search_smoothing(PLACE, _ranges(samples[:3]), _weights(weight))
    assert (found.strength, found.by_row) == (0, False)
    assert (found.scales == 1).all()


def test_silent_channels_and_columns_of_zeros_get_finite_scales(samples: np.ndarray, weight: np.ndarray) -> None:
    samples[:, 4] = 0
    weight[:, 9] = 0
    samples[:, 11], weight[:, 11] = 0, 0
    for rows in (samples, np.zeros_like(samples)):
        found = search_smoothing(PLACE, _ranges(rows), _weights(weight))
        assert np.isfinite(found.scales).all()
        assert (found.scales > 0).all()
        assert np.isfinite(found.error)


def test_even_columns_reach_equally_far(weight: np.ndarray) -> None:
    weight *= np.geomspace(0.01, 100, CHANNELS)
    scaled = weight * even_columns(PLACE, _weights(weight))
    reach = np.abs(scaled).max(0)
    assert reach == pytest.approx(np.full(CHANNELS, reach[0]), rel=1e-4)


def test_of_large_weights_spread_rows_are_kept(tmp_path: Path) -> None:
    tensors = {name: uniform(name, (rows, 8)) for name, rows in (("q", 50), ("k", 30), ("v", 21))}
    write_safetensors(tmp_path / "model.safetensors", tensors, "F32")
    source = Checkpoint.open(tmp_path)
    place = Place("p", 8, 101, ("q", "k", "v"), (), (1, 1, 8))
    joined = np.concatenate(list(tensors.values()))
    read = read_place_weights(source, place, max_values=8 * 30)
    np.testing.assert_array_equal(read.rows, joined[::4])
    np.testing.assert_array_equal(read.peaks, np.abs(joined).max(0))
    np.testing.assert_array_equal(read_place_weights(source, place).rows, joined)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    weight = uniform("w", (6, 8))
    weight[2, 2] = np.inf
    write_safetensors(tmp_path / "model.safetensors", {"w": weight}, "F32")
    with pytest.raises(CheckpointError) as caught:
        read_place_weights(Checkpoint.open(tmp_path), Place("p", 8, 6, ("w",), (), (1, 1, 8)))
    assert caught.value.item == "w"
