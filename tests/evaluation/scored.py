"""Scored queries for tests: a few judged queries with margins that are given or drawn."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.evaluation.scoring import ScoredQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def scored(name: str, margins: Sequence[float], grades: Sequence[int] = (2, 1, 0), split: str = "a") -> ScoredQuery:
    """One query."""
    return ScoredQuery(name, split, tuple(grades), tuple(margins))


def reference(queries: int = 60, documents: int = 10, splits: Sequence[str] = ("a", "b/c"), seed: int = 0):
    """Queries whose margins go with their grades, but not all the way; in float32, as an engine gives them."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(queries):
        grades = random.permutation([2, 1] + [0] * (documents - 2))
        margins = (2.0 * grades + random.normal(0.0, 1.5, documents)).astype(np.float32)
        made.append(scored(f"q{number}", margins.tolist(), grades.tolist(), splits[number % len(splits)]))
    return made


def moved(queries: Sequence[ScoredQuery], change: Callable[[np.ndarray], np.ndarray]) -> list[ScoredQuery]:
    """The same queries with each one's margins changed."""
    return [
        dataclasses.replace(query, margins=tuple(np.asarray(change(np.array(query.margins))).tolist()))
        for query in queries
    ]


def with_noise(queries: Sequence[ScoredQuery], deviation: float, seed: int = 1) -> list[ScoredQuery]:
    """The same queries with normal noise on all margins."""
    random = np.random.default_rng(seed)
    return moved(queries, lambda margins: margins + random.normal(0.0, deviation, len(margins)))
