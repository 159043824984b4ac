"""The rungs of the ladder that loading goes down: what computes, and in which precision.

Loading one may end the process: the kernel's OOM killer takes it, a driver crashes, a GPU is lost. The ladder itself
cannot know, so whoever loads again and again may give it a `Try`, which notes what is tried and may say no.
"""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING, Final

from orin_rerank.graph.builder import Precision

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import TypeAlias

__all__ = ["Rung", "Try", "try_any"]


class Rung(str, enum.Enum):
    """One of them, in their order, by the name that the journal has for it."""

    INT8_CHECK = "load-int8-check"
    """The installed INT8 engine is read and verified; what follows may be computed in INT8."""
    TENSORRT_INT8 = "load-tensorrt-int8"
    TENSORRT_FULL = "load-tensorrt-full"
    GPU_FULL = "load-onnxruntime-gpu"
    PROCESSOR_INT8 = "load-processor-int8"
    PROCESSOR_FULL = "load-processor-full"

    @property
    def engine(self) -> str:
        """What computes, for people."""
        return _ENGINES[self][0]

    @property
    def precision(self) -> Precision:
        """In which precision."""
        return _ENGINES[self][1]

    def __str__(self) -> str:
        return f"{self.engine} ({self.precision.value})"


_ENGINES: Final = {
    Rung.INT8_CHECK: ("the check of the INT8 engine", Precision.INT8),
    Rung.TENSORRT_INT8: ("TensorRT", Precision.INT8_FP16),
    Rung.TENSORRT_FULL: ("TensorRT", Precision.FP16),
    Rung.GPU_FULL: ("ONNX Runtime", Precision.FP16),
    Rung.PROCESSOR_INT8: ("the processor", Precision.INT8),
    Rung.PROCESSOR_FULL: ("the processor", Precision.FP32),
}

if TYPE_CHECKING:
    Try: TypeAlias = Callable[[Rung], AbstractContextManager[None]]
    """Lends the context in which a rung is tried; raises EngineError where it is to be left out."""


def try_any(_: Rung) -> AbstractContextManager[None]:
    """Leaves none out."""
    return contextlib.nullcontext()
