"""Scores many requests, as many packs at a time as the engine runs, holding a few of them only."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import numpy as np

from orin_rerank.packing.stream import pack_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from orin_rerank.engines.runner import PackResult, Runner
    from orin_rerank.packing.budget import TokenBudget
    from orin_rerank.packing.pack import Pack
    from orin_rerank.prompt.encoded import EncodedRequest, Float32Array

__all__ = ["BulkScores", "score_requests"]


class BulkScores:
    """Margins of many requests.

    Args:
        on_request: Is handed each request's margins; None has them kept.

    Attributes:
        margins: For each request, in order, float32 `[documents]`; none where they were handed over, so that what is
            held does not grow with the requests.
        tokens: Tokens that the decoder computed, over all packs.
        images: Images that the vision encoder computed.
    """

    def __init__(self, on_request: Callable[[int, Float32Array], None] | None) -> None:
        self.margins: list[Float32Array] = []
        self.tokens = 0
        self.images = 0
        self._expected = 0
        self._unfinished: dict[int, Float32Array] = {}
        self._missing: dict[int, int] = {}
        self._on_request = on_request

    def expect(self, request: EncodedRequest) -> None:
        """Makes room for the next request's margins."""
        documents = len(request.documents)
        margins = np.full(documents, np.nan, np.float32)
        self._unfinished[self._expected], self._missing[self._expected] = margins, documents
        self._expected += 1
        if self._on_request is None:
            self.margins.append(margins)

    def add(self, pack: Pack, result: PackResult) -> None:
        """Takes the margins of one pack, whose tags are `(request, document)`."""
        self.tokens += result.tokens
        self.images += len(result.encoded_images)
        for tag, margin in zip(pack.tags, result.margins, strict=True):
            request, document = cast("tuple[int, int]", tag)
            self._unfinished[request][document] = margin
            self._missing[request] -= 1
            if not self._missing[request]:
                del self._missing[request]
                finished = self._unfinished.pop(request)
                if self._on_request is not None:
                    self._on_request(request, finished)


def score_requests(
    runner: Runner,
    requests: Iterable[EncodedRequest],
    budget: TokenBudget,
    on_request: Callable[[int, Float32Array], None] | None = None,
) -> BulkScores:
    """Scores requests that may be made as they are needed.

    Args:
        runner: The engine.
        requests: Encoded one after the other, in the calling thread, while packs run.
        budget: How long packs should be.
        on_request: Told a request's number and margins once it has all of them; nearly in order. Without it they are
            kept.

    Raises:
        NonFiniteScoreError: If a margin is NaN or infinite.
        EngineError: If the engine fails.
    """
    scores = BulkScores(on_request)
    slots = runner.info.slots
    waiting: deque[tuple[Pack, Future[PackResult]]] = deque()

    def collect() -> None:
        pack, future = waiting.popleft()
        scores.add(pack, future.result())

    def expected() -> Iterator[EncodedRequest]:
        for request in requests:
            scores.expect(request)
            yield request

    with ThreadPoolExecutor(slots, thread_name_prefix="bulk") as threads:
        for pack in pack_stream(expected(), budget, runner.info.max_documents):
            waiting.append((pack, threads.submit(runner.run, pack)))
            if len(waiting) > 2 * slots:
                collect()
        while waiting:
            collect()
    return scores
