"""Runs a scorer over an evaluation set and keeps the bare margins, for reports and for paired comparisons.

Scoring is what takes time and comparing is not: one scoring of the reference serves any number of comparisons.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import DatasetError, InternalError, NonFiniteScoreError
from orin_rerank.evaluation.dataset import JudgedQuery, read_dataset
from orin_rerank.prompt.content import RerankInput

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Progress", "ScoredQuery", "ScoredSet", "Scorer", "Survey", "score_query", "score_set", "selected_queries"]


class Scorer(Protocol):
    """Anything that gives each document of a request a score."""

    def __call__(self, request: RerankInput, /) -> Sequence[float] | npt.NDArray[np.floating]:
        """Scores of the documents in their order, higher for more relevant; all finite."""


Progress = Callable[[int, int], None]
"""Is told how many queries are done, and of how many; first with none done."""


@dataclass(frozen=True, slots=True)
class ScoredQuery:
    """A judged query and what a scorer gave its documents.

    Attributes:
        id: The query's id in the set.
        split: Its split.
        grades: The documents' relevance.
        margins: The documents' scores; NaN where the scorer failed to give one.
    """

    id: str
    split: str
    grades: tuple[int, ...]
    margins: tuple[float, ...]

    @classmethod
    def of(cls, query: JudgedQuery, margins: Sequence[float] | npt.NDArray[np.floating]) -> ScoredQuery:
        """A query with its scores, which need not be finite.

        Raises:
            InternalError: If there isn't one score a document.
        """
        values = np.asarray(margins, dtype=np.float64)
        if values.shape != (len(query.documents),):
            raise InternalError(f"the scorer gave {values.shape} scores for {len(query.documents)} documents")
        return cls(query.id, query.split, query.grades, tuple(values.tolist()))

    @property
    def documents(self) -> int:
        """How many documents it has."""
        return len(self.grades)

    @property
    def finite(self) -> bool:
        """Whether every score is a finite number."""
        return bool(np.isfinite(self.margins).all())

    @property
    def json_margins(self) -> list[float | None]:
        """The margins as JSON takes them: None for what is not finite."""
        return [margin if math.isfinite(margin) else None for margin in self.margins]


@dataclass(frozen=True, slots=True)
class ScoredSet:
    """A whole set, scored.

    Attributes:
        queries: In the set's order.
        seconds: Time spent in the scorer alone.
    """

    queries: tuple[ScoredQuery, ...]
    seconds: float

    @property
    def documents_per_second(self) -> float:
        """Documents scored in a second of the scorer's time."""
        return sum(query.documents for query in self.queries) / self.seconds if self.seconds else 0.0


class Survey:
    """A first reading of a whole set, which finds what is wrong with it before anything is scored.

    Args:
        root: Folder of the set; see `dataset`.
        splits: Only these splits are selected; a name takes those below it too, `text-to-image` for
            `text-to-image/unseen-style`. Empty selects all.

    Attributes:
        selected: How many queries are selected, once all have been read.
    """

    def __init__(self, root: Path, splits: Collection[str]) -> None:
        self._root = root
        self._splits = splits
        self.selected = 0

    def read(self) -> Iterator[JudgedQuery]:
        """Yields every query of the set, selected or not.

        Raises:
            DatasetError: If the set is malformed or, after the last query, if a wanted split did not occur.
        """
        names: dict[str, None] = {}
        for query in read_dataset(self._root):
            names[query.split] = None
            self.selected += _is_selected(query, self._splits)
            yield query
        for wanted in self._splits:
            if not any(_is_within(name, wanted) for name in names):
                raise DatasetError(f"has no split {wanted!r}; it has {', '.join(names)}", item=str(self._root))


def selected_queries(root: Path, splits: Collection[str] = ()) -> Iterator[JudgedQuery]:
    """Yields the queries of a set that `Survey` would call selected."""
    return (query for query in read_dataset(root) if _is_selected(query, splits))


def score_query(scorer: Scorer, query: JudgedQuery) -> tuple[ScoredQuery, float]:
    """Scores one query.

    A scorer that reports a score which is not finite gets NaN for all documents of the query: whoever looks at the
    scores decides what that means, and a comparison wants to count them.

    Returns:
        The query with its scores, and the seconds that the scorer took.

    Raises:
        InternalError: If the scorer doesn't give one score a document.
    """
    request = RerankInput(query.query, [document.content for document in query.documents], query.instruction)
    started = time.perf_counter()
    try:
        margins = np.asarray(scorer(request), dtype=np.float64)
    except NonFiniteScoreError:
        margins = np.full(len(query.documents), np.nan)
    seconds = time.perf_counter() - started
    return ScoredQuery.of(query, margins), seconds


def score_set(
    scorer: Scorer, root: Path, *, splits: Collection[str] = (), on_progress: Progress = lambda _done, _total: None
) -> ScoredSet:
    """Scores the set in `root`, which is read twice: a malformed line is found before the first query is scored.

    Args:
        scorer: What is evaluated; scores that are not finite are kept.
        root: Folder of the set; see `dataset`.
        splits: Only these splits, as `Survey` takes them.
        on_progress: Told after every query.

    Raises:
        DatasetError: If the set is malformed or has no such split.
        InternalError: If the scorer doesn't give one score a document.
    """
    survey = Survey(root, splits)
    for _ in survey.read():
        pass
    on_progress(0, survey.selected)
    scored: list[ScoredQuery] = []
    total = 0.0
    for query in selected_queries(root, splits):
        one, seconds = score_query(scorer, query)
        scored.append(one)
        total += seconds
        on_progress(len(scored), survey.selected)
    return ScoredSet(tuple(scored), total)


def _is_selected(query: JudgedQuery, splits: Collection[str]) -> bool:
    return not splits or any(_is_within(query.split, wanted) for wanted in splits)


def _is_within(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted.rstrip('/')}/")
