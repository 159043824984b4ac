"""Compiles graphs for SM86, the nearest sibling of Orin's SM87, with TensorRT-RTX, which needs no GPU for it."""

from __future__ import annotations

import importlib.util
import platform
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest

from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.tensorrt.builder import PlanBuilder
from orin_rerank.engines.tensorrt.job import BuildJob
from orin_rerank.engines.tensorrt.profiles import Extent, text_profiles, vision_profiles
from orin_rerank.prompt.profile import ImageProfile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orin_rerank.engines.tensorrt.builder import BuildReport
    from orin_rerank.engines.tensorrt.job import Watch
    from orin_rerank.engines.tensorrt.profiles import ShapeProfile
    from orin_rerank.graph.architecture import Architecture

TARGET: Final = "SM86"

needs_compiler = pytest.mark.skipif(
    platform.machine() != "x86_64" or importlib.util.find_spec("tensorrt_rtx") is None,
    reason="compiling needs x86-64 and the tensorrt-rtx wheels: make test-compile",
)

SAMPLES: Final = {"samples": Extent(64, 64, 64)}
"""What an observed graph is given besides."""


def text_ladder(architecture: Architecture, tokens: int = 64, budget: int = 64) -> tuple[ShapeProfile, ...]:
    capacity = PackCapacity.of_model(architecture, tokens=tokens, documents=64, key_value_dtype=np.float16)
    return tuple(profile.with_extents(SAMPLES) for profile in text_profiles(capacity, budget))


def vision_ladder(architecture: Architecture, max_pixels: int = 224 * 224) -> tuple[ShapeProfile, ...]:
    vision = architecture.vision
    assert vision is not None
    image = ImageProfile(
        patch_size=vision.patch_size,
        temporal_patch_size=vision.temporal_patch_size,
        merge_size=vision.merge_size,
        position_grid=vision.position_grid,
        head_dim=vision.head_dim,
        rope_theta=vision.rope_theta,
        min_pixels=4096,
        max_pixels=max_pixels,
    )
    return tuple(profile.with_extents(SAMPLES) for profile in vision_profiles(image, 256))


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
