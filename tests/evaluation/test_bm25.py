"""BM25 against hand-worked values and against bm25s."""

from __future__ import annotations

import math

import bm25s
import pytest

from orin_rerank.evaluation.bm25 import Bm25, words

COLLECTION = [
    "a red fire engine",
    "a fire in the forest",
    "the engine of a car, an old engine",
    "红色的消防车",
    "消防员在森林里",
    "der rote Feuerwehrwagen",
]


def test_words_are_folded_and_unspaced_scripts_paired() -> None:
    assert words("The RED-fire_engine, Straße 42") == ["the", "red", "fire", "engine", "strasse", "42"]
    assert words("红色消防车") == ["红色", "色消", "消防", "防车"]
    assert words("車") == ["車"]
    assert words("ﬁre カメラ x光") == ["fire", "カメ", "メラ", "x", "光"]
    assert words("!? --") == []


def test_a_hand_worked_score() -> None:
    bm25 = Bm25(["red", "red car", "blue"])
    # "car" is in 1 of 3 documents of mean length 4/3; its document has length 2.
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = idf / (1 + 1.5 * (1 - 0.75 + 0.75 * 2 / (4 / 3)))
    assert bm25.scores("car", ["red car", "blue"]) == [pytest.approx(expected), 0.0]


@pytest.mark.parametrize("query", ["red fire engine", "engine engine", "消防车", "森林 fire", "rote", "nothing here"])
def test_scores_agree_with_bm25s(query: str) -> None:
    ours = Bm25(COLLECTION).scores(query, COLLECTION)
    library = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    library.index([words(text) for text in COLLECTION], show_progress=False)
    known = [term for term in words(query) if term in library.vocab_dict]
    theirs = library.get_scores(known) if known else [0.0] * len(COLLECTION)
    assert ours == pytest.approx(list(theirs), abs=1e-6)


def test_an_empty_collection_scores_nothing() -> None:
    assert Bm25([]).scores("a", ["a", ""]) == [0.0, 0.0]
