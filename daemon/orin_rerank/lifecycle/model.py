"""A loaded model: everything between a request and its margins, in one place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.packing.pack import plan_packs

if TYPE_CHECKING:
    from orin_rerank.engines.port import EngineInfo
    from orin_rerank.engines.runner import Runner
    from orin_rerank.packing.budget import TokenBudget
    from orin_rerank.prompt.content import RerankInput
    from orin_rerank.prompt.encoded import EncodedRequest, Float32Array
    from orin_rerank.prompt.encoder import PromptEncoder
    from orin_rerank.prompt.profile import PromptProfile

__all__ = ["LoadedModel", "RerankOutput"]


@dataclass(frozen=True, slots=True, eq=False)
class RerankOutput:
    """What reranking a request gave.

    Attributes:
        margins: float32 `[documents]`, in the request's order.
        request: The request as it was encoded: token counts and what was cut.
    """

    margins: Float32Array
    request: EncodedRequest


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to score.

    Attributes:
        name: By which requests may name it.
        digest: SHA-256 of its bundle's manifest, in hexadecimal.
        profile: What its prompts look like.
        encoder: Its prompt path.
        runner: Its engine; safe to call from `info.slots` threads at a time.
        budget: How many tokens its packs should have on this machine.
        precision_reason: Why it is computed in this precision and in no other.
        source: Digest of the full-precision bundle that its own was derived from; None if it is one itself.
        engine_reason: Why it is computed by this engine: what is the matter with those that come before it.
        picture_bytes: Memory for pictures that are decoded and wait for the engine, of all requests together.
    """

    name: str
    digest: str
    profile: PromptProfile
    encoder: PromptEncoder
    runner: Runner
    budget: TokenBudget
    precision_reason: str
    source: str | None = None
    engine_reason: str = ""
    picture_bytes: int = 0
    _threads: ThreadPoolExecutor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_threads", ThreadPoolExecutor(self.info.slots, thread_name_prefix="rerank"))

    @property
    def info(self) -> EngineInfo:
        """What its engine is."""
        return self.runner.info

    def rerank(self, request: RerankInput) -> RerankOutput:
        """Scores one request in the calling process, as the daemon would.

        Raises:
            InvalidRequestError: If the request is wrong; names the offending part.
            EngineError: If the engine fails.
        """
        encoded = self.encoder.encode(request)
        return RerankOutput(self.score(encoded), encoded)

    def score(self, encoded: EncodedRequest) -> Float32Array:
        """Scores an encoded request.

        Returns:
            float32 `[documents]`, in the request's order.
        """
        runner = self.runner
        packs = plan_packs(encoded, self.budget, self.info.max_documents, runner.knows, runner.remembers)
        # plan_packs keeps the documents' order, and map the packs'
        return np.concatenate([result.margins for result in self._threads.map(runner.run, packs)])

    def close(self) -> None:
        """Frees the engine."""
        self._threads.shutdown()
        self.runner.close()
