from __future__ import annotations

import numpy as np

from orin_rerank.prompt.positions import segment_positions


def test_text_advances_all_axes():
    positions, end = segment_positions([2, 1], 7)
    assert positions.tolist() == [[7, 8, 9]] * 3
    assert (positions.dtype, positions.flags.c_contiguous, end) == (np.int32, True, 10)


def test_an_image_spans_rows_and_columns_and_advances_by_its_longer_side():
    positions, end = segment_positions([3, (2, 2), 1], 0)
    assert positions.tolist() == [[0, 1, 2, 3, 3, 3, 3, 5], [0, 1, 2, 3, 3, 4, 4, 5], [0, 1, 2, 3, 4, 3, 4, 5]]
    assert end == 6
    assert segment_positions([(1, 4)], 10)[1] == segment_positions([(4, 1)], 10)[1] == 14


def test_a_segment_goes_on_where_another_ended():
    runs = [4, (3, 5), 2, (2, 1), 1]
    whole, end = segment_positions(runs, 0)
    first, middle = segment_positions(runs[:2], 0)
    second, last = segment_positions(runs[2:], middle)
    assert np.array_equal(np.concatenate((first, second), axis=1), whole)
    assert last == end


def test_nothing_has_no_positions():
    positions, end = segment_positions([], 3)
    assert positions.shape == (3, 0)
    assert end == 3
