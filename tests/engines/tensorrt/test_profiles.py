from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.tensorrt.profiles import (
    Extent,
    ShapeProfile,
    profiles_digest,
    text_profiles,
    token_ladder,
    vision_profiles,
)
from orin_rerank.errors import InternalError
from orin_rerank.prompt.profile import ImageProfile
from orin_rerank.prompt.resize import MAX_ASPECT_RATIO, most_patches, smart_resize

PUBLISHED = ImageProfile(16, 2, 2, 48, 72, 1e4, 4096, 1_843_200)
MINI = ImageProfile(16, 2, 2, 12, 64, 1e4, 12288, 16384)
CAPACITY = PackCapacity(
    tokens=2048, documents=256, visual_rows=2049, known_rows=2048, keep_rows=2048,
    hidden=256, half_head=32, layers=6, kv_heads=2, taps=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "longest", "ladder"),
    [
        (1024, 10240, (64, 128, 256, 512, 1024, 10240)),
        (768, 768, (64, 128, 256, 512, 768)),
        (64, 64, (64,)),
        (48, 48, (48,)),
        (4096, 300, (64, 128, 256, 300)),
    ],
)
def test_the_token_ladder(budget: int, longest: int, ladder: tuple[int, ...]) -> None:
    assert token_ladder(budget, longest) == ladder


def test_text_profiles() -> None:
    profiles = text_profiles(CAPACITY, 512)
    assert [profile.name for profile in profiles] == [f"{n} tokens" for n in (64, 128, 256, 512, 2048)]
    assert profiles[0].extents == {
        "tokens": Extent(1, 64, 64),
        "documents": Extent(1, 1, 64),
        "known": Extent(1, 128, 2048),
        "keep": Extent(1, 64, 64),
        "visual": Extent(1, 65, 65),
    }
    assert profiles[-1].extents["documents"] == Extent(1, 32, 256)
    assert "visual" not in text_profiles(dataclasses.replace(CAPACITY, visual_rows=0), 512)[0].extents


@given(data=st.data(), budget=st.integers(16, 4096))
def test_every_pack_that_fits_the_buffers_has_a_profile(data: st.DataObject, budget: int) -> None:
    tokens = data.draw(st.integers(1, CAPACITY.tokens))
    sizes = {
        "tokens": tokens,
        "documents": data.draw(st.integers(1, min(tokens, CAPACITY.documents))),
        "visual": data.draw(st.integers(1, tokens + 1)),
        "keep": data.draw(st.integers(1, tokens)),
        "known": data.draw(st.integers(1, CAPACITY.known_rows)),
    }
    rung = next(profile for profile in text_profiles(CAPACITY, budget) if profile.holds(sizes))
    assert rung.extents["tokens"].most < 2 * max(tokens, 64) or tokens > min(budget, CAPACITY.tokens) / 2


def test_vision_profiles_of_the_published_models() -> None:
    profiles = vision_profiles(PUBLISHED, 1024)
    assert [(p.extents["grid"], p.extents["patches"]) for p in profiles] == [
        (Extent(4, 48, 48), Extent(4, 48, 1056)),
        (Extent(52, 196, 196), Extent(52, 196, 1176)),
        (Extent(200, 784, 784), Extent(200, 784, 1568)),
        (Extent(788, 3136, 3136), Extent(788, 3136, 3136)),
        (Extent(3140, 7200, 7200), Extent(3140, 7200, 7200)),
    ]
    # As many pictures as a rung's smallest, each as large as its largest: that is what room is made for.
    extents = [(profile.extents["grid"], profile.extents["patches"]) for profile in profiles]
    assert all(patches.most // grid.least * grid.most <= 2 * 7200 for grid, patches in extents)


images = st.builds(
    lambda patch, low, factor: ImageProfile(patch, 2, 2, 12, 64, 1e4, low, int(low * factor)),
    st.sampled_from((8, 14, 16, 32)),
    st.integers(1, 1 << 20),
    st.floats(1, 1000),
)
sizes_of_pictures = st.tuples(st.integers(1, 5000), st.integers(1, 5000)).filter(
    lambda size: max(size) <= MAX_ASPECT_RATIO * min(size)
)


@given(images, sizes_of_pictures, st.integers(1, 4096))
def test_every_picture_is_in_one_profile(image: ImageProfile, size: tuple[int, int], batch: int) -> None:
    rows, columns = smart_resize(*size, image)
    grid = rows * columns // image.patch_size**2
    assert grid <= most_patches(image)
    # As the runner batches: within the limit, or one image alone
    for patches in {grid, grid * max(1, batch // grid)}:
        sizes = {"grid": grid, "patches": patches}
        assert sum(profile.holds(sizes) for profile in vision_profiles(image, batch)) == 1


@given(images, st.integers(1, 4096))
def test_no_profile_reserves_for_many_large_pictures(image: ImageProfile, batch: int) -> None:
    """Attention is images x patches x patches: at most 4 times what the largest run of any profile needs."""
    profiles = vision_profiles(image, batch)
    need = max(p.extents["patches"].most * p.extents["grid"].most for p in profiles)
    for profile in profiles[1:]:
        grid, patches = profile.extents["grid"], profile.extents["patches"]
        assert patches.most // grid.least * grid.most**2 <= 4.1 * need


@given(images, st.integers(1, 4096))
def test_ends_of_profiles_are_sizes_that_a_graph_can_compute_with(image: ImageProfile, batch: int) -> None:
    block = image.merge_size**2
    for profile in vision_profiles(image, batch):
        grid, patches = profile.extents["grid"], profile.extents["patches"]
        assert grid.least % block == grid.most % block == patches.least % grid.least == patches.most % grid.most == 0


def test_most_patches_are_reached() -> None:
    assert most_patches(PUBLISHED) == 7200
    assert max(
        rows * columns
        for height in range(1, 60)
        for width in range(height, MAX_ASPECT_RATIO * height, 7)
        for rows, columns in [smart_resize(height, width, MINI)]
    ) // 256 in range(most_patches(MINI) - 64, most_patches(MINI) + 1)


def test_shapes_of_an_input() -> None:
    profile = ShapeProfile("p", {"tokens": Extent(1, 32, 64), "samples": Extent(8, 8, 8)})
    assert profile.shapes([2, "tokens", "samples"]) == ((2, 1, 8), (2, 32, 8), (2, 64, 8))
    with pytest.raises(InternalError, match="known: profile 'p'"):
        profile.shapes(["known"])
    assert not profile.holds({"tokens": 65})
    assert not profile.holds({"known": 1})


@pytest.mark.parametrize("lengths", [(0, 1, 1), (2, 1, 3), (1, 4, 3)])
def test_extents_ascend_from_1(lengths: tuple[int, int, int]) -> None:
    with pytest.raises(InternalError, match="ascend"):
        Extent(*lengths)


def test_profiles_travel_whole_and_have_a_digest() -> None:
    profiles = text_profiles(CAPACITY, 512)
    again = tuple(ShapeProfile.from_value(json.loads(json.dumps(profile.to_value()))) for profile in profiles)
    assert again == profiles
    assert profiles_digest(again) == profiles_digest(profiles)
    assert profiles_digest(profiles[:-1]) != profiles_digest(profiles) != profiles_digest(profiles[::-1])
