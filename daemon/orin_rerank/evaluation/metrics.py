"""Ranking metrics of one query, their chance level, and intervals over many queries.

Equal margins leave the order open. A metric then is the expected value over all orders of the tied documents, so that
no scorer gains or loses by the order in which the documents happen to be listed (McSherry and Najork, "Computing
information retrieval performance measures efficiently in the presence of tied scores", ECIR 2008). The chance level
follows from the same rule: a scorer that gives every document the same margin is a random ordering.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Estimate",
    "Float64Array",
    "Metrics",
    "chance",
    "estimate",
    "measure",
    "ndcg",
    "pairwise_accuracy",
    "reciprocal_rank",
]

Float64Array = npt.NDArray[np.float64]

NDCG_DEPTH = 10
RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 20250
_RESAMPLES_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Metrics:
    """How well one query's documents were ordered; all from 0 to 1, higher is better.

    Attributes:
        ndcg: NDCG@10 with the gain `2**grade - 1`.
        reciprocal_rank: 1 / rank of the first relevant document; its mean over queries is MRR.
        pairwise_accuracy: Share of the pairs of different grades that are in the right order; a tie counts half.
    """

    ndcg: float
    reciprocal_rank: float
    pairwise_accuracy: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over queries and its bootstrap interval.

    Attributes:
        mean: Mean.
        low: Lower end of the 95 % interval.
        high: Upper end.
    """

    mean: float
    low: float
    high: float


def measure(margins: Sequence[float] | npt.NDArray[np.floating], grades: Sequence[int]) -> Metrics:
    """All metrics of one query.

    Args:
        margins: `[N]` finite scores; higher is more relevant.
        grades: `[N]` relevance grades from 0; at least one above 0 and not all equal.

    Raises:
        InternalError: If the two disagree in length, a margin is not finite, or the grades leave nothing to order.
    """
    return Metrics(ndcg(margins, grades), reciprocal_rank(margins, grades), pairwise_accuracy(margins, grades))


def chance(grades: Sequence[int]) -> Metrics:
    """The exact expected metrics of a random ordering of documents with these grades."""
    return measure([0.0] * len(grades), grades)


def ndcg(margins: Sequence[float] | npt.NDArray[np.floating], grades: Sequence[int], depth: int = NDCG_DEPTH) -> float:
    """Normalised discounted cumulative gain of the first `depth` ranks.

    The gain of a document is `2**grade - 1` and the discount of rank r is `1 / log2(r + 1)` (Burges et al. 2005).
    Documents with equal margins share the mean gain of their group.
    """
    scores, gains = _checked(margins, grades)
    gains = np.exp2(gains) - 1.0
    ranks = np.arange(1, len(gains) + 1)
    discounts = np.where(ranks <= depth, 1.0 / np.log2(ranks + 1.0), 0.0)
    ideal = float(np.sort(gains)[::-1] @ discounts)
    gained = 0.0
    for start, group in _groups(scores):
        gained += float(gains[group].mean() * discounts[start : start + len(group)].sum())
    return gained / ideal


def reciprocal_rank(margins: Sequence[float] | npt.NDArray[np.floating], grades: Sequence[int]) -> float:
    """1 / rank of the first document with a grade above 0, expected over the orders of ties."""
    scores, graded = _checked(margins, grades)
    for start, group in _groups(scores):
        relevant = int((graded[group] > 0).sum())
        if relevant:
            return _expected_reciprocal_rank(start, len(group), relevant)
    raise InternalError("no document is relevant")


def pairwise_accuracy(margins: Sequence[float] | npt.NDArray[np.floating], grades: Sequence[int]) -> float:
    """Share of the pairs of different grades whose margins are in the right order; a tie counts half."""
    scores, graded = _checked(margins, grades)
    better = graded[:, None] > graded[None, :]
    difference = scores[:, None] - scores[None, :]
    return float(((difference > 0) + 0.5 * (difference == 0))[better].mean())


def estimate(values: Sequence[float] | Float64Array, *, seed: int = SEED, resamples: int = RESAMPLES) -> Estimate:
    """The mean of per-query values with a percentile bootstrap interval over the queries.

    For a paired comparison of two scorers, give the differences of their values query by query.

    Args:
        values: One value a query; at least one.
        seed: Makes the interval the same in every run.
        resamples: How many times the queries are drawn with replacement.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise InternalError("an estimate needs at least one value")
    random = np.random.default_rng(seed)
    means = np.empty(resamples)
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):
        part = means[start : start + _RESAMPLES_AT_ONCE]
        part[:] = array[random.integers(len(array), size=(len(part), len(array)))].mean(axis=1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Estimate(float(array.mean()), float(low), float(high))


def _checked(
    margins: Sequence[float] | npt.NDArray[np.floating], grades: Sequence[int]
) -> tuple[Float64Array, Float64Array]:
    """Both as float64 arrays, checked as `measure` promises."""
    scores = np.asarray(margins, dtype=np.float64)
    graded = np.asarray(grades, dtype=np.float64)
    if scores.ndim != 1 or scores.shape != graded.shape:
        raise InternalError(f"{scores.shape} margins for {graded.shape} grades")
    if not np.isfinite(scores).all():
        raise InternalError("a margin is not finite")
    if not len(graded) or graded.max() <= 0 or graded.min() == graded.max():
        raise InternalError("grades must differ, and one must be above 0")
    return scores, graded


def _groups(scores: Float64Array) -> list[tuple[int, npt.NDArray[np.intp]]]:
    """Documents in rank order, tied ones together: each group's first rank, from 0, and its documents."""
    order = np.argsort(-scores, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(scores[order]) != 0]))
    return list(zip(starts.tolist(), np.split(order, starts[1:]), strict=True))


def _expected_reciprocal_rank(start: int, size: int, relevant: int) -> float:
    """Expected 1 / rank of the first relevant document among `size` tied ones that follow `start` others.

    Of all ways to place the relevant documents, `comb(size - j, relevant - 1)` have their first at place j.
    """
    ways = math.comb(size, relevant)
    return sum(
        math.comb(size - place, relevant - 1) / ways / (start + place) for place in range(1, size - relevant + 2)
    )
