"""What every engine does, whatever runs beneath it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orin_rerank.packing.arrays import PackArrays
    from orin_rerank.prompt.encoded import EncodedImage, Float32Array

__all__ = ["Engine", "EngineInfo"]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is.

    Attributes:
        name: Such as `onnxruntime-cpu`.
        precision: Such as `fp32` or `int8`.
        max_tokens: Longest packed sequence that its buffers hold.
        max_documents: Most documents in one pack.
    """

    name: str
    precision: str
    max_tokens: int
    max_documents: int


class Engine(Protocol):
    """Runs a model's two graphs. Belongs to one thread from its construction to `close`."""

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""

    def encode_images(self, images: Sequence[EncodedImage]) -> list[Float32Array]:
        """Runs the vision encoder on images of one common grid.

        Returns:
            For each image float32 `[1 + taps, tokens, hidden]`: the features that replace its token embeddings, then
            those that are added after each of the first decoder layers.
        """

    def margins(self, arrays: PackArrays) -> Float32Array:
        """Runs the decoder over a packed sequence.

        Returns:
            float32 `[N]`: logit(yes) - logit(no) of every document, a copy that the caller owns.

        Raises:
            EngineError: If the run fails.
        """

    def close(self) -> None:
        """Frees what the engine holds; it may not be used afterwards."""
