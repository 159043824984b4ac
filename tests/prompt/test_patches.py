from __future__ import annotations

import numpy as np
import pytest

from orin_rerank.errors import InternalError
from orin_rerank.prompt.patches import patch_width, write_patches
from prompt.pictures import gradient
from prompt.reference import IMAGE_PROFILE


def test_a_patch_holds_its_square_in_merge_block_order():
    pixels = gradient(64, 96)
    out = np.empty((24, patch_width(IMAGE_PROFILE)), dtype=np.float32)
    write_patches(pixels, IMAGE_PROFILE, out)
    # The second token (block 0, 1) begins with patches (0, 2), (0, 3), (1, 2), (1, 3).
    for number, (row, column) in zip(range(4, 8), [(0, 2), (0, 3), (1, 2), (1, 3)], strict=True):
        square = pixels[row * 16 : row * 16 + 16, column * 16 : column * 16 + 16].astype(np.float32) / 127.5 - 1
        patch = out[number].reshape(3, 2, 16, 16)
        for frame in range(2):
            np.testing.assert_allclose(patch[:, frame], square.transpose(2, 0, 1), rtol=0, atol=1e-6)


def test_the_range_is_minus_one_to_one():
    out = np.empty((4, 1536), dtype=np.float32)
    for value, expected in ((0, -1.0), (255, 1.0)):
        write_patches(np.full((32, 32, 3), value, dtype=np.uint8), IMAGE_PROFILE, out)
        assert np.all(out == expected)


@pytest.mark.parametrize(
    ("shape", "out_shape"),
    [((32, 48, 3), (6, 1536)), ((32, 32, 4), (4, 1536)), ((32, 32, 3), (5, 1536)), ((32, 32, 3), (4, 768))],
)
def test_shapes_that_do_not_agree_are_a_bug(shape, out_shape):
    with pytest.raises(InternalError):
        write_patches(np.zeros(shape, dtype=np.uint8), IMAGE_PROFILE, np.empty(out_shape, dtype=np.float32))


def test_a_buffer_with_gaps_is_a_bug():
    with pytest.raises(InternalError):
        write_patches(gradient(32, 32), IMAGE_PROFILE, np.empty((8, 1536), dtype=np.float32)[::2])
