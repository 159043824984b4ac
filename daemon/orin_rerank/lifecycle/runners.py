"""Engines on the processor, and what feeds packs to an engine on whatever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.runner import Runner
from orin_rerank.lifecycle.sizes import VISION_PATCHES
from orin_rerank.packing.rotary import RotaryTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.engines.memory_plan import MemoryPlan
    from orin_rerank.engines.port import Engine
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.lifecycle.sizes import GraphFiles

__all__ = ["build_runner", "processor_engine", "runner_over"]


def build_runner(
    graphs: GraphFiles,
    memory: MemoryPlan,
    settings: EngineSettings,
    *,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
) -> Runner:
    """Builds an engine on the processor over two graphs, and what feeds it packs.

    Args:
        graphs: What to run.
        memory: How large buffers and caches are, and how many packs are in flight.
        settings: How long to wait for a buffer.
        wrap: Put between the runner and the engine, by what wants to see or to steer its runs.

    Raises:
        BundleError: If the engine does not take a graph.
    """
    return runner_over(wrap(processor_engine(graphs, memory, settings)), memory)


def processor_engine(graphs: GraphFiles, memory: MemoryPlan, settings: EngineSettings) -> OnnxRuntimeEngine:
    """Builds an engine on the processor; `build_runner` explains the arguments.

    Raises:
        BundleError: If it does not take a graph.
    """
    return OnnxRuntimeEngine(
        graphs.text,
        graphs.vision,
        memory.image,
        memory.capacity,
        threads=memory.slots,
        precision=graphs.precision,
        pool_timeout_s=settings.pool_timeout_s,
        weights=graphs.weights,
        images=memory.images,
    )


def runner_over(engine: Engine, memory: MemoryPlan) -> Runner:
    """What feeds packs to an engine, which it owns from then on; `build_runner` explains the arguments."""
    text = memory.model.architecture.text
    images = memory.images if memory.kind is EngineKind.ONNXRUNTIME_CUDA else None
    return Runner(
        engine,
        # No position is past the end of the longest sequence.
        RotaryTable(text.head_dim, text.rope_theta, text.mrope_section, memory.capacity.tokens),
        feature_bytes=memory.feature_cache_bytes,
        prefix_bytes=memory.prefix_cache_bytes,
        prefix_rows=memory.prefix_rows,
        vision_patches=VISION_PATCHES if images is None else images.patches,
    )
