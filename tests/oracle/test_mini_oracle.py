"""The trained mini model against transformers: real weights, whose activations are far from a random model's.

The bundle is the one that the project ships, or the one that ORIN_RERANK_BUNDLE names.
"""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch")

from PIL import Image, ImageDraw

from engines.running import make_encoder, make_engine, make_runner, margins_of, open_bundle, pairs_of, random_split
from engines.running import random_requests as make_requests
from oracle.graph_reference import Reference, load_reference
from orin_rerank.engines.bundle import MANIFEST_FILE, Bundle
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.prompt.content import ImagePart
from orin_rerank.prompt.tokenizer import PromptTokenizer
from prompt.pictures import file_of, picture

if TYPE_CHECKING:
    from engines.running import Pair

pytestmark = pytest.mark.oracle

_log = logging.getLogger(__name__)
FOLDER = Path(os.environ.get("ORIN_RERANK_BUNDLE", Path(__file__).parents[2] / "engines" / "mini"))


def _drawing(width: int, height: int, colour: str, shape: str) -> ImagePart:
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    box = (width // 5, height // 5, width * 4 // 5, height * 4 // 5)
    {"circle": draw.ellipse, "square": draw.rectangle}[shape](box, fill=colour)
    return ImagePart(file_of(image, "PNG"))


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    if not (FOLDER / MANIFEST_FILE).exists():
        pytest.skip(f"no bundle in {FOLDER}")
    return open_bundle(FOLDER)


@pytest.fixture(scope="module")
def scored(bundle: Bundle) -> tuple[list[Pair], np.ndarray]:
    """Pairs of text, pictures and both, and the reference's margins."""
    pictures = [
        _drawing(128, 128, "red", "circle"),
        _drawing(160, 96, "blue", "square"),
        ImagePart(picture("PNG", 96, 224)),
        ImagePart(picture("PNG", 64, 64)),
    ]
    rng = random.Random(5)
    encoder = make_encoder(bundle)
    pairs = pairs_of([*make_requests(encoder, rng, 6, 6, pictures), *make_requests(encoder, rng, 3, 6, [])])
    tokenizer = PromptTokenizer.from_file(bundle.folder / "tokenizer.json")
    reference = Reference(load_reference(bundle.folder, vl=True), tokenizer, bundle.manifest.prompt.image, None)
    return pairs, np.array([reference.margin(*pair) for pair in pairs])


@pytest.mark.parametrize("dialect", Dialect)
def test_margins_equal_the_reference_in_any_packing(
    bundle: Bundle, scored: tuple[list[Pair], np.ndarray], dialect: Dialect, record_property
) -> None:
    pairs, golden = scored
    engine = make_engine(bundle, dialect, tokens=8192)
    rng = random.Random(2)
    every = list(range(len(pairs)))
    packings = [[[i] for i in every], [every[:40], every[40:]], *(random_split(rng, len(pairs)) for _ in range(4))]
    results = [
        margins_of(make_runner(bundle, engine, remember=number % 2 == 1), pairs, packing)
        for number, packing in enumerate(packings)
    ]
    off = np.abs(np.array(results) - golden).max()
    # Packing only moves where sums are cut: of softmax over vector lanes, and of values over a product's blocks. What
    # that changes is a share of the margin too, and these go up to 10.
    change = np.abs(np.array(results[1:]) - results[0])
    spread = change.max()
    record_property("largest_difference_from_reference", f"{off:.2e}")
    record_property("largest_difference_between_packings", f"{spread:.2e}")
    _log.info("%s: reference %.2e, packings %.2e, deviation %.2f", dialect.value, off, spread, golden.std())
    assert off < 1e-4
    assert (change < 1e-5 + 1e-6 * np.abs(golden)).all()


@pytest.mark.parametrize("dialect", Dialect)
def test_float16_products_keep_the_order(
    bundle: Bundle, scored: tuple[list[Pair], np.ndarray], dialect: Dialect, record_property
) -> None:
    pairs, golden = scored
    engine = make_engine(bundle, dialect, Precision.FP16, tokens=8192)
    margins = margins_of(make_runner(bundle, engine), pairs, random_split(random.Random(1), len(pairs)))
    off = np.abs(margins - golden).max()
    record_property("largest_difference_from_reference", f"{off:.2e}")
    _log.info("%s in float16: reference %.2e", dialect.value, off)
    assert off < 0.1
    assert np.corrcoef(margins, golden)[0, 1] > 0.9999
