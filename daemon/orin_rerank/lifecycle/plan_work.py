"""Which plans a bundle needs on a GPU, and the key that they are installed under: to compile them and to find them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.engines.bundle import TOKENIZER_FILE
from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.engines.tensorrt.load import TEXT_PLAN, VISION_PLAN
from orin_rerank.engines.tensorrt.profiles import text_profiles, vision_profiles
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.lifecycle.sizes import VISION_PATCHES, GraphFiles, gpu_plan
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer
from orin_rerank.quantization.plan import PLAN_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.memory_plan import MemoryPlan
    from orin_rerank.engines.plan_store import PlanStore
    from orin_rerank.engines.plans import PlanKey
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.engines.tensorrt.profiles import ShapeProfile
    from orin_rerank.lifecycle.compile_target import CompileTarget

__all__ = ["EngineToCompile", "PlanToCompile", "engine_to_compile"]


@dataclass(frozen=True, slots=True)
class PlanToCompile:
    """One graph.

    Attributes:
        name: Of the plan, such as `text.plan`.
        graph: The ONNX file.
        profiles: For which sizes.
        earlier_s: What compiling it took the last time, in seconds; None where that is not known.
    """

    name: str
    graph: Path
    profiles: tuple[ShapeProfile, ...]
    earlier_s: float | None = None

    @property
    def effort(self) -> float:
        """What compiling it takes, in no unit: every profile looks for kernels for every node of the graph."""
        return float(len(self.profiles) * self.graph.stat().st_size)


@dataclass(frozen=True, slots=True)
class EngineToCompile:
    """A bundle in one precision.

    Attributes:
        bundle: Whose graphs are compiled.
        key: Of its plans.
        plans: The plans.
        memory: How it will be served, which decides on the profiles.
    """

    bundle: Bundle
    key: PlanKey
    plans: tuple[PlanToCompile, ...]
    memory: MemoryPlan

    @property
    def precision(self) -> str:
        """What it computes in, such as `int8-fp16`."""
        return self.key.precision


def engine_to_compile(
    bundle: Bundle,
    precision: Precision,
    settings: EngineSettings,
    target: CompileTarget,
    plans: PlanStore,
    memory: MemoryPlan | None = None,
) -> EngineToCompile:
    """What a bundle needs to be served on a GPU in one precision.

    Args:
        bundle: The bundle whose graphs are to be compiled.
        precision: What they compute in.
        settings: What the engine will be served with.
        target: What to compile for.
        plans: Where plans are installed, and how long it took to compile them.
        memory: How it will be served, where that is known; else the tokenizer is read for it.

    Raises:
        BundleError: If it has no graphs in that precision for TensorRT.
        MemoryShortError: If the model does not fit on this machine.
    """
    manifest = bundle.manifest
    graphs = GraphFiles.of_bundle(bundle, Dialect.PRIMITIVE, precision)
    if memory is None:
        encoder = PromptEncoder(manifest.prompt, PromptTokenizer.from_file(bundle.folder / TOKENIZER_FILE))
        memory = gpu_plan(bundle, encoder, precision, EngineKind.TENSORRT, target.device, read_host_memory(), settings)
    text = text_profiles(memory.capacity, memory.token_budget)
    vision = () if memory.image is None or graphs.vision is None else vision_profiles(memory.image, VISION_PATCHES)
    scheme = manifest.files.get(PLAN_FILE)
    key = target.key(
        bundle=bundle.digest,
        precision=precision.value,
        precision_plan=None if scheme is None else scheme.sha256,
        text=text,
        vision=vision,
    )
    earlier = _earlier_seconds(plans, key)
    found = [PlanToCompile(TEXT_PLAN, graphs.text, text, earlier.get(TEXT_PLAN))]
    if vision and graphs.vision is not None:
        found.append(PlanToCompile(VISION_PLAN, graphs.vision, vision, earlier.get(VISION_PLAN)))
    return EngineToCompile(bundle, key, tuple(found), memory)


def _earlier_seconds(plans: PlanStore, key: PlanKey) -> dict[str, float]:
    """How long the plans of this bundle and precision took, the last time that they were compiled."""
    for stored in plans.stored():
        if stored.plans is not None and (stored.bundle, stored.precision) == (key.bundle, key.precision):
            return {name: entry.build_s for name, entry in stored.plans.manifest.plans.items()}
    return {}
