"""Engines on a GPU, as far as this machine has what they take."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.onnxruntime_sessions import cuda_is_available
from orin_rerank.engines.tensorrt.bindings import MODULES, installed_bindings
from orin_rerank.engines.tensorrt.load import load_engine
from orin_rerank.engines.tensorrt.scores import AskedScratch, check_scores
from orin_rerank.errors import GpuMissingError, PlanError, TensorRtMissingError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.lifecycle.compile_target import CompileTarget
from orin_rerank.lifecycle.plan_work import engine_to_compile
from orin_rerank.lifecycle.sizes import GraphFiles, gpu_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.host_memory import HostMemory
    from orin_rerank.engines.memory_plan import MemoryPlan
    from orin_rerank.engines.plan_store import PlanStore
    from orin_rerank.engines.plans import PlanSet
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.engines.tensorrt.engine import TensorRtEngine
    from orin_rerank.engines.tensorrt.runtime import LoadedPlan, PlanRuntime
    from orin_rerank.prompt.encoder import PromptEncoder

__all__ = [
    "HOW_TO_GET_PLANS",
    "Accelerators",
    "TensorRt",
    "find_tensorrt",
    "installed_plans",
    "onnxruntime_engine",
    "tensorrt_engine",
]

HOW_TO_GET_PLANS = "`orin-rerank build` compiles them"


@dataclass(frozen=True, slots=True)
class TensorRt:
    """TensorRT as it is installed.

    Attributes:
        release: Its name and version, as plans' keys have it.
        open_runtime: Makes it ready; called in the CUDA thread.
    """

    release: str
    open_runtime: Callable[[], PlanRuntime]


def find_tensorrt() -> TensorRt:
    """The TensorRT of this Python.

    Raises:
        TensorRtMissingError: If there is none that serves. TensorRT-RTX is there to compile for tests.
    """
    found = installed_bindings()
    if found != MODULES[0]:
        raise TensorRtMissingError("TensorRT is not installed for this Python")
    # Loads TensorRT's libraries, and only now is it known that there are any.
    from orin_rerank.engines.tensorrt.api import RUNTIME  # noqa: PLC0415
    from orin_rerank.engines.tensorrt.installed import installed_runtime  # noqa: PLC0415

    return TensorRt(RUNTIME, installed_runtime)


@dataclass(frozen=True, slots=True)
class Accelerators:
    """What this machine has beside its processor; each is looked for when it is wanted.

    Attributes:
        tensorrt: Finds TensorRT, or raises TensorRtMissingError.
        open_gpu: Opens the GPU, or raises EngineError.
        host_memory: Says how much memory the machine has; a Jetson's GPU has no other.
    """

    tensorrt: Callable[[], TensorRt] = find_tensorrt
    open_gpu: Callable[[], CudaThread] = CudaThread
    host_memory: Callable[[], HostMemory] = read_host_memory


def tensorrt_engine(
    bundle: Bundle,
    precision: Precision,
    settings: EngineSettings,
    encoder: PromptEncoder,
    find: Callable[[CompileTarget, MemoryPlan], PlanSet],
    accelerators: Accelerators,
) -> tuple[TensorRtEngine, MemoryPlan]:
    """Loads the plans of a bundle.

    Args:
        bundle: The bundle; verified.
        precision: What it is to be computed in, such as INT8_FP16.
        settings: The engine's.
        encoder: The bundle's prompt path, with the model's own limits; memory may set lower ones.
        find: Gives the plans for this machine as it is set up now and what it has memory for, as a rule by
            `installed_plans`; what it raises is raised.
        accelerators: What this machine has.

    Raises:
        TensorRtMissingError: If TensorRT is missing.
        PlanError: If the plans are damaged, or may ask for less memory than they use.
        BundleError: If the bundle has no graphs for TensorRT in this precision.
        MemoryShortError: If the model does not fit, or not enough memory is free.
        EngineError: If the GPU cannot be used, or memory runs out.
        DeviceLostError: If the GPU is gone.
    """
    tensorrt = accelerators.tensorrt()
    cuda = accelerators.open_gpu()
    try:
        memory = gpu_plan(
            bundle, encoder, precision, EngineKind.TENSORRT, cuda.info, accelerators.host_memory(), settings
        )
        found = find(CompileTarget(tensorrt.release, cuda.info), memory)
        _check_free(memory, cuda, accelerators)
    except BaseException:
        cuda.close()
        raise
    engine = load_engine(
        found,
        cuda,
        tensorrt.open_runtime,
        memory.image,
        memory.capacity,
        slots=memory.slots,
        pool_timeout_s=settings.pool_timeout_s,
        check=lambda text: check_scores(text.name, _asked(text), memory),
    )
    return engine, memory


def onnxruntime_engine(
    bundle: Bundle, precision: Precision, settings: EngineSettings, encoder: PromptEncoder, accelerators: Accelerators
) -> tuple[OnnxRuntimeEngine, MemoryPlan]:
    """Makes an engine of ONNX Runtime's on the GPU.

    Args:
        bundle: The bundle; verified.
        precision: What it is to be computed in, such as FP16.
        settings: The engine's.
        encoder: The bundle's prompt path, with the model's own limits; memory may set lower ones.
        accelerators: What this machine has.

    Raises:
        GpuMissingError: If this ONNX Runtime knows no GPUs.
        BundleError: If it does not take the bundle's graphs.
        MemoryShortError: If the model does not fit, or not enough memory is free.
        EngineError: If the GPU cannot be used.
        DeviceLostError: If the GPU is gone.
    """
    if not cuda_is_available():
        raise GpuMissingError("this ONNX Runtime is not built for NVIDIA GPUs, which takes onnxruntime-gpu")
    graphs = GraphFiles.of_bundle(bundle, settings.dialect or Dialect.FUSED, precision)
    cuda = accelerators.open_gpu()
    try:
        memory = gpu_plan(
            bundle, encoder, precision, EngineKind.ONNXRUNTIME_CUDA, cuda.info, accelerators.host_memory(), settings
        )
        _check_free(memory, cuda, accelerators)
    except BaseException:
        cuda.close()
        raise
    engine = OnnxRuntimeEngine(
        graphs.text,
        graphs.vision,
        memory.image,
        memory.capacity,
        threads=memory.slots,
        precision=graphs.precision,
        pool_timeout_s=settings.pool_timeout_s,
        images=memory.images,
        cuda=cuda,
    )
    return engine, memory


def _asked(text: LoadedPlan) -> list[AskedScratch]:
    """What a decoder's plan asks for, for each profile; in the CUDA thread."""
    return [
        AskedScratch(
            text.longest("ids", number), text.longest("known_id", number), text.longest("keep", number), nbytes
        )
        for number, nbytes in enumerate(text.scratch_by_profile)
    ]


