"""Runs a scorer over an evaluation set and reports how well it ranks, split by split.

The set is read twice: once to check it as a whole, count it and collect BM25's statistics, and once to score it. A
malformed line is thus found before the first query is scored, and only one query's pictures are held at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import DatasetError, InternalError, NonFiniteScoreError
from orin_rerank.evaluation.bm25 import Bm25
from orin_rerank.evaluation.dataset import JudgedQuery, read_dataset, text_of
from orin_rerank.evaluation.metrics import Estimate, Metrics, chance, estimate, measure
from orin_rerank.prompt.content import RerankInput

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Progress", "QueryOutcome", "Report", "Scorer", "SplitReport", "Summary", "evaluate"]

TOTAL = "all"


class Scorer(Protocol):
    """Anything that gives each document of a request a score."""

    def __call__(self, request: RerankInput, /) -> Sequence[float] | npt.NDArray[np.floating]:
        """Scores of the documents in their order, higher for more relevant; all finite."""


Progress = Callable[[int, int], None]
"""Is told how many queries are done, and of how many; first with none done."""


@dataclass(frozen=True, slots=True)
class QueryOutcome:
    """What one query came to.

    Attributes:
        id: The query's id in the set.
        split: Its split.
        documents: How many it has.
        model: The scorer's metrics.
        chance: Expected metrics of a random ordering.
        bm25: BM25's metrics; None where the query, or all its documents, have no text.
    """

    id: str
    split: str
    documents: int
    model: Metrics
    chance: Metrics
    bm25: Metrics | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Metrics over several queries.

    Attributes:
        ndcg: NDCG@10.
        mrr: Mean reciprocal rank.
        pairwise_accuracy: Pairwise accuracy.
    """

    ndcg: Estimate
    mrr: Estimate
    pairwise_accuracy: Estimate

    @classmethod
    def of(cls, metrics: Sequence[Metrics]) -> Summary:
        """The summary of some queries' metrics; at least one."""
        return cls(
            estimate([one.ndcg for one in metrics]),
            estimate([one.reciprocal_rank for one in metrics]),
            estimate([one.pairwise_accuracy for one in metrics]),
        )


@dataclass(frozen=True, slots=True)
class SplitReport:
    """One split, or the whole set.

    Attributes:
        name: The split's name, or `all`.
        queries: How many queries.
        documents: How many documents over all queries.
        model: The scorer's metrics.
        chance: Those of a random ordering, exact.
        bm25: Those of BM25 on the queries that it can score; None where there are none.
        bm25_queries: How many those are.
    """

    name: str
    queries: int
    documents: int
    model: Summary
    chance: Metrics
    bm25: Summary | None
    bm25_queries: int

    @classmethod
    def of(cls, name: str, outcomes: Sequence[QueryOutcome]) -> SplitReport:
        """The report of some queries; at least one."""
        lexical = [one.bm25 for one in outcomes if one.bm25 is not None]
        return cls(
            name=name,
            queries=len(outcomes),
            documents=sum(one.documents for one in outcomes),
            model=Summary.of([one.model for one in outcomes]),
            chance=_mean([one.chance for one in outcomes]),
            bm25=Summary.of(lexical) if lexical else None,
            bm25_queries=len(lexical),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The whole evaluation.

    Attributes:
        outcomes: Every query, in the set's order; for paired comparisons.
        splits: In the order in which they appear in the set.
        total: All queries together, each weighing the same.
        seconds: Time spent in the scorer alone.
    """

    outcomes: tuple[QueryOutcome, ...]
    splits: tuple[SplitReport, ...]
    total: SplitReport
    seconds: float

    @property
    def documents_per_second(self) -> float:
        """Documents scored in a second of the scorer's time."""
        return self.total.documents / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """The report as JSON takes it."""
        return {
            "splits": [asdict(split) for split in self.splits],
            "total": asdict(self.total),
            "seconds": self.seconds,
            "documents_per_second": self.documents_per_second,
            "queries": [asdict(outcome) for outcome in self.outcomes],
        }


def evaluate(
    scorer: Scorer, root: Path, *, splits: Collection[str] = (), on_progress: Progress = lambda _done, _total: None
) -> Report:
    """Scores the set in `root` and reports on it.

    Args:
        scorer: What is evaluated.
        root: Folder of the set; see `dataset`.
        splits: Only these splits; a name takes those below it too, `text-to-image` for `text-to-image/unseen-style`.
            Empty takes all.
        on_progress: Told after every query.

    Raises:
        DatasetError: If the set is malformed or has no such split.
        NonFiniteScoreError: If the scorer gives NaN or infinity.
    """
    bm25, total = _survey(root, splits)
    outcomes: list[QueryOutcome] = []
    seconds = 0.0
    on_progress(0, total)
    for query in _selected(root, splits):
        request = RerankInput(query.query, [document.content for document in query.documents], query.instruction)
        started = time.perf_counter()
        margins = np.asarray(scorer(request), dtype=np.float64)
        seconds += time.perf_counter() - started
        outcomes.append(_outcome(query, margins, bm25))
        on_progress(len(outcomes), total)
    by_split: dict[str, list[QueryOutcome]] = {}
    for outcome in outcomes:
        by_split.setdefault(outcome.split, []).append(outcome)
    return Report(
        outcomes=tuple(outcomes),
        splits=tuple(SplitReport.of(name, group) for name, group in by_split.items()),
        total=SplitReport.of(TOTAL, outcomes),
        seconds=seconds,
    )


def _survey(root: Path, splits: Collection[str]) -> tuple[Bm25, int]:
    """Reads the whole set: BM25's statistics over all its texts, and how many queries are selected."""
    selected = 0
    names: dict[str, None] = {}

    def texts() -> Iterator[str]:
        nonlocal selected
        for query in read_dataset(root):
            names[query.split] = None
            selected += _is_selected(query, splits)
            yield from (text for document in query.documents if (text := text_of(document.content)))

    bm25 = Bm25(texts())
    for wanted in splits:
        if not any(_is_within(name, wanted) for name in names):
            raise DatasetError(f"has no split {wanted!r}; it has {', '.join(names)}", item=str(root))
    return bm25, selected


def _selected(root: Path, splits: Collection[str]) -> Iterator[JudgedQuery]:
    return (query for query in read_dataset(root) if _is_selected(query, splits))


def _is_selected(query: JudgedQuery, splits: Collection[str]) -> bool:
    return not splits or any(_is_within(query.split, wanted) for wanted in splits)


def _is_within(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted.rstrip('/')}/")


def _outcome(query: JudgedQuery, margins: npt.NDArray[np.float64], bm25: Bm25) -> QueryOutcome:
    if margins.shape != (len(query.documents),):
        raise InternalError(f"the scorer gave {margins.shape} scores for {len(query.documents)} documents")
    if not np.isfinite(margins).all():
        raise NonFiniteScoreError("the scorer gave a score that is not finite", item=query.id)
    question = text_of(query.query)
    texts = [text_of(document.content) for document in query.documents]
    lexical = measure(bm25.scores(question, texts), query.grades) if question and any(texts) else None
    return QueryOutcome(
        query.id, query.split, len(texts), measure(margins, query.grades), chance(query.grades), lexical
    )


def _mean(metrics: Sequence[Metrics]) -> Metrics:
    return Metrics(
        sum(one.ndcg for one in metrics) / len(metrics),
        sum(one.reciprocal_rank for one in metrics) / len(metrics),
        sum(one.pairwise_accuracy for one in metrics) / len(metrics),
    )
