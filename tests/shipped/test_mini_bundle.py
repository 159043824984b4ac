"""What the repository ships as a model: whole, small enough, up to date, and as good as its card says."""

from __future__ import annotations

from pathlib import Path

import pytest

from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.evaluation.run import evaluate
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.self_test import read_golden_pairs, self_test
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import ImagePart

ROOT = Path(__file__).parents[2]
MINI = ROOT / "engines" / "mini"
MAX_BYTES = 32_000_000


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.open(MINI)


@pytest.fixture(scope="module")
def model():
    model = load_model(MINI, EngineSettings(precision=PrecisionChoice.FULL, threads=2, token_budget=192))
    yield model
    model.close()


def test_the_bundle_is_whole_and_small_enough(bundle: Bundle) -> None:
    bundle.verify()
    assert sum(entry.bytes for entry in bundle.manifest.files.values()) <= MAX_BYTES
    assert {"LICENSES.md", "MODEL_CARD.md", "tokenizer.json"} <= set(bundle.manifest.files)
    assert all(entry.licence for entry in bundle.manifest.files.values())


def test_the_graphs_are_what_the_code_writes_now(bundle: Bundle, tmp_path: Path) -> None:
    # The bundle's weight file is a checkpoint that transformers loads, so it can be exported again.
    again = export_checkpoint(MINI, tmp_path, ExportOptions(name=bundle.manifest.name, max_tokens=2048)).bundle
    for name, entry in again.manifest.files.items():
        assert entry.sha256 == bundle.manifest.files[name].sha256, f"{name} is stale: export the mini again"


def test_golden_pairs_cover_text_pictures_and_both(bundle: Bundle, model) -> None:
    pairs = list(read_golden_pairs(bundle))
    kinds = {
        tuple(any(isinstance(part, ImagePart) for part in side) for side in (pair.query, pair.document))
        for pair in pairs
    }
    assert len(pairs) >= 20
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}
    assert min(pair.margin for pair in pairs) < -5
    assert max(pair.margin for pair in pairs) > 4
    assert self_test(model, iter(pairs)) < 1e-4


def test_it_ranks_as_its_card_says(model) -> None:
    report = evaluate(lambda request: model.rerank(request).margins, ROOT / "calibration_data" / "evaluation")
    figures = {row.name: row.model.ndcg.mean for row in report.splits}
    expected = {
        "text-to-image/unseen-style": 0.831,
        "text-to-image/unseen-concept": 0.719,
        "text-to-text/lexical": 1.000,
        "text-to-text/cross-lingual": 0.786,
        "text-to-text/gloss": 0.692,
        "image-to-text/unseen-style": 0.784,
        "image-to-image/unseen-concept": 0.860,
        "mixed/unseen-style": 0.942,
    }
    assert figures == pytest.approx(expected, abs=0.003)
    assert report.total.chance.ndcg < 0.25
