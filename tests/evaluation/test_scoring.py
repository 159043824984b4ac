"""Scoring a set: what is kept of a scorer's answers, the ones that aren't numbers included."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from evaluation.evaluation_sets import line, write_set
from orin_rerank.errors import DatasetError, InternalError, NonFiniteScoreError
from orin_rerank.evaluation.run import evaluate
from orin_rerank.evaluation.scoring import score_set

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orin_rerank.prompt.content import RerankInput


def by_length(request: RerankInput) -> list[float]:
    return [float(len(document[0].text)) for document in request.documents]


def test_margins_and_grades_are_kept_in_order(tmp_path: Path) -> None:
    write_set(tmp_path, [line(), line(id="q2", split="other")])
    progress: list[tuple[int, int]] = []
    scored = score_set(by_length, tmp_path, on_progress=lambda done, total: progress.append((done, total)))
    assert [(query.id, query.split) for query in scored.queries] == [("q1", "text-to-text/lexical"), ("q2", "other")]
    assert scored.queries[0].grades == (2, 1, 0)
    assert scored.queries[0].margins == (18.0, 9.0, 12.0)
    assert progress == [(0, 2), (1, 2), (2, 2)]
    assert scored.documents_per_second == pytest.approx(6 / scored.seconds)


def test_an_evaluation_keeps_what_scoring_does(tmp_path: Path) -> None:
    write_set(tmp_path, [line(), line(id="q2")])
    outcomes = evaluate(by_length, tmp_path).outcomes
    queries = score_set(by_length, tmp_path).queries
    assert [(one.id, one.grades, one.margins) for one in outcomes] == [
        (one.id, one.grades, one.margins) for one in queries
    ]


def test_a_score_that_is_not_finite_is_kept_to_be_counted(tmp_path: Path) -> None:
    write_set(tmp_path, [line(), line(id="q2"), line(id="q3")])
    calls: list[int] = []

    def scorer(request: RerankInput) -> Sequence[float]:
        calls.append(1)
        if len(calls) == 1:
            return [1.0, math.inf, 0.0]
        if len(calls) == 2:
            raise NonFiniteScoreError("the engine gave a margin that is not a finite number")
        return by_length(request)

    first, second, third = score_set(scorer, tmp_path).queries
    assert first.json_margins == [1.0, None, 0.0]
    assert second.json_margins == [None, None, None]
    assert (first.finite, second.finite, third.finite) == (False, False, True)


def test_only_the_wanted_splits_are_scored(tmp_path: Path) -> None:
    write_set(tmp_path, [line(), line(id="q2", split="other")])
    assert [query.id for query in score_set(by_length, tmp_path, splits=["other"]).queries] == ["q2"]
    with pytest.raises(DatasetError, match="no split 'nothing'"):
        score_set(by_length, tmp_path, splits=["nothing"])


def test_a_malformed_last_line_is_found_before_anything_is_scored(tmp_path: Path) -> None:
    write_set(tmp_path, [line(), line(id="q2", query=[])])
    scored: list[RerankInput] = []
    with pytest.raises(DatasetError, match=r"dataset.jsonl:2: query"):
        score_set(lambda request: scored.append(request) or by_length(request), tmp_path)
    assert scored == []


def test_a_wrong_number_of_scores_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, [line()])
    with pytest.raises(InternalError, match="for 3 documents"):
        score_set(lambda _: [1.0], tmp_path)
