"""The evaluation as a whole, over sets on disk, with scorers whose figures are known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from evaluation.evaluation_sets import line, picture, write_set
from orin_rerank.errors import DatasetError, InternalError, NonFiniteScoreError
from orin_rerank.evaluation.dataset import text_of
from orin_rerank.evaluation.metrics import chance
from orin_rerank.evaluation.run import evaluate
from orin_rerank.prompt.content import RerankInput, TextPart

if TYPE_CHECKING:
    from pathlib import Path


def two_splits(root: Path) -> Path:
    picture(root / "red.png")
    picture(root / "blue.png", (20, 20, 200))
    pictures = [
        {"content": [{"image": "red.png"}], "relevance": 1},
        {"content": [{"image": "blue.png"}], "relevance": 0},
    ]
    return write_set(
        root,
        [
            line(),
            line(id="q2", query=[{"text": "green tree"}]),
            line(id="q3", split="text-to-image/style", documents=pictures, instruction="Find the picture."),
            line(id="q4", split="image-to-text", query=[{"image": "red.png"}]),
        ],
    )


def listed_order(request: RerankInput) -> list[float]:
    """Ranks the documents as they are listed: perfect for q1, q3 and q4 and wrong for none of their grades."""
    return [-float(place) for place in range(len(request.documents))]


def test_splits_baselines_and_totals(tmp_path: Path) -> None:
    report = evaluate(listed_order, two_splits(tmp_path))
    assert [split.name for split in report.splits] == ["text-to-text/lexical", "text-to-image/style", "image-to-text"]
    lexical, pictures, captions = report.splits
    assert (lexical.queries, lexical.documents) == (2, 6)
    assert lexical.model.ndcg.mean == 1.0
    assert (lexical.model.ndcg.low, lexical.model.ndcg.high) == (1.0, 1.0)
    assert lexical.chance.ndcg == pytest.approx(chance([2, 1, 0]).ndcg)
    assert lexical.bm25 is not None
    # BM25 orders q1 perfectly; for q2 it puts the irrelevant "a green tree" first.
    assert 0.5 < lexical.bm25.ndcg.mean < 1.0
    assert lexical.bm25_queries == 2
    assert pictures.bm25 is None
    assert captions.bm25 is None
    assert captions.bm25_queries == 0
    assert (report.total.queries, report.total.documents, report.total.bm25_queries) == (4, 11, 2)
    assert report.total.model.mrr.mean == 1.0
    assert report.documents_per_second == pytest.approx(11 / report.seconds)


def test_the_scorer_gets_the_whole_request(tmp_path: Path) -> None:
    requests: list[RerankInput] = []

    def scorer(request: RerankInput) -> list[float]:
        requests.append(request)
        return listed_order(request)

    progress: list[tuple[int, int]] = []
    evaluate(
        scorer,
        two_splits(tmp_path),
        splits=["text-to-image"],
        on_progress=lambda done, total: progress.append((done, total)),
    )
    (request,) = requests
    assert request.query == (TextPart("red fire engine"),)
    assert request.instruction == "Find the picture."
    assert len(request.documents) == 2
    assert progress == [(0, 1), (1, 1)]


def test_a_wrong_scorer_is_measured_as_wrong(tmp_path: Path) -> None:
    def backwards(request: RerankInput) -> list[float]:
        return [float(place) for place in range(len(request.documents))]

    report = evaluate(backwards, two_splits(tmp_path))
    assert report.total.model.pairwise_accuracy.mean == 0.0
    assert report.splits[0].model.mrr.mean == 0.5


def test_a_constant_scorer_is_at_chance(tmp_path: Path) -> None:
    report = evaluate(lambda request: [1.0] * len(request.documents), two_splits(tmp_path))
    for split in (*report.splits, report.total):
        assert split.model.ndcg.mean == pytest.approx(split.chance.ndcg)
        assert split.model.mrr.mean == pytest.approx(split.chance.reciprocal_rank)
        assert split.model.pairwise_accuracy.mean == pytest.approx(0.5)


def test_a_malformed_last_line_is_found_before_anything_is_scored(tmp_path: Path) -> None:
    write_set(tmp_path, [line(), line(id="q2", query=[])])
    scored: list[str] = []

    def scorer(request: RerankInput) -> list[float]:
        scored.append(text_of(request.query))
        return listed_order(request)

    with pytest.raises(DatasetError, match=r"dataset.jsonl:2: query"):
        evaluate(scorer, tmp_path)
    assert scored == []


def test_an_unknown_split_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no split 'text-to'; it has text-to-text/lexical, text-to-image/style"):
        evaluate(listed_order, two_splits(tmp_path), splits=["text-to"])


def test_bad_scores_are_refused(tmp_path: Path) -> None:
    root = write_set(tmp_path, [line()])
    with pytest.raises(NonFiniteScoreError, match="q1"):
        evaluate(lambda _: [1.0, float("nan"), 0.0], root)
    with pytest.raises(InternalError, match="for 3 documents"):
        evaluate(lambda _: [1.0], root)


def test_the_report_is_json(tmp_path: Path) -> None:
    value = json.loads(json.dumps(evaluate(listed_order, two_splits(tmp_path)).as_dict()))
    assert value["splits"][0]["model"]["ndcg"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert value["splits"][1]["bm25"] is None
    assert value["total"]["queries"] == 4
    assert [query["id"] for query in value["queries"]] == ["q1", "q2", "q3", "q4"]
