"""What serving asks of a loaded model. `lifecycle.model.LoadedModel` is one; the tests have others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orin_rerank.engines.pool import PoolCounters
    from orin_rerank.engines.port import EngineInfo
    from orin_rerank.engines.runner import PackResult
    from orin_rerank.packing.budget import TokenBudget
    from orin_rerank.packing.pack import Pack
    from orin_rerank.prompt.content import RerankInput
    from orin_rerank.prompt.encoded import EncodedImage, EncodedRequest, EncodedSegment
    from orin_rerank.prompt.profile import PromptProfile

__all__ = ["Encoder", "PackRunner", "ServedModel"]


class Encoder(Protocol):
    """Turns requests into tokens and pixels; called from several threads at once."""

    def encode(self, request: RerankInput, query_images: dict[bytes, EncodedImage] | None = None) -> EncodedRequest:
        """Encodes a request, or a piece of it; `query_images` carries what was decoded of the query between pieces.

        Raises:
            InvalidRequestError: Names the offending part, such as `documents[3].content[0]`.
        """


class PackRunner(Protocol):
    """Runs packs, on as many threads at a time as `info.slots` says."""

    @property
    def pool(self) -> PoolCounters:
        """The state of the engine's buffers now."""

    def knows(self, prefix: EncodedSegment) -> bool:
        """Whether a prefix need not be computed again."""

    def run(self, pack: Pack) -> PackResult:
        """Scores a pack.

        Raises:
            EngineError: If the engine failed or gave a margin that is not finite.
        """


class ServedModel(Protocol):
    """A model that is ready to score."""

    @property
    def name(self) -> str:
        """By which requests may name it."""

    @property
    def digest(self) -> str:
        """SHA-256 of its bundle's manifest, in hexadecimal."""

    @property
    def source(self) -> str | None:
        """The same of the full-precision bundle that its own was derived from; None if it is one itself."""

    @property
    def precision_reason(self) -> str:
        """Why it is computed in this precision and in no other."""

    @property
    def engine_reason(self) -> str:
        """Why it is computed by this engine and by none that would be better."""

    @property
    def profile(self) -> PromptProfile:
        """What it reads."""

    @property
    def encoder(self) -> Encoder:
        """Its prompt path."""

    @property
    def runner(self) -> PackRunner:
        """Its engine."""

    @property
    def budget(self) -> TokenBudget:
        """How long its packs should be on this machine."""

    @property
    def info(self) -> EngineInfo:
        """What its engine is."""

    @property
    def picture_bytes(self) -> int:
        """Memory for pictures that are decoded and wait for it, of all requests together."""

    def close(self) -> None:
        """Frees what it holds; called once no pack runs."""
