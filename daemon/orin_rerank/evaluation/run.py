"""Runs a scorer over an evaluation set and reports how well it ranks, split by split.

The set is read twice: once to check it as a whole, count it and collect BM25's statistics, and once to score it. A
malformed line is thus found before the first query is scored, and only one query's pictures are held at a time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from orin_rerank.errors import NonFiniteScoreError
from orin_rerank.evaluation.bm25 import Bm25
from orin_rerank.evaluation.dataset import text_of
from orin_rerank.evaluation.metrics import Estimate, Metrics, chance, estimate, measure
from orin_rerank.evaluation.scoring import Progress, ScoredQuery, Scorer, Survey, score_query, selected_queries

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from orin_rerank.evaluation.dataset import JudgedQuery

__all__ = ["TOTAL", "QueryOutcome", "Report", "SplitReport", "Summary", "evaluate"]

TOTAL = "all"
"""What all splits together are called."""


@dataclass(frozen=True, slots=True)
class QueryOutcome(ScoredQuery):
    """What one query came to.

    Attributes:
        model: The scorer's metrics.
        chance: Expected metrics of a random ordering.
        bm25: BM25's metrics; None where the query, or all its documents, have no text.
    """

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
            "queries": [{**asdict(outcome), "documents": outcome.documents} for outcome in self.outcomes],
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
    survey = Survey(root, splits)
    bm25 = Bm25(text for query in survey.read() for text in _texts(query) if text)
    outcomes: list[QueryOutcome] = []
    total_seconds = 0.0
    on_progress(0, survey.selected)
    for query in selected_queries(root, splits):
        scored, seconds = score_query(scorer, query)
        outcomes.append(_outcome(query, scored, bm25))
        total_seconds += seconds
        on_progress(len(outcomes), survey.selected)
    by_split: dict[str, list[QueryOutcome]] = {}
    for outcome in outcomes:
        by_split.setdefault(outcome.split, []).append(outcome)
    return Report(
        outcomes=tuple(outcomes),
        splits=tuple(SplitReport.of(name, group) for name, group in by_split.items()),
        total=SplitReport.of(TOTAL, outcomes),
        seconds=total_seconds,
    )


def _outcome(query: JudgedQuery, scored: ScoredQuery, bm25: Bm25) -> QueryOutcome:
    if not scored.finite:
        raise NonFiniteScoreError("the scorer gave a score that is not finite", item=query.id)
    question, texts = text_of(query.query), _texts(query)
    lexical = measure(bm25.scores(question, texts), query.grades) if question and any(texts) else None
    model, random = measure(scored.margins, query.grades), chance(query.grades)
    return QueryOutcome(scored.id, scored.split, scored.grades, scored.margins, model, random, lexical)


def _texts(query: JudgedQuery) -> list[str]:
    """The documents' texts in their order; empty for a picture alone."""
    return [text_of(document.content) for document in query.documents]


def _mean(metrics: Sequence[Metrics]) -> Metrics:
    return Metrics(
        sum(one.ndcg for one in metrics) / len(metrics),
        sum(one.reciprocal_rank for one in metrics) / len(metrics),
        sum(one.pairwise_accuracy for one in metrics) / len(metrics),
    )
