"""Compiles graphs for SM86, the nearest sibling of Orin's SM87, with TensorRT-RTX, which needs no GPU for it."""

from __future__ import annotations

import dataclasses
import importlib.util
import platform
import re
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from fakes.published import BOARDS
from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.memory_plan import MemoryBudget
from orin_rerank.engines.memory_planner import plan_memory
from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.engines.tensorrt.builder import PlanBuilder
from orin_rerank.engines.tensorrt.job import BuildJob
from orin_rerank.engines.tensorrt.profiles import Extent, text_profiles, vision_profiles
from orin_rerank.lifecycle.export_profile import image_profile
from orin_rerank.lifecycle.sizes import VISION_PATCHES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orin_rerank.engines.memory_plan import MemoryPlan, ModelSize
    from orin_rerank.engines.tensorrt.builder import BuildReport
    from orin_rerank.engines.tensorrt.job import Watch
    from orin_rerank.engines.tensorrt.profiles import ShapeProfile
    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.graph.builder import Precision

TARGET: Final = "SM86"

needs_compiler = pytest.mark.skipif(
    platform.machine() != "x86_64" or importlib.util.find_spec("tensorrt_rtx") is None,
    reason="compiling needs x86-64 and the tensorrt-rtx wheels: make test-compile",
)

SAMPLES: Final = {"samples": Extent(64, 64, 64)}
"""What an observed graph is given besides."""


def text_ladder(architecture: Architecture, tokens: int = 64, budget: int = 64) -> tuple[ShapeProfile, ...]:
    capacity = PackCapacity.of_model(architecture, tokens=tokens, documents=64, product_dtype=np.float16)
    return tuple(map(_with_samples, text_profiles(capacity, budget)))


def vision_ladder(architecture: Architecture, max_pixels: int = 112 * 112) -> tuple[ShapeProfile, ...]:
    vision = architecture.vision
    assert vision is not None
    image = image_profile(vision, 4096, max_pixels)
    return tuple(map(_with_samples, vision_profiles(image, 256)))


def _with_samples(profile: ShapeProfile) -> ShapeProfile:
    return dataclasses.replace(profile, extents={**profile.extents, **SAMPLES})


def compile_graph(
    graph: Path,
    out: Path,
    profiles: Sequence[ShapeProfile],
    *,
    weights: Path | None = None,
    level: int = 0,
    watch: Watch = lambda _event: None,
) -> BuildReport:
    """Compiles in a process of its own, as the daemon does."""
    job = BuildJob(
        graph,
        out / f"{graph.name}.plan",
        tuple(profiles),
        workspace_bytes=1 << 30,
        weights=weights,
        level=level,
        target=TARGET,
    )
    return PlanBuilder().build(job, watch)


def serving_plan(model: ModelSize, precision: Precision) -> MemoryPlan:
    """What the largest board serves a model with."""
    budget = MemoryBudget.of_machine(BOARDS["agx-orin-64"])
    return plan_memory(model, precision, EngineKind.TENSORRT, budget, EngineSettings())


def serving_profiles(plan: MemoryPlan) -> tuple[tuple[ShapeProfile, ...], tuple[ShapeProfile, ...]]:
    """Those of text and of vision that a plan is served with."""
    assert plan.image is not None
    return text_profiles(plan.capacity, plan.token_budget), vision_profiles(plan.image, VISION_PATCHES)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler said of a graph.

    Attributes:
        scratch: Scratch memory that each profile asks for, in bytes.
        kernels: Names of what is launched, for the last profile that was compiled.
        layers: Of the network.
        plan_bytes: Size of the plan.
        seconds: How long it took.
        peak_bytes: Most memory that this process has ever had.
    """

    scratch: tuple[int, ...]
    kernels: tuple[str, ...]
    layers: int
    plan_bytes: int
    seconds: float
    peak_bytes: int


def compile_here(
    graph: Path, profiles: Sequence[ShapeProfile], *, level: int = 0, weights: Path | None = None
) -> Compiled:
    """Compiles in this process, where everything that the compiler says can be heard."""
    # Only with the wheels is there something to import.
    from orin_rerank.engines.tensorrt.api import choose_target, trt
    from orin_rerank.engines.tensorrt.network import add_profiles, parse_network

    class Listener(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.scratch: list[int] = []
            self.kernels: list[str] = []

        def log(self, _severity: Any, msg: str) -> None:
            if found := re.fullmatch(r"Total Activation Memory: (\d+) bytes", msg):
                self.scratch.append(int(found[1]))
            self.kernels += re.findall(r"^Name: ([^,]+), LayerType: ", msg, re.MULTILINE)

    begin = time.monotonic()
    listener = Listener()
    parsed = parse_network(graph, weights, listener)
    config = parsed.builder.create_builder_config()
    choose_target(config, TARGET)
    config.builder_optimization_level = level
    config.max_aux_streams = 0
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    add_profiles(parsed, config, profiles)
    plan = parsed.builder.build_serialized_network(parsed.network, config)
    assert plan is not None, listener.kernels
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Compiled(
        tuple(listener.scratch),
        tuple(listener.kernels),
        parsed.network.num_layers,
        plan.nbytes,
        time.monotonic() - begin,
        peak,
    )
