from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.errors import ImageAspectRatioError
from orin_rerank.prompt.resize import most_patches, smart_resize
from prompt.reference import IMAGE_PROFILE

_sides = st.integers(1, 20_000)


@given(height=_sides, width=_sides, most=st.sampled_from((16, 1280, 1800)))
def test_sizes_are_whole_tokens_within_the_limits(height, width, most):
    limits = dataclasses.replace(IMAGE_PROFILE, max_pixels=most * 32 * 32)
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ImageAspectRatioError):
            smart_resize(height, width, limits)
        return
    rows, columns = smart_resize(height, width, limits)
    assert rows % 32 == columns % 32 == 0
    assert min(rows, columns) >= 32
    assert rows * columns >= 4096
    # Only a side that would vanish may take a picture over the limit.
    assert rows * columns <= limits.max_pixels or min(rows, columns) == 32


def test_halves_go_to_even():
    assert smart_resize(80, 112, IMAGE_PROFILE) == (64, 128)  # 2.5 tokens to 2, 3.5 to 4


def test_a_thin_picture_keeps_one_token_of_its_shorter_side():
    small = dataclasses.replace(IMAGE_PROFILE, max_pixels=16 * 32 * 32)
    assert smart_resize(20, 3900, small) == (32, 1760)


@given(
    shorter=_sides,
    ratio=st.floats(1, 200),
    tall=st.booleans(),
    least=st.integers(0, 400_000),
    more=st.integers(1, 2_000_000),
)
def test_no_image_has_more_patches_than_buffers_are_made_for(shorter, ratio, tall, least, more):
    profile = dataclasses.replace(IMAGE_PROFILE, min_pixels=least, max_pixels=least + more)
    longer = int(shorter * ratio)
    rows, columns = smart_resize(*((longer, shorter) if tall else (shorter, longer)), profile)
    assert rows * columns // profile.patch_size**2 <= most_patches(profile)


def test_the_published_limit_is_not_exceeded_by_much():
    assert most_patches(dataclasses.replace(IMAGE_PROFILE, max_pixels=1280 * 32 * 32)) == 1280 * 4
