"""The metrics against values worked by hand and against plain enumeration of every ordering."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.errors import InternalError
from orin_rerank.evaluation.metrics import chance, estimate, measure, ndcg, pairwise_accuracy, reciprocal_rank

GRADED = st.lists(st.integers(0, 3), min_size=2, max_size=6).filter(lambda grades: len(set(grades)) > 1)


def plain_ndcg(order: list[int], depth: int) -> float:
    """NDCG of grades that are listed best first, from its definition and without ties."""

    def dcg(grades: list[int]) -> float:
        return sum((2**grade - 1) / math.log2(rank + 1) for rank, grade in enumerate(grades[:depth], start=1))

    return dcg(order) / dcg(sorted(order, reverse=True))


def plain_reciprocal_rank(order: list[int]) -> float:
    return 1 / next(rank for rank, grade in enumerate(order, start=1) if grade)


def orderings(margins: list[int], grades: list[int]) -> list[list[int]]:
    """The grades in every order that the margins allow."""
    return [
        [grades[place] for place in order]
        for order in itertools.permutations(range(len(grades)))
        if all(margins[a] >= margins[b] for a, b in itertools.pairwise(order))
    ]


def test_ndcg_of_a_hand_worked_example() -> None:
    # Ranked: grade 0, 2, 1. Gains 0, 3, 1: DCG = 3 / log2(3) + 1 / log2(4); ideal = 3 / 1 + 1 / log2(3).
    expected = (3 / math.log2(3) + 1 / 2) / (3 + 1 / math.log2(3))
    assert ndcg([3.0, 2.0, 1.0], [0, 2, 1]) == pytest.approx(expected, abs=1e-12)
    assert ndcg([1.0, 3.0, 2.0], [0, 2, 1]) == 1.0


def test_ndcg_sees_its_depth_only() -> None:
    margins = [float(-place) for place in range(12)]
    assert ndcg(margins, [0] * 11 + [1]) == 0.0
    assert ndcg(margins, [0] * 9 + [1, 0, 0]) == pytest.approx(1 / math.log2(11))
    assert ndcg([2.0, 1.0], [0, 1], depth=1) == 0.0


def test_reciprocal_rank_and_pairs_of_a_hand_worked_example() -> None:
    assert reciprocal_rank([0.1, 0.9, 0.5, 0.3], [2, 0, 0, 1]) == pytest.approx(1 / 3)
    # Every better document, 0 and 3, lies below every worse one, and 0 below 3: no pair is right.
    assert pairwise_accuracy([0.1, 0.9, 0.5, 0.3], [2, 0, 0, 1]) == 0.0
    # (0,1) right, (0,2) tied, (1,2) equal grades: no pair.
    assert pairwise_accuracy([0.5, 0.1, 0.5], [1, 0, 0]) == 0.75


@given(GRADED, st.data())
def test_ties_give_the_mean_over_every_ordering(grades: list[int], data: st.DataObject) -> None:
    margins = data.draw(st.lists(st.integers(0, 2), min_size=len(grades), max_size=len(grades)))
    depth = data.draw(st.integers(1, 6))
    orders = orderings(margins, grades)
    assert ndcg([float(m) for m in margins], grades, depth) == pytest.approx(
        np.mean([plain_ndcg(order, depth) for order in orders])
    )
    assert reciprocal_rank([float(m) for m in margins], grades) == pytest.approx(
        np.mean([plain_reciprocal_rank(order) for order in orders])
    )


@given(GRADED)
def test_chance_is_the_mean_over_all_permutations(grades: list[int]) -> None:
    orders = orderings([0] * len(grades), grades)
    expected = chance(grades)
    assert expected.ndcg == pytest.approx(np.mean([plain_ndcg(order, 10) for order in orders]))
    assert expected.reciprocal_rank == pytest.approx(np.mean([plain_reciprocal_rank(order) for order in orders]))
    assert expected.pairwise_accuracy == 0.5


def test_chance_of_one_relevant_document_among_twenty() -> None:
    # Each rank is equally likely: the mean discount of the first ten over twenty places.
    grades = [1] + [0] * 19
    assert chance(grades).ndcg == pytest.approx(sum(1 / math.log2(rank + 1) for rank in range(1, 11)) / 20)
    assert chance(grades).reciprocal_rank == pytest.approx(sum(1 / rank for rank in range(1, 21)) / 20)


@given(GRADED, st.data())
def test_the_listed_order_does_not_matter(grades: list[int], data: st.DataObject) -> None:
    margins = data.draw(st.lists(st.integers(-2, 2), min_size=len(grades), max_size=len(grades)))
    order = data.draw(st.permutations(range(len(grades))))
    shuffled = measure([float(margins[place]) for place in order], [grades[place] for place in order])
    straight = measure([float(margin) for margin in margins], grades)
    assert shuffled.ndcg == pytest.approx(straight.ndcg)
    assert shuffled.reciprocal_rank == pytest.approx(straight.reciprocal_rank)
    assert shuffled.pairwise_accuracy == pytest.approx(straight.pairwise_accuracy)


@pytest.mark.parametrize(
    ("margins", "grades"),
    [([1.0], [1, 0]), ([math.nan, 1.0], [1, 0]), ([math.inf, 1.0], [1, 0]), ([1.0, 2.0], [0, 0]), ([1.0, 2.0], [1, 1])],
)
def test_what_cannot_be_measured_is_refused(margins: list[float], grades: list[int]) -> None:
    with pytest.raises(InternalError):
        measure(margins, grades)


def test_an_estimate_is_the_same_every_time_and_near_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(0.7, 0.2, size=400)
    first, second = estimate(values), estimate(list(values))
    assert first == second
    assert first.mean == pytest.approx(values.mean())
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert first.low == pytest.approx(values.mean() - half, abs=0.003)
    assert first.high == pytest.approx(values.mean() + half, abs=0.003)


def test_an_estimate_of_constant_values_has_no_width() -> None:
    assert estimate([0.5, 0.5, 0.5]) == estimate([0.5])
    with pytest.raises(InternalError):
        estimate([])
