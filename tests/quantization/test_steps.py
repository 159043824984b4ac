"""Steps of activations."""

from __future__ import annotations

import numpy as np
import pytest

from orin_rerank.errors import CalibrationError
from orin_rerank.quantization.magnitudes import bin_counts
from orin_rerank.quantization.ranges import PlaceRanges
from orin_rerank.quantization.steps import HEADROOM, activation_step


def _ranges(rows: np.ndarray) -> PlaceRanges:
    """What a collector that keeps everything would give."""
    magnitudes = np.abs(rows)
    return PlaceRanges(magnitudes.max(0), len(rows), bin_counts(magnitudes), 0.0, rows)


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2000, 24)).astype(np.float32)


def test_what_was_seen_is_never_clipped(rows: np.ndarray) -> None:
    rows[1234, 7] = 500  # one value of 48,000: by squared error over all, clipping it would pay
    step = activation_step(_ranges(rows))
    assert 127 * step == pytest.approx(500 * HEADROOM)


def test_the_headroom_can_be_chosen(rows: np.ndarray) -> None:
    ranges = _ranges(rows)
    assert activation_step(ranges, headroom=1.0) == pytest.approx(ranges.peak / 127)


def test_a_percentile_leaves_out_the_largest(rows: np.ndarray) -> None:
    rows[1234, 7] = 500
    ranges = _ranges(rows)
    reach = 127 * activation_step(ranges, percentile=99.9, headroom=1.0)
    assert reach == pytest.approx(np.quantile(np.abs(rows), 0.999), rel=0.07)


@pytest.mark.parametrize("peak", [0.0, np.nan, np.inf, 1e-30, 1e30])
def test_an_activation_without_a_sensible_reach_is_refused(rows: np.ndarray, peak: float) -> None:
    seen = _ranges(rows)
    ranges = PlaceRanges(np.full(24, peak, np.float32), seen.rows, seen.tail, 0.0, rows[:0])
    with pytest.raises(CalibrationError) as caught:
        activation_step(ranges, "layers.3.down")
    assert caught.value.item == "layers.3.down"