def _check_free(memory: MemoryPlan, cuda: CudaThread, accelerators: Accelerators) -> None:
    """Makes sure that what an engine takes is free now.

    The driver of a GPU that shares the machine's memory knows only what is free, not what caches files and would be
    given back.

    Raises:
        MemoryShortError: If it is not.
        DeviceLostError: If the GPU is gone.
    """
    available = accelerators.host_memory().available_bytes
    if memory.budget.shared:
        memory.check_free(available)
    else:
        memory.check_free(cuda.call(lambda driver: driver.free_bytes()), available)


def installed_plans(
    bundle: Bundle,
    precision: Precision,
    settings: EngineSettings,
    target: CompileTarget,
    plans: PlanStore,
    memory: MemoryPlan | None = None,
) -> PlanSet:
    """The plans that are installed for a bundle and a machine as it is set up now.

    Args:
        bundle: The bundle.
        precision: What it is to be computed in.
        settings: The engine's.
        target: The machine.
        plans: Where plans are installed.
        memory: How it is served, where that is known.

    Raises:
        PlanError: If there are none, or only ones of another key; the message says how to get them.
        StoreError: If the store cannot be read.
        BundleError: If the bundle has no graphs for TensorRT in this precision.
    """
    key = engine_to_compile(bundle, precision, settings, target, plans, memory).key
    found = plans.find(key)
    if found is not None:
        return found
    others = [
        stored.plans.manifest.key
        for stored in plans.stored()
        if stored.plans is not None and (stored.bundle, stored.precision) == (key.bundle, key.precision)
    ]
    if not others:
        raise PlanError(f"no {key.precision} plans are installed for this bundle; {HOW_TO_GET_PLANS}")
    if key == dataclasses.replace(others[0], profiles=key.profiles):
        raise PlanError(
            f"the {key.precision} plans are for packs of other sizes: compile them with the --token-budget and the "
            f"--max-tokens that they are to be served with; {HOW_TO_GET_PLANS}"
        )
    differences = "; ".join(key.differences(others[0]))
    raise PlanError(f"the {key.precision} plans are not for this machine ({differences}); {HOW_TO_GET_PLANS}")
