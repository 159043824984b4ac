"""The judged set: read whole first, scored as serving would, its faults named."""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from lifecycle.calibrated import Made
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.errors import DatasetError
from orin_rerank.evaluation.dataset import DATASET_FILE, read_dataset
from orin_rerank.evaluation.scoring import score_query
from orin_rerank.lifecycle.judging import JudgedSet, without_scores
from orin_rerank.lifecycle.ledger import Ledger
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.quantization.calibration_set import dataset_digest

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.evaluation.scoring import ScoredQuery


def _score(made: Made, folder: Path, scratch: Path) -> tuple[tuple[ScoredQuery, ...], Ledger]:
    scratch.mkdir()
    bench = Workbench(made.at.bundle, scratch, EngineSettings(threads=1))
    ledger = Ledger(lambda *_: None)
    runner = bench.full()
    try:
        with ledger.stage("scoring") as stage:
            return JudgedSet.open(folder, least=1).score(runner, bench, ledger, stage), ledger
    finally:
        runner.close()


def test_scores_are_those_that_serving_gives(made: Made, tmp_path: Path) -> None:
    scored, ledger = _score(made, made.at.judged, tmp_path / "scratch")
    settings = EngineSettings(PrecisionChoice.FULL, threads=1, token_budget=256)
    model = load_model(made.at.bundle.folder, settings, store=made.at.store)
    served = [
        score_query(lambda request: model.rerank(request).margins, query)[0] for query in read_dataset(made.at.judged)
    ]
    model.close()
    assert [(q.id, q.split, q.grades) for q in scored] == [(q.id, q.split, q.grades) for q in served]
    np.testing.assert_allclose([q.margins for q in scored], [q.margins for q in served], atol=1e-4)
    (stage,) = ledger.stages
    assert (stage.pairs, stage.images > 0) == (3 * 56, True)


def test_it_knows_its_size_and_contents(made: Made) -> None:
    judged = JudgedSet.open(made.at.judged, least=56)
    assert (judged.queries, judged.digest) == (56, dataset_digest(made.at.judged))


def test_too_few_queries_decide_nothing(made: Made) -> None:
    with pytest.raises(DatasetError, match="56 judged queries decide nothing; 57 are needed"):
        JudgedSet.open(made.at.judged, least=57)


def test_a_malformed_line_is_found_before_anything_is_scored(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    shutil.copytree(made.at.judged, folder)
    lines = (folder / DATASET_FILE).read_text().splitlines()
    (folder / DATASET_FILE).write_text("\n".join([*lines, lines[0]]))
    with pytest.raises(DatasetError, match="is also the id of line 1"):
        JudgedSet.open(folder, least=1)


def test_a_query_that_cannot_be_used_is_named_by_its_id(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    shutil.copytree(made.at.judged, folder)
    lines = [json.loads(line) for line in (folder / DATASET_FILE).read_text().splitlines()]
    Image.new("RGB", (1, 300)).save(folder / "thin.png")
    lines[7]["documents"][2]["content"] = [{"image": "thin.png"}]
    (folder / DATASET_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DatasetError, match="200 times") as caught:
        _score(made, folder, tmp_path / "scratch")
    assert caught.value.item == f"query {lines[7]['id']}: documents[2].content[0]"


def test_without_scores_every_margin_is_missing(made: Made, tmp_path: Path) -> None:
    scored, _ = _score(made, made.at.judged, tmp_path / "scratch")
    missing = without_scores(scored)
    assert all(math.isnan(margin) for query in missing for margin in query.margins)
    assert [(q.id, q.grades, len(q.margins)) for q in missing] == [(q.id, q.grades, len(q.margins)) for q in scored]
