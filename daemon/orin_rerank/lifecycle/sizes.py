"""Which graphs of a bundle an engine runs, and what its memory plan is made from.

Compiling and serving both go by what is here: a plan that was compiled by other figures would not be found.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import WEIGHTS_FILE
from orin_rerank.engines.capacity import VISION_PATCHES
from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.memory_plan import MemoryBudget, ModelSize
from orin_rerank.engines.memory_planner import plan_memory

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.cuda_driver import DeviceInfo
    from orin_rerank.engines.host_memory import HostMemory
    from orin_rerank.engines.memory_plan import MemoryPlan
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.graph.builder import Dialect, Precision
    from orin_rerank.prompt.encoder import PromptEncoder
    from orin_rerank.prompt.profile import PromptProfile

__all__ = [
    "DOCUMENT_TOKENS",
    "LADDER",
    "VISION_PATCHES",
    "GraphFiles",
    "gpu_budget",
    "gpu_plan",
    "limited_prompt",
    "model_size",
    "processor_plan",
]

LADDER: Final = (64, 128, 192, 256, 384, 512, 768, 1024, 2048)
"""Pack lengths that are tried."""

DOCUMENT_TOKENS: Final = 64
"""Of a document in the packs that are timed."""


@dataclass(frozen=True, slots=True)
class GraphFiles:
    """What an engine runs.

    Attributes:
        text: The decoder graph.
        vision: The vision encoder graph, None for a text-only model.
        precision: What they compute in, for people, such as `fp32`.
        weights: Folder of the weight file, where it does not lie beside the graphs.
    """

    text: Path
    vision: Path | None
    precision: str
    weights: Path | None = None

    @classmethod
    def of_bundle(cls, bundle: Bundle, dialect: Dialect, precision: Precision) -> GraphFiles:
        """A pair of a bundle's own graphs.

        Raises:
            BundleError: If the bundle has none such.
        """
        graph = bundle.graph(dialect, precision)
        vision = None if graph.vision is None else bundle.folder / graph.vision
        return cls(bundle.folder / graph.text, vision, graph.precision.value)


def gpu_plan(
    bundle: Bundle,
    encoder: PromptEncoder,
    precision: Precision,
    kind: EngineKind,
    device: DeviceInfo,
    host: HostMemory,
    settings: EngineSettings,
) -> MemoryPlan:
    """How a bundle is served on a GPU.

    Args:
        bundle: The bundle.
        encoder: Its prompt path, with the model's own limits.
        precision: What it is to be computed in.
        kind: What computes it.
        device: The GPU.
        host: The machine's memory.
        settings: The engine's.

    Raises:
        MemoryShortError: If the model does not fit.
    """
    return plan_memory(model_size(bundle, encoder, precision), precision, kind, gpu_budget(device, host), settings)


def processor_plan(
    bundle: Bundle, encoder: PromptEncoder, precision: Precision, host: HostMemory, settings: EngineSettings
) -> MemoryPlan:
    """How a bundle is served on the processor; `gpu_plan` explains the arguments.

    Raises:
        MemoryShortError: If the model does not fit.
    """
    budget = MemoryBudget.of_processor(host.total_bytes)
    return plan_memory(model_size(bundle, encoder, precision), precision, EngineKind.PROCESSOR, budget, settings)


def model_size(bundle: Bundle, encoder: PromptEncoder, precision: Precision) -> ModelSize:
    """What of a bundle its memory depends on.

    Args:
        bundle: The bundle.
        encoder: Its prompt path, with the model's own limits.
        precision: What it is to be computed in.
    """
    manifest = bundle.manifest
    return ModelSize(
        manifest.architecture,
        manifest.prompt.image,
        manifest.prompt.max_tokens,
        encoder.longest_pair - manifest.prompt.max_tokens,
        {precision: manifest.files[WEIGHTS_FILE].bytes},
    )


def limited_prompt(prompt: PromptProfile, plan: MemoryPlan) -> PromptProfile:
    """The prompt path's profile, with the limits that memory sets."""
    return dataclasses.replace(prompt, max_tokens=plan.max_tokens, image=plan.image)


def gpu_budget(device: DeviceInfo, host: HostMemory) -> MemoryBudget:
    """The memory that a GPU computes in: its own where it has some; where there is only a compiler, this machine's.

    Args:
        device: The GPU.
        host: The machine's memory.
    """
    if device.integrated or not device.total_bytes:
        return MemoryBudget.of_machine(device.total_bytes or host.total_bytes)
    return MemoryBudget.of_gpu(device.total_bytes)
