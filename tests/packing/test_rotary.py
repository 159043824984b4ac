"""Rotary tables against the definition, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.packing.rotary import RotaryTable


def reference(positions: np.ndarray, head_dim: int, theta: float, sections: tuple[int, int, int] | None) -> np.ndarray:
    """Angles `[T, D/2]` frequency by frequency: as transformers lays out interleaved sections."""
    half = head_dim // 2
    axes = [0] * half
    if sections is not None:
        for axis in (1, 2):
            for f in range(axis, min(3 * sections[axis], half), 3):
                axes[f] = axis
    angles = np.empty((positions.shape[1], half))
    for f, axis in enumerate(axes):
        angles[:, f] = positions[axis].astype(np.float64) * theta ** (-2.0 * f / head_dim)
    return angles


@given(
    st.sampled_from(((32, (6, 5, 5)), (64, (12, 10, 10)), (128, (24, 20, 20)), (32, (24, 20, 20)), (64, None))),
    st.sampled_from((1e4, 1e6, 5e6)),
    st.lists(st.tuples(*[st.integers(0, 300)] * 3), min_size=1, max_size=20),
)
def test_equals_the_definition(shape: tuple, theta: float, places: list) -> None:
    head_dim, sections = shape
    positions = np.array(places, np.int32).T.copy()
    table = RotaryTable(head_dim, theta, sections, 300)
    cos, sin = (np.full((len(places), head_dim // 2), np.nan, np.float32) for _ in range(2))
    table.write(positions, cos, sin)
    angles = reference(positions, head_dim, theta, sections)
    # float32 angles up to 300 are off by up to 300 * 2**-24 or so
    assert np.abs(cos - np.cos(angles)).max() < 5e-5
    assert np.abs(sin - np.sin(angles)).max() < 5e-5


def test_every_frequency_is_rounded_from_the_exact_power_once() -> None:
    for theta in (1e4, 1e5, 1e6, 5e6):
        table = RotaryTable(128, theta, None, 1)
        exact = np.float32(1) / (theta ** (np.arange(64) / 64)).astype(np.float32)
        cos, sin = np.empty((1, 64), np.float32), np.empty((1, 64), np.float32)
        table.write(np.ones((3, 1), np.int32), cos, sin)
        assert np.array_equal(sin[0], np.sin(exact))


def test_published_layout_of_the_sections() -> None:
    positions = np.array([[0], [1], [2]], np.int32)
    cos, sin = np.empty((1, 64), np.float32), np.empty((1, 64), np.float32)
    RotaryTable(128, 5e6, (24, 20, 20), 2).write(positions, cos, sin)
    one, two = (np.array(5e6 ** (-2 * np.arange(64) / 128) * n) for n in (1, 2))
    height, width = np.arange(1, 59, 3), np.arange(2, 60, 3)
    time = np.setdiff1d(np.arange(64), np.concatenate((height, width)))
    assert len(height) == len(width) == 20
    assert not sin[0, time].any()
    assert np.allclose(sin[0, height], np.sin(one)[height], atol=1e-6)
    assert np.allclose(sin[0, width], np.sin(two)[width], atol=1e-6)


def test_a_position_beyond_the_table_is_an_error() -> None:
    table = RotaryTable(32, 1e4, None, 10)
    assert table.max_position == 10
    with pytest.raises(IndexError):
        table.write(np.full((3, 1), 11, np.int32), np.empty((1, 16), np.float32), np.empty((1, 16), np.float32))
