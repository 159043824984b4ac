"""Scores many requests, as many packs at a time as the engine runs, holding a few of them only."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import numpy as np

from orin_rerank.packing.stream import pack_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from orin_rerank.engines.runner import PackResult, Runner
    from orin_rerank.packing.budget import TokenBudget
    from orin_rerank.packing.pack import Pack
    from orin_rerank.prompt.encoded import EncodedRequest, Float32Array

__all__ = ["BulkScores", "score_requests"]


class BulkScores:
    """Margins of many requests.

    Attributes:
        margins: For each request float32 `[documents]`.
        tokens: Tokens that the decoder computed, over all packs.
    """

    def __init__(self) -> None:
        self._found: dict[int, dict[int, float]] = {}
        self.tokens = 0

    @property
    def margins(self) -> list[Float32Array]:
        """For each request, in order, float32 `[documents]`."""
        found = self._found
        return [np.array([found[r][d] for d in range(len(found[r]))], dtype=np.float32) for r in range(len(found))]

    def add(self, pack: Pack, result: PackResult) -> None:
        """Takes the margins of one pack, whose tags are `(request, document)`."""
        self.tokens += result.tokens
        for tag, margin in zip(pack.tags, result.margins, strict=True):
            request, document = cast("tuple[int, int]", tag)
            self._found.setdefault(request, {})[document] = float(margin)


def score_requests(
    runner: Runner,
    requests: Iterable[EncodedRequest],
    budget: TokenBudget,
    on_pack: Callable[[int], None] = lambda _: None,
) -> BulkScores:
    """Scores requests that may be made as they are needed.

    Args:
        runner: The engine.
        requests: Encoded one after the other, in the calling thread, while packs run.
        budget: How long packs should be.
        on_pack: Told how many documents a finished pack had.

    Raises:
        NonFiniteScoreError: If a margin is NaN or infinite.
        EngineError: If the engine fails.
    """
    scores = BulkScores()
    slots = runner.info.slots
    waiting: deque[tuple[Pack, Future[PackResult]]] = deque()

    def collect() -> None:
        pack, future = waiting.popleft()
        scores.add(pack, future.result())
        on_pack(pack.documents)

    with ThreadPoolExecutor(slots, thread_name_prefix="bulk") as threads:
        for pack in pack_stream(requests, budget, runner.info.max_documents):
            waiting.append((pack, threads.submit(runner.run, pack)))
            if len(waiting) > 2 * slots:
                collect()
        while waiting:
            collect()
    return scores
