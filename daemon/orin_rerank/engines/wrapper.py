"""What stands between a runner and an engine, to see or to steer its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from orin_rerank.engines.pool import PoolCounters
    from orin_rerank.engines.port import Engine, EngineInfo, Probe
    from orin_rerank.packing.arrays import Features, PackArrays, PackLayout
    from orin_rerank.prompt.encoded import EncodedImage

__all__ = ["EngineWrapper"]


class EngineWrapper:
    """An engine that leaves everything to another.

    Args:
        engine: The other; closed with this one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        """What the engine is."""
        return self._engine.info

    @property
    def pool(self) -> PoolCounters:
        """The state of the engine's buffers."""
        return self._engine.pool

    def holds(self, layout: PackLayout) -> bool:
        """Whether the engine's buffers are large enough."""
        return self._engine.holds(layout)

    def arrays(self, layout: PackLayout) -> AbstractContextManager[PackArrays]:
        """Lends the engine's buffers."""
        return self._engine.arrays(layout)

    def run(self, arrays: PackArrays, probe: Probe | None = None) -> None:
        """Runs the decoder."""
        self._engine.run(arrays, probe)

    def encode_images(self, images: Sequence[EncodedImage], probe: Probe | None = None) -> list[Features]:
        """Runs the vision encoder."""
        return self._engine.encode_images(images, probe)

    def close(self) -> None:
        """Frees the engine."""
        self._engine.close()
