"""A loaded model: any request in any packing gives what single documents give."""

from __future__ import annotations

import random
import shutil
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engines.running import noise_picture, random_content
from graph.checkpoints import TEXT, write_checkpoint
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import BundleError, EngineError, InvalidRequestError
from orin_rerank.graph.builder import Dialect
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.sizes import LADDER
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import RerankInput, TextPart

if TYPE_CHECKING:
    from pathlib import Path

PICTURES = [noise_picture(i, 32, 16 * (2 + i)) for i in range(3)]


def _request(rng: random.Random, documents: int) -> RerankInput:
    return RerankInput(random_content(rng, PICTURES), [random_content(rng, PICTURES) for _ in range(documents)], None)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("budget", [16, 128, 1024])
def test_a_request_gives_what_its_documents_give_alone(bundle_folder: Path, dialect: Dialect, budget: int) -> None:
    rng = random.Random(budget)
    model = load_model(bundle_folder, EngineSettings(threads=2, token_budget=budget, dialect=dialect))
    forgetful = load_model(
        bundle_folder,
        EngineSettings(threads=1, token_budget=16, dialect=dialect, feature_cache_bytes=0, prefix_cache_bytes=0),
    )
    try:
        for _ in range(3):
            request = _request(rng, 12)
            output = model.rerank(request)
            assert output.margins.shape == (12,)
            assert output.margins.dtype == np.float32
            assert len(output.request.documents) == 12
            alone = [forgetful.rerank(RerankInput(request.query, [d])).margins[0] for d in request.documents]
            assert np.abs(output.margins - alone).max() < 1e-5
            assert np.abs(model.rerank(request).margins - output.margins).max() < 1e-5
    finally:
        model.close()
        forgetful.close()


def test_says_what_it_is(bundle_folder: Path) -> None:
    reports: list[str] = []
    model = load_model(bundle_folder, EngineSettings(threads=2, token_budget=300), reports.append)
    assert (model.name, model.budget.best, model.info.slots) == ("tiny-reranker", 300, 2)
    assert model.info.max_tokens == 300 + model.encoder.longest_pair
    assert model.profile.max_tokens == 512
    assert any("golden" in report for report in reports)
    with pytest.raises(InvalidRequestError):
        model.rerank(RerankInput([TextPart(" ")], [[TextPart("a")]]))
    model.close()


def test_the_longest_pair_fits(bundle_folder: Path) -> None:
    model = load_model(bundle_folder, EngineSettings(threads=1, token_budget=16))
    long = [TextPart("fire engine " * 2000)]
    output = model.rerank(RerankInput(long, [long, [TextPart("a")]]))
    assert len(output.request.prefix) + len(output.request.documents[0]) == model.encoder.longest_pair
    assert np.isfinite(output.margins).all()
    model.close()


@pytest.mark.parametrize("max_tokens", [90, 1024])
def test_the_budget_is_measured(tmp_path: Path, max_tokens: int) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", TEXT)
    export_checkpoint(checkpoint, tmp_path / "b", ExportOptions(max_tokens=max_tokens))
    model = load_model(tmp_path / "b", EngineSettings(threads=1))
    assert model.budget.best in LADDER
    assert set(model.budget.tokens) <= set(LADDER)
    assert len(model.budget.tokens) >= 3
    assert all(seconds > 0 for seconds in model.budget.seconds)
    assert np.isfinite(model.rerank(RerankInput([TextPart("a")], [[TextPart("b")]])).margins).all()
    model.close()


def test_an_altered_bundle_is_not_loaded(bundle_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    shutil.copytree(bundle_folder, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"model\.safetensors"):
        load_model(folder, EngineSettings(threads=1, token_budget=64))
    with pytest.raises(BundleError, match=r"manifest\.json"):
        load_model(tmp_path, EngineSettings())


def test_a_failed_start_leaves_no_threads(checkpoint: Path, tmp_path: Path) -> None:
    from lifecycle.conftest import write_golden

    golden = write_golden(tmp_path / "golden", [1e9, 1e9])
    export_checkpoint(checkpoint, tmp_path / "out", ExportOptions(max_tokens=512, min_pixels=1, golden=golden))
    before = threading.active_count()
    with pytest.raises(EngineError):
        load_model(tmp_path / "out", EngineSettings(threads=2, token_budget=64))
    assert threading.active_count() == before
