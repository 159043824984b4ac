"""The judged set by which INT8 is measured against full precision, and what full precision gave it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.engines.bulk import score_requests
from orin_rerank.errors import CalibrationError, DatasetError, InvalidRequestError
from orin_rerank.evaluation.dataset import read_dataset
from orin_rerank.evaluation.scoring import ScoredQuery
from orin_rerank.prompt.content import RerankInput
from orin_rerank.quantization.array_file import read_arrays, write_arrays
from orin_rerank.quantization.calibration_set import dataset_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from orin_rerank.engines.runner import Runner
    from orin_rerank.evaluation.dataset import JudgedQuery
    from orin_rerank.packing.budget import TokenBudget
    from orin_rerank.prompt.encoded import EncodedRequest
    from orin_rerank.prompt.encoder import PromptEncoder

__all__ = ["REFERENCE_FILE", "JudgedScores", "JudgedSet", "without_scores", "write_reference"]

REFERENCE_FILE: Final = "quantization/reference.safetensors"
"""In an INT8 bundle: the margins of full precision on the judged set."""

_MARGINS: Final = "margins"


@dataclass(frozen=True, slots=True)
class JudgedScores:
    """What an engine gave a judged set.

    Attributes:
        queries: In the set's order.
        tokens: Tokens that the decoder computed.
        images: Images that the vision encoder computed.
    """

    queries: tuple[ScoredQuery, ...]
    tokens: int
    images: int

    @property
    def pairs(self) -> int:
        """Pairs of a query and a document."""
        return sum(query.documents for query in self.queries)


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

    def score(
        self, runner: Runner, encoder: PromptEncoder, budget: TokenBudget, tell: Callable[[int, int], None]
    ) -> JudgedScores:
        """Scores every query.

        Args:
            runner: The engine.
            encoder: Encodes what is scored.
            budget: How long packs should be.
            tell: Told how many queries have been encoded, and of how many.

        Raises:
            DatasetError: If a query or document cannot be used; the item names the query's id.
            NonFiniteScoreError: If a margin is NaN or infinite.
            EngineError: If the engine fails.
        """
        queries: list[tuple[str, str, tuple[int, ...]]] = []

        def requests() -> Iterator[EncodedRequest]:
            for query in read_dataset(self.folder):
                queries.append((query.id, query.split, query.grades))
                yield _encode(encoder, query)
                tell(len(queries), self.queries)

        scores = score_requests(runner, requests(), budget)
        scored = tuple(
            ScoredQuery(*query, tuple(float(margin) for margin in margins))
            for query, margins in zip(queries, scores.margins, strict=True)
        )
        return JudgedScores(scored, scores.tokens, scores.images)

    def reference(self, path: Path, source: str) -> tuple[ScoredQuery, ...]:
        """The queries with the margins that `write_reference` kept.

        Args:
            path: The file.
            source: Digest of the full-precision bundle.

        Raises:
            CalibrationError: If the file is missing, damaged, or of another set or bundle.
            DatasetError: If the set has become malformed.
        """
        arrays, metadata = read_arrays(path)
        for what, recorded, here in (
            ("the judged set", metadata.get("dataset"), self.digest),
            ("the bundle", metadata.get("bundle"), source),
        ):
            if recorded != here:
                raise CalibrationError(
                    f"holds margins of {what} {str(recorded)[:12]}, and this is {here[:12]}", item=str(path)
                )
        margins = [float(margin) for margin in arrays.get(_MARGINS, np.empty(0, np.float32))]
        scored, begin = [], 0
        for query in read_dataset(self.folder):
            end = begin + len(query.documents)
            scored.append(ScoredQuery.of(query, margins[begin:end]))
            begin = end
        return tuple(scored)


def write_reference(path: Path, judged: JudgedSet, source: str, queries: Sequence[ScoredQuery]) -> None:
    """Keeps what full precision gave the judged set, for every engine that will be held against it.

    Args:
        path: The file; replaced if it is there.
        judged: The set.
        source: Digest of the full-precision bundle.
        queries: The set's, with its margins.
    """
    margins = np.array([margin for query in queries for margin in query.margins], np.float32)
    write_arrays(path, {_MARGINS: margins}, {"dataset": judged.digest, "bundle": source})


def without_scores(queries: Sequence[ScoredQuery]) -> tuple[ScoredQuery, ...]:
    """The same queries as an engine leaves them that gives no finite margins, for the gate to refuse."""
    return tuple(replace(query, margins=(math.nan,) * query.documents) for query in queries)


def _encode(encoder: PromptEncoder, query: JudgedQuery) -> EncodedRequest:
    contents = [document.content for document in query.documents]
    try:
        return encoder.encode(RerankInput(query.query, contents, query.instruction))
    except InvalidRequestError as error:
        raise DatasetError(error.message, item=f"query {query.id}: {error.item}") from error
