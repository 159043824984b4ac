"""Engines on a GPU, as far as this machine has what they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.devices import CUDA_SLOTS
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.onnxruntime_sessions import cuda_is_available
from orin_rerank.engines.tensorrt.bindings import MODULES, installed_bindings
from orin_rerank.engines.tensorrt.load import load_engine
from orin_rerank.errors import GpuMissingError, PlanError, TensorRtMissingError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.lifecycle.compile_target import CompileTarget
from orin_rerank.lifecycle.plan_work import engine_to_compile
from orin_rerank.lifecycle.sizes import GraphFiles, capacity_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.plan_store import PlanStore
    from orin_rerank.engines.plans import PlanSet
    from orin_rerank.engines.pool import PackCapacity
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.engines.tensorrt.engine import TensorRtEngine
    from orin_rerank.engines.tensorrt.runtime import PlanRuntime

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
    """

    tensorrt: Callable[[], TensorRt] = find_tensorrt
    open_gpu: Callable[[], CudaThread] = CudaThread


def tensorrt_engine(
    bundle: Bundle,
    precision: Precision,
    settings: EngineSettings,
    longest_pair: int,
    find: Callable[[CompileTarget], PlanSet],
    accelerators: Accelerators,
) -> tuple[TensorRtEngine, PackCapacity]:
    """Loads the plans of a bundle.

    Args:
        bundle: The bundle; verified.
        precision: What it is to be computed in, such as INT8_FP16.
        settings: The engine's.
        longest_pair: Most tokens of a query with one document.
        find: Gives the plans for this machine as it is set up now, as a rule by `installed_plans`; what it raises is
            raised.
        accelerators: What this machine has.

    Raises:
        TensorRtMissingError: If TensorRT is missing.
        PlanError: If the plans are damaged.
        BundleError: If the bundle has no graphs for TensorRT in this precision.
        EngineError: If the GPU cannot be used, or memory runs out.
        DeviceLostError: If the GPU is gone.
    """
    tensorrt = accelerators.tensorrt()
    image, architecture = bundle.manifest.prompt.image, bundle.manifest.architecture
    capacity = capacity_of(
        architecture, settings, longest_pair, key_value_dtype=np.float16 if precision.half else np.float32
    )
    cuda = accelerators.open_gpu()
    try:
        found = find(CompileTarget(tensorrt.release, cuda.info))
    except BaseException:
        cuda.close()
        raise
    engine = load_engine(
        found,
        cuda,
        tensorrt.open_runtime,
        image,
        capacity,
        slots=settings.threads or CUDA_SLOTS,
        pool_timeout_s=settings.pool_timeout_s,
    )
    return engine, capacity


def onnxruntime_engine(
    bundle: Bundle, precision: Precision, settings: EngineSettings, longest_pair: int, accelerators: Accelerators
) -> tuple[OnnxRuntimeEngine, PackCapacity]:
    """Makes an engine of ONNX Runtime's on the GPU.

    Args:
        bundle: The bundle; verified.
        precision: What it is to be computed in, such as FP16.
        settings: The engine's.
        longest_pair: Most tokens of a query with one document.
        accelerators: What this machine has.

    Raises:
        GpuMissingError: If this ONNX Runtime knows no GPUs.
        BundleError: If it does not take the bundle's graphs.
        EngineError: If the GPU cannot be used.
        DeviceLostError: If the GPU is gone.
    """
    if not cuda_is_available():
        raise GpuMissingError("this ONNX Runtime is not built for NVIDIA GPUs, which takes onnxruntime-gpu")
    manifest = bundle.manifest
    graphs = GraphFiles.of_bundle(bundle, settings.dialect or Dialect.FUSED, precision)
    capacity = capacity_of(
        manifest.architecture, settings, longest_pair, key_value_dtype=np.float16 if precision.half else np.float32
    )
    engine = OnnxRuntimeEngine(
        graphs.text,
        graphs.vision,
        manifest.prompt.image,
        capacity,
        threads=settings.threads or CUDA_SLOTS,
        precision=graphs.precision,
        pool_timeout_s=settings.pool_timeout_s,
        cuda=accelerators.open_gpu(),
    )
    return engine, capacity


def installed_plans(
    bundle: Bundle, precision: Precision, settings: EngineSettings, target: CompileTarget, plans: PlanStore
) -> PlanSet:
    """The plans that are installed for a bundle and a machine as it is set up now.

    Args:
        bundle: The bundle.
        precision: What it is to be computed in.
        settings: The engine's.
        target: The machine.
        plans: Where plans are installed.

    Raises:
        PlanError: If there are none, or only ones of another key; the message says how to get them.
        StoreError: If the store cannot be read.
        BundleError: If the bundle has no graphs for TensorRT in this precision.
    """
    key = engine_to_compile(bundle, precision, settings, target, plans).key
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
    differences = "; ".join(key.differences(others[0]))
    raise PlanError(f"the {key.precision} plans are not for this machine ({differences}); {HOW_TO_GET_PLANS}")
