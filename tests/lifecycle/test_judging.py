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
from lifecycle.calibration_sets import write_part
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.errors import CalibrationError, DatasetError
from orin_rerank.evaluation.dataset import DATASET_FILE, read_dataset
from orin_rerank.evaluation.paired import compare
from orin_rerank.evaluation.scoring import score_query
from orin_rerank.lifecycle.judging import REFERENCE_FILE, JudgedSet, without_scores, write_reference
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.quantization.calibration_set import dataset_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.lifecycle.judging import JudgedScores


def _score(
    made: Made, folder: Path, scratch: Path, tell: Callable[[int, int], None] = lambda _done, _total: None
) -> JudgedScores:
    scratch.mkdir()
    bench = Workbench(made.at.bundle, scratch, EngineSettings(threads=1))
    runner = bench.full()
    try:
        return JudgedSet.open(folder, least=1).score(runner, bench.encoder, bench.budget, tell)
    finally:
        runner.close()


def test_scores_are_those_that_serving_gives(made: Made, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    scores = _score(made, made.at.judged, tmp_path / "scratch", lambda done, total: told.append((done, total)))
    scored = scores.queries
    settings = EngineSettings(PrecisionChoice.FULL, threads=1, token_budget=256)
    model = load_model(made.at.bundle.folder, settings, store=made.at.store)
    served = [
        score_query(lambda request: model.rerank(request).margins, query)[0] for query in read_dataset(made.at.judged)
    ]
    model.close()
    assert [(q.id, q.split, q.grades) for q in scored] == [(q.id, q.split, q.grades) for q in served]
    np.testing.assert_allclose([q.margins for q in scored], [q.margins for q in served], atol=1e-4)
    assert (scores.pairs, scores.images > 0, scores.tokens > 3 * 56) == (3 * 56, True, True)
    assert told == [(done, 56) for done in range(1, 57)]


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
    scored = _score(made, made.at.judged, tmp_path / "scratch").queries
    missing = without_scores(scored)
    assert all(math.isnan(margin) for query in missing for margin in query.margins)
    assert [(q.id, q.grades, len(q.margins)) for q in missing] == [(q.id, q.grades, len(q.margins)) for q in scored]


def test_what_full_precision_gave_is_kept_with_the_engine(made: Made, tmp_path: Path) -> None:
    """To the bit: what is compiled from the engine is judged by it on another machine."""
    judged = JudgedSet.open(made.at.judged, least=56)
    kept = judged.reference(made.result.folder / REFERENCE_FILE, made.at.bundle.digest)
    assert kept == _score(made, made.at.judged, tmp_path / "scratch").queries
    assert REFERENCE_FILE in made.result.bundle.manifest.files
    assert compare(kept, kept).total.reference == made.result.record.report.total.reference


def test_margins_of_another_set_or_bundle_are_none_to_go_by(made: Made, tmp_path: Path) -> None:
    path, digest = made.result.folder / REFERENCE_FILE, made.at.bundle.digest
    judged = JudgedSet.open(made.at.judged, least=56)
    with pytest.raises(CalibrationError, match=r"holds margins of the bundle [0-9a-f]{12}, and this is 111111111111"):
        judged.reference(path, "1" * 64)
    part = JudgedSet.open(write_part(tmp_path / "part", made.at.judged, 2), least=1)
    with pytest.raises(CalibrationError, match=f"margins of the judged set {judged.digest[:12]}, and this is"):
        part.reference(path, digest)
    with pytest.raises(CalibrationError, match="No such file"):
        judged.reference(tmp_path / "none", digest)
    write_reference(tmp_path / "cut", judged, digest, judged.reference(path, digest))
    assert (tmp_path / "cut").read_bytes() == path.read_bytes()
    (tmp_path / "cut").write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CalibrationError, match=r"SHA-256|cut short"):
        judged.reference(tmp_path / "cut", digest)
