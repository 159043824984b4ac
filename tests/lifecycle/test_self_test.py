from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from lifecycle.conftest import write_golden
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import BundleError, SelfTestError
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.self_test import GoldenPair, read_golden_pairs, self_test
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import ImagePart, TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orin_rerank.lifecycle.model import LoadedModel

SETTINGS = EngineSettings(threads=1, token_budget=256)


@pytest.fixture(scope="module")
def model(bundle_folder: Path) -> Iterator[LoadedModel]:
    loaded = load_model(bundle_folder, SETTINGS)
    yield loaded
    loaded.close()


def _exported(checkpoint: Path, tmp_path: Path, margins: list[object]) -> Path:
    golden = write_golden(tmp_path / "golden", margins)
    export_checkpoint(checkpoint, tmp_path / "out", ExportOptions(max_tokens=512, min_pixels=1, golden=golden))
    return tmp_path / "out"


def test_golden_pairs_read_back(bundle_folder: Path, margins: list[float]) -> None:
    text, picture = read_golden_pairs(Bundle.open(bundle_folder))
    assert text == GoldenPair((TextPart("red fire engine"),), (TextPart("a fire truck"),), None, margins[0])
    assert isinstance(picture.document[0], ImagePart)
    assert picture.margin == margins[1]


def test_the_right_margins_pass(model: LoadedModel, bundle_folder: Path, margins: list[float]) -> None:
    assert abs(margins[0] - margins[1]) > 0.1
    assert self_test(model, read_golden_pairs(Bundle.open(bundle_folder))) < 1e-4


def test_no_pairs_are_no_difference(model: LoadedModel) -> None:
    assert self_test(model, iter(())) == 0.0


@pytest.mark.parametrize("off", [2e-3, -2e-3, math.inf, math.nan])
@pytest.mark.parametrize("which", [0, 1])
def test_a_wrong_margin_keeps_a_model_from_serving(
    checkpoint: Path, tmp_path: Path, margins: list[float], off: float, which: int
) -> None:
    wrong: list[object] = list(margins)
    wrong[which] = margins[which] + off
    with pytest.raises(SelfTestError) as caught:
        load_model(_exported(checkpoint, tmp_path, wrong), SETTINGS)
    assert caught.value.item == f"golden/pairs.jsonl:{which + 1}"


@pytest.mark.parametrize(
    "line",
    ["{", "3", "{}", json.dumps({"query": [{"text": "a"}], "document": [{"text": "b"}], "margin": "high"}),
     json.dumps({"query": [{"text": "a"}], "document": [{"image": "../secret.png"}], "margin": 1.0}),
     json.dumps({"query": 3, "document": [{"text": "b"}], "margin": 1.0})],
)  # fmt: skip
def test_malformed_pairs_are_named(checkpoint: Path, tmp_path: Path, line: str) -> None:
    golden = write_golden(tmp_path / "golden", [1.0, 1.0])
    (golden / "pairs.jsonl").write_text(line + "\n")
    export_checkpoint(checkpoint, tmp_path / "out", ExportOptions(golden=golden))
    with pytest.raises(BundleError) as caught:
        list(read_golden_pairs(Bundle.open(tmp_path / "out")))
    assert caught.value.item == "golden/pairs.jsonl:1"
