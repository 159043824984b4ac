"""Images, positions and vision geometry against transformers and qwen-vl-utils, on inputs made at random."""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch")
pytest.importorskip("transformers")
if importlib.util.find_spec("qwen_vl_utils") is None:  # importing it is prompt_reference's business
    pytest.skip("qwen-vl-utils is not installed", allow_module_level=True)

from oracle import prompt_reference as oracle
from orin_rerank.errors import ImageAspectRatioError
from orin_rerank.prompt.images import ImageSettings, encode_image
from orin_rerank.prompt.patches import patch_width, write_patches
from orin_rerank.prompt.positions import segment_positions
from orin_rerank.prompt.resize import smart_resize
from orin_rerank.prompt.vision import VisionGeometry
from prompt.pictures import file_of
from prompt.reference import IMAGE_PROFILE

pytestmark = pytest.mark.oracle


def test_smart_resize_on_random_sizes():
    random = np.random.default_rng(1)
    compared = 0
    for _ in range(5000):
        height, width = (int(side) for side in np.exp(random.uniform(0, 9.5, 2)))
        most = int(random.choice([16, 64, 1280, 1800])) * 1024
        limits = dataclasses.replace(IMAGE_PROFILE, max_pixels=most)
        try:
            expected = oracle.smart_resize(height, width, limits.min_pixels, most)
        except ValueError:
            with pytest.raises(ImageAspectRatioError):
                smart_resize(height, width, limits)
            continue
        if 0 in expected:  # where the reference's picture vanishes ours keeps one token
            assert min(smart_resize(height, width, limits)) == 32
            continue
        assert smart_resize(height, width, limits) == expected
        compared += 1
    assert compared > 3000


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_files_become_the_references_pixels_and_patches(kind, channels):
    if channels == 4 and kind in ("JPEG", "BMP"):
        pytest.skip("has no alpha channel")
    random = np.random.default_rng(channels)
    for _ in range(6):
        height, width = random.integers(20, 700, 2)
        # Smooth at a small scale, so that JPEG and WebP keep something of it.
        small = random.integers(0, 256, (height // 8 + 2, width // 8 + 2, channels), dtype=np.uint8)
        image = Image.fromarray(small.squeeze()).resize((int(width), int(height)))
        data = file_of(image, kind)
        limits = dataclasses.replace(IMAGE_PROFILE, max_pixels=int(random.integers(8, 300)) * 1024)
        encoded = encode_image(data, limits, ImageSettings())
        expected = oracle.fetched(data, limits.min_pixels, limits.max_pixels)
        assert np.array_equal(encoded.pixels, expected)
        out = np.empty((encoded.grid[0] * encoded.grid[1], patch_width(limits)), dtype=np.float32)
        write_patches(encoded.pixels, limits, out)
        np.testing.assert_allclose(out, oracle.patches(expected, 16), rtol=0, atol=1e-6)


def test_positions_of_random_layouts():
    random = np.random.default_rng(3)
    for _ in range(200):
        layout: list = []
        for _ in range(random.integers(1, 7)):
            # Text lies between images always: their start and end tokens.
            layout += [int(random.integers(1, 20)), [int(side) for side in random.integers(1, 12, 2)]]
        layout.append(int(random.integers(1, 20)))
        runs = [run if isinstance(run, int) else tuple(run) for run in layout]
        expected = oracle.rope_index(layout)
        assert segment_positions(runs, 0)[0].tolist() == expected
        # Cut into prefix and document behind any run.
        cut = int(random.integers(1, len(runs)))
        prefix, end = segment_positions(runs[:cut], 0)
        document, _ = segment_positions(runs[cut:], end)
        assert np.concatenate((prefix, document), axis=1).tolist() == expected


@pytest.mark.parametrize("head_dim", [32, 64, 72])
def test_geometry_of_random_grids(head_dim):
    random = np.random.default_rng(head_dim)
    profile = dataclasses.replace(IMAGE_PROFILE, head_dim=head_dim)
    grids = [(2, 2), (2, 400), (48, 48), *((int(a) * 2, int(b) * 2) for a, b in random.integers(1, 60, (25, 2)))]
    for grid in grids:
        geometry = VisionGeometry.for_grid(grid, profile)
        expected = oracle.vision(grid, head_dim)
        assert np.array_equal(geometry.position_index, expected["index"])
        np.testing.assert_allclose(geometry.position_weight, expected["weight"], rtol=0, atol=1e-6)
        for half, name in ((geometry.cos, "cos"), (geometry.sin, "sin")):
            # In float32 an angle of up to 400 is known to 3e-5 / 2 only, so equality here means the same operations.
            np.testing.assert_allclose(np.concatenate((half, half), axis=1), expected[name], rtol=0, atol=1e-6)
