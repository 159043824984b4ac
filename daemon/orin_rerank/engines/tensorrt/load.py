"""From plans on disk to an engine; and the key that plans of this machine, as it is set up now, are kept under."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.plans import PlanKey
from orin_rerank.engines.tensorrt.engine import TensorRtEngine
from orin_rerank.engines.tensorrt.profiles import profiles_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orin_rerank.engines.cuda import CudaThread
    from orin_rerank.engines.cuda_driver import DeviceInfo, Driver
    from orin_rerank.engines.plans import PlanSet
    from orin_rerank.engines.pool import PackCapacity
    from orin_rerank.engines.tensorrt.profiles import ShapeProfile
    from orin_rerank.engines.tensorrt.runtime import LoadedPlan, PlanRuntime
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["L4T_RELEASE", "TEXT_PLAN", "VISION_PLAN", "load_engine", "plan_key", "platform_release"]

TEXT_PLAN: Final = "text.plan"
VISION_PLAN: Final = "vision.plan"

L4T_RELEASE: Final = Path("/etc/nv_tegra_release")
"""Where a Jetson says which release of its board support package it runs."""

_L4T: Final = re.compile(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)")


def platform_release(device: DeviceInfo, release: Path = L4T_RELEASE) -> str:
    """What lies beneath CUDA: `L4T 36.4.7` on a Jetson, elsewhere the CUDA version of the driver.

    Args:
        device: The GPU.
        release: The file that a Jetson has.
    """
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if found := _L4T.search(text):
        return f"L4T {found[1]}.{found[2]}"
    return f"CUDA driver {device.driver_version // 1000}.{device.driver_version % 1000 // 10}"


def plan_key(
    device: DeviceInfo,
    runtime: str,
    *,
    bundle: str,
    precision: str,
    precision_plan: str | None,
    text: Iterable[ShapeProfile],
    vision: Iterable[ShapeProfile] = (),
    release: Path = L4T_RELEASE,
) -> PlanKey:
    """The key of a bundle's plans on this machine.

    Args:
        device: The GPU.
        runtime: TensorRT and its version, as `engines.tensorrt.api` has it.
        bundle: Digest of the bundle.
        precision: What its graphs compute in.
        precision_plan: SHA-256 of the plan by which places are INT8 or wide, None for graphs in one precision.
        text: Profiles of the decoder.
        vision: Profiles of the vision encoder.
        release: The file by which a Jetson tells its release.
    """
    return PlanKey(
        bundle=bundle,
        runtime=runtime,
        gpu=device.name,
        compute_capability=".".join(map(str, device.compute_capability)),
        multiprocessors=device.multiprocessors,
        platform=platform_release(device, release),
        precision=precision,
        precision_plan=precision_plan,
        profiles=profiles_digest([*text, *vision]),
    )


def load_engine(
    plans: PlanSet,
    cuda: CudaThread,
    open_runtime: Callable[[], PlanRuntime],
    image: ImageProfile | None,
    capacity: PackCapacity,
    *,
    slots: int,
    pool_timeout_s: float,
    check: Callable[[LoadedPlan], None] = lambda _: None,
) -> TensorRtEngine:
    """Loads plans and makes an engine of them.

    Args:
        plans: The plans, whose key fits this machine: `PlanStore.find` saw to it.
        cuda: The GPU, which the engine closes, or this function where it fails.
        open_runtime: Makes TensorRT ready; called in the CUDA thread. As a rule `installed.installed_runtime`.
        image: How the model takes images; None for a text-only model, which has no vision plan.
        capacity: Of each buffer.
        slots: Packs in flight at a time.
        pool_timeout_s: How long a pack waits for a buffer.
        check: Given the decoder's plan before anything is computed with it; what it raises is raised.

    Raises:
        PlanError: If a plan is damaged, TensorRT does not take it, or it does not fit model and buffers.
        EngineError: If memory runs out.
        DeviceLostError: If the GPU is gone.
    """

    def open_(_: Driver) -> PlanRuntime:
        runtime = open_runtime()
        cuda.at_end(runtime.close)
        return runtime

    def load(runtime: PlanRuntime, name: str) -> LoadedPlan:
        with plans.open(name) as mapping:
            plan = cuda.call(lambda _: runtime.load(mapping, name))
        cuda.at_end(plan.free)
        return plan

    try:
        runtime = cuda.call(open_)
        text = load(runtime, TEXT_PLAN)
        cuda.call(lambda _: check(text))
        vision = None if image is None else load(runtime, VISION_PLAN)
    except BaseException:
        cuda.close()
        raise
    return TensorRtEngine(
        cuda,
        text,
        vision,
        image,
        capacity,
        slots=slots,
        precision=plans.manifest.key.precision,
        pool_timeout_s=pool_timeout_s,
    )
