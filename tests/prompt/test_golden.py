"""Results of transformers and qwen-vl-utils, stored by tests/oracle/make_prompt_golden.py, against the product's."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from orin_rerank.prompt.content import RerankInput, TextPart
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.images import ImageSettings, encode_image
from orin_rerank.prompt.patches import patch_width, write_patches
from orin_rerank.prompt.positions import segment_positions
from orin_rerank.prompt.profile import PromptFamily
from orin_rerank.prompt.resize import smart_resize
from orin_rerank.prompt.vision import VisionGeometry
from prompt.pictures import file_of, gradient
from prompt.reference import GOLDEN, IMAGE_PROFILE, MULTILINGUAL, profile

INTEGERS = json.loads((GOLDEN / "integers.json").read_text())
with np.load(GOLDEN / "arrays.npz") as _stored:
    ARRAYS = {name: _stored[name] for name in _stored.files}


def stored(kind: str) -> list[tuple[str, ...]]:
    return sorted({tuple(name.split("/")[1:3]) for name in ARRAYS if name.startswith(kind + "/")})


def test_smart_resize():
    assert len(INTEGERS["resize"]) > 400
    for low, high, height, width, rows, columns in INTEGERS["resize"]:
        limits = dataclasses.replace(IMAGE_PROFILE, min_pixels=low, max_pixels=high)
        assert smart_resize(height, width, limits) == (rows, columns)


@pytest.mark.parametrize("case", INTEGERS["positions"])
def test_positions(case):
    runs = [run if isinstance(run, int) else tuple(run) for run in case["layout"]]
    positions, end = segment_positions(runs, 0)
    assert positions.tolist() == case["positions"]
    assert end == max(map(max, case["positions"])) + 1 or not isinstance(runs[-1], int)


@pytest.mark.parametrize("family", PromptFamily)
def test_prompts(tokenizer, family):
    encoder = PromptEncoder(profile(family), tokenizer)
    assert len(INTEGERS["prompts"][family.value]) == len(MULTILINGUAL)
    for query, document, ids in zip(
        MULTILINGUAL, reversed(MULTILINGUAL), INTEGERS["prompts"][family.value], strict=True
    ):
        encoded = encoder.encode(RerankInput([TextPart(query)], [[TextPart(document)]]))
        assert [*encoded.prefix.ids.tolist(), *encoded.documents[0].ids.tolist()] == ids


@pytest.mark.parametrize(("size", "patch_size"), stored("patches"))
def test_patches(size, patch_size):
    height, width = map(int, size.split("x"))
    small = dataclasses.replace(IMAGE_PROFILE, patch_size=int(patch_size))
    expected = ARRAYS[f"patches/{size}/{patch_size}"]
    out = np.full((height * width // int(patch_size) ** 2, patch_width(small)), np.nan, dtype=np.float32)
    write_patches(gradient(height, width), small, out)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [size for (size,) in stored("pixels")])
def test_decoding_and_resizing(size):
    data = file_of(Image.fromarray(gradient(*map(int, size.split("x")))), "PNG")
    limits = dataclasses.replace(IMAGE_PROFILE, min_pixels=4096, max_pixels=3 * 4096)
    assert np.array_equal(encode_image(data, limits, ImageSettings()).pixels, ARRAYS[f"pixels/{size}"])


@pytest.mark.parametrize(("grid", "head_dim"), stored("vision"))
def test_vision_geometry(grid, head_dim):
    rows, columns = map(int, grid.split("x"))
    geometry = VisionGeometry.for_grid((rows, columns), dataclasses.replace(IMAGE_PROFILE, head_dim=int(head_dim)))
    expected = {name: ARRAYS[f"vision/{grid}/{head_dim}/{name}"] for name in ("index", "weight", "cos", "sin")}
    assert np.array_equal(geometry.position_index, expected["index"])
    np.testing.assert_allclose(geometry.position_weight, expected["weight"], rtol=0, atol=1e-6)
    for half, full in ((geometry.cos, expected["cos"]), (geometry.sin, expected["sin"])):
        np.testing.assert_allclose(np.concatenate((half, half), axis=1), full, rtol=0, atol=1e-6)
