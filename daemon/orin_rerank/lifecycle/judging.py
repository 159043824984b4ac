"""The judged set by which INT8 is measured against full precision."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orin_rerank.engines.bulk import score_requests
from orin_rerank.errors import DatasetError, InvalidRequestError
from orin_rerank.evaluation.dataset import read_dataset
from orin_rerank.evaluation.scoring import ScoredQuery
from orin_rerank.prompt.content import RerankInput
from orin_rerank.quantization.calibration_set import dataset_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from orin_rerank.engines.runner import Runner
    from orin_rerank.evaluation.dataset import JudgedQuery
    from orin_rerank.lifecycle.ledger import Ledger, Stage
    from orin_rerank.lifecycle.workbench import Workbench
    from orin_rerank.prompt.encoded import EncodedRequest

__all__ = ["JudgedSet", "without_scores"]


@dataclass(frozen=True, slots=True)
class JudgedSet:
    """A judged set that has been read once, and is well-formed.

    Attributes:
        folder: Where it is.
        queries: How many it has.
        digest: SHA-256 of its lines and pictures.
    """

    folder: Path
    queries: int
    digest: str

    @classmethod
    def open(cls, folder: Path, *, least: int) -> JudgedSet:
        """Reads a set from end to end.

        Args:
            folder: Where it is.
            least: Fewest queries that can decide.

        Raises:
            DatasetError: If it is malformed or has fewer queries.
        """
        queries = sum(1 for _ in read_dataset(folder))
        if queries < least:
            raise DatasetError(f"{queries} judged queries decide nothing; {least} are needed", item=str(folder))
        return cls(folder, queries, dataset_digest(folder))

    def score(self, runner: Runner, bench: Workbench, ledger: Ledger, stage: Stage) -> tuple[ScoredQuery, ...]:
        """Scores every query.

        Args:
            runner: The engine.
            bench: Encodes what is scored.
            ledger: Keeps account.
            stage: In which it is kept.

        Raises:
            DatasetError: If a query or document cannot be used; the item names the query's id.
            NonFiniteScoreError: If a margin is NaN or infinite.
            EngineError: If the engine fails.
        """
        queries: list[tuple[str, str, tuple[int, ...]]] = []

        def requests() -> Iterator[EncodedRequest]:
            for query in read_dataset(self.folder):
                queries.append((query.id, query.split, query.grades))
                yield _encode(bench, query)
                ledger.tell(stage, len(queries), self.queries)

        scores = score_requests(runner, requests(), bench.budget)
        stage.tokens, stage.images = scores.tokens, scores.images
        stage.pairs = sum(len(margins) for margins in scores.margins)
        return tuple(
            ScoredQuery(*query, tuple(float(margin) for margin in margins))
            for query, margins in zip(queries, scores.margins, strict=True)
        )


def without_scores(queries: Sequence[ScoredQuery]) -> tuple[ScoredQuery, ...]:
    """The same queries as an engine leaves them that gives no finite margins, for the gate to refuse."""
    return tuple(replace(query, margins=(math.nan,) * query.documents) for query in queries)


def _encode(bench: Workbench, query: JudgedQuery) -> EncodedRequest:
    contents = [document.content for document in query.documents]
    try:
        return bench.encoder.encode(RerankInput(query.query, contents, query.instruction))
    except InvalidRequestError as error:
        raise DatasetError(error.message, item=f"query {query.id}: {error.item}") from error
