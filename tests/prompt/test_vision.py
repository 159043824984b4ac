from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from orin_rerank.errors import InternalError
from orin_rerank.prompt.vision import VisionGeometry
from prompt.reference import IMAGE_PROFILE


@pytest.mark.parametrize("grid", [(2, 2), (8, 4), (62, 118)])
def test_weights_sum_to_one_and_indices_stay_in_the_table(grid):
    geometry = VisionGeometry.for_grid(grid, IMAGE_PROFILE)
    assert geometry.position_index.shape == geometry.position_weight.shape == (grid[0] * grid[1], 4)
    np.testing.assert_allclose(geometry.position_weight.sum(axis=1), 1, atol=1e-6)
    assert geometry.position_index.min() >= 0
    assert geometry.position_index.max() < 48 * 48
    assert geometry.cos.shape == geometry.sin.shape == (grid[0] * grid[1], 36)
    assert {array.dtype for array in (geometry.position_weight, geometry.cos, geometry.sin)} == {np.dtype(np.float32)}


def test_corners_are_the_tables_corners():
    geometry = VisionGeometry.for_grid((6, 4), IMAGE_PROFILE)
    # In merge-block order the first patch is the top left one and the last the bottom right one.
    for patch, corner in ((0, 0), (-1, 48 * 48 - 1)):
        best = geometry.position_weight[patch].argmax()
        assert geometry.position_weight[patch, best] == 1
        assert geometry.position_index[patch, best] == corner


def test_a_grid_as_large_as_the_table_reads_it_row_by_row():
    geometry = VisionGeometry.for_grid((48, 48), IMAGE_PROFILE)
    place = (geometry.position_index * (geometry.position_weight == 1)).sum(axis=1)
    assert place[:6].tolist() == [0, 1, 48, 49, 2, 3]
    assert sorted(place.tolist()) == list(range(48 * 48))


def test_a_grid_is_computed_once_and_cannot_be_altered():
    first = VisionGeometry.for_grid((4, 6), IMAGE_PROFILE)
    assert VisionGeometry.for_grid((4, 6), dataclasses.replace(IMAGE_PROFILE)) is first
    assert VisionGeometry.for_grid((4, 6), dataclasses.replace(IMAGE_PROFILE, head_dim=64)) is not first
    with pytest.raises(ValueError, match="read-only"):
        first.cos[0, 0] = 2


@pytest.mark.parametrize("grid", [(3, 2), (2, 0), (-2, 2)])
def test_a_grid_of_broken_tokens_is_a_bug(grid):
    with pytest.raises(InternalError):
        VisionGeometry.for_grid(grid, IMAGE_PROFILE)
