"""What plans are compiled for: the GPU of this machine, or its nearest sibling where there is only a compiler."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.cuda_driver import DeviceInfo
from orin_rerank.engines.tensorrt.bindings import installed_bindings
from orin_rerank.engines.tensorrt.load import plan_key
from orin_rerank.errors import EngineError, GpuMissingError, TensorRtMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orin_rerank.engines.plans import PlanKey
    from orin_rerank.engines.tensorrt.profiles import ShapeProfile

__all__ = ["CompileTarget", "find_target"]

_SIBLING: Final = "SM86"
"""The GPU that TensorRT-RTX is told to compile for: it knows no SM87, which is Orin's."""
_SIBLING_PLATFORM: Final = "none, compiled for tests"


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """What plans are compiled for.

    Attributes:
        runtime: The compiler and its version, such as `tensorrt 10.3.0`.
        device: The GPU.
        sibling: How the compiler calls it, where it is another one than this machine's: such plans are for tests.
    """

    runtime: str
    device: DeviceInfo
    sibling: str | None = None

    def key(
        self,
        *,
        bundle: str,
        precision: str,
        precision_plan: str | None,
        text: Iterable[ShapeProfile],
        vision: Iterable[ShapeProfile],
    ) -> PlanKey:
        """The key of plans for this target; `plan_key` explains the arguments."""
        key = plan_key(
            self.device,
            self.runtime,
            bundle=bundle,
            precision=precision,
            precision_plan=precision_plan,
            text=text,
            vision=vision,
        )
        return key if self.sibling is None else dataclasses.replace(key, platform=_SIBLING_PLATFORM)


def find_target() -> CompileTarget:
    """Finds out what this machine can compile for.

    Where there is TensorRT that is the GPU of this machine. TensorRT-RTX alone, which compiles without a GPU, is there
    for tests, and compiles for a sibling of Orin's GPU.

    Raises:
        TensorRtMissingError: If there is no compiler.
        GpuMissingError: If there is TensorRT, but no GPU.
    """
    if installed_bindings() is None:
        raise TensorRtMissingError("TensorRT is not installed for this Python, so nothing can be compiled here")
    # Loads TensorRT's libraries, and only now is it known that there are any.
    from orin_rerank.engines.tensorrt.api import IS_RTX, RUNTIME  # noqa: PLC0415

    if IS_RTX:
        capability = int(_SIBLING[2]), int(_SIBLING[3])
        return CompileTarget(RUNTIME, DeviceInfo(_SIBLING, capability, False, 0, 0), _SIBLING)
    try:
        cuda = CudaThread()
    except EngineError as error:
        raise GpuMissingError(f"{RUNTIME} finds no GPU to compile for: {error}") from error
    # A context takes memory that the compiler will need, in a process of its own.
    cuda.close()
    return CompileTarget(RUNTIME, cuda.info)
