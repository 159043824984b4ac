"""What every engine does, whatever runs beneath it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from orin_rerank.engines.pool import PoolCounters
    from orin_rerank.packing.arrays import Features, PackArrays, PackLayout
    from orin_rerank.prompt.encoded import EncodedImage

__all__ = ["Engine", "EngineInfo", "Probe"]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is.

    Attributes:
        name: Such as `onnxruntime-cpu`.
        precision: Such as `fp32` or `int8`.
        max_tokens: Longest packed sequence that its buffers hold.
        max_documents: Most documents in one pack.
        slots: How many packs may be in flight at a time, each from a thread of its own.
    """

    name: str
    precision: str
    max_tokens: int
    max_documents: int
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Probe:
    """Inputs and outputs that a graph has beyond the usual ones.

    Attributes:
        inputs: By name.
        outputs: Names of those to return.
        results: Where the engine puts them.
    """

    inputs: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    results: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


class Engine(Protocol):
    """Runs a model's two graphs. Safe to call from `info.slots` threads at a time."""

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""

    @property
    def pool(self) -> PoolCounters:
        """The state of its buffers now."""

    def holds(self, layout: PackLayout) -> bool:
        """Whether the engine's buffers are large enough for a pack laid out so."""

    def arrays(self, layout: PackLayout) -> AbstractContextManager[PackArrays]:
        """Lends buffers of the pool, cut to a layout; they go back at the end of the context.

        Raises:
            PoolExhaustedError: If none became free in time.
        """

    def run(self, arrays: PackArrays, probe: Probe | None = None) -> None:
        """Runs the decoder over a packed sequence, writing `arrays.margin` and `arrays.kept`.

        Args:
            arrays: Inputs and outputs.
            probe: What a probing form of the graph takes and gives besides.

        Raises:
            EngineError: If the run fails.
        """

    def encode_images(self, images: Sequence[EncodedImage], probe: Probe | None = None) -> list[Features]:
        """Runs the vision encoder on images of one common grid.

        Args:
            images: The images.
            probe: What a probing form of the graph takes and gives besides.

        Returns:
            For each image `[1 + taps, tokens, hidden]`, a copy: the features that replace its token embeddings, then
            those that are added after each of the first decoder layers.

        Raises:
            EngineError: If the run fails.
        """

    def close(self) -> None:
        """Frees what the engine holds; it may not be used afterwards.

        From now on no buffers are lent: who waits for some, or asks, gets EngineClosedError. Who has some may finish.

        Raises:
            EngineError: If buffers are still lent when the time for that is over. What their borrower uses may not be
                freed, so nothing is; the engine can be closed again, or the process be ended at once.
            DeviceLostError: If the GPU has been lost, now or before. What was on it goes with the process.
        """
