"""What errors of CUDA, and of the libraries over it, mean, and what they hold."""

from __future__ import annotations

import re
import traceback
from typing import Final

from orin_rerank.errors import DeviceLostError, EngineError

__all__ = ["as_engine_error", "is_device_lost", "let_go"]

_LOST: Final = re.compile(
    # Each is a state from which a context does not come back (cuda.h says of them "the context cannot be used" or
    # "must be destroyed"), in the driver's words, by the enumerators' names, or by the runtime's number as ONNX
    # Runtime gives it. Running out of memory (2), a bad argument (1) or a busy device are not among them.
    r"illegal memory access|an illegal instruction|misaligned address|unspecified launch failure|launch timed out"
    r"|hardware stack error|invalid program counter|operation not supported on global/shared address space"
    r"|device-side assert|uncorrectable|context is destroyed|GPU is lost|fallen off the bus|device (is |was )?lost"
    r"|external device not ready|unload of CUDA|driver shutting down|tensor memory leak|contained error"
    r"|ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|MISALIGNED_ADDRESS|LAUNCH_FAILED|LAUNCH_TIMEOUT|HARDWARE_STACK_ERROR"
    r"|INVALID_PC|INVALID_ADDRESS_SPACE|CUDA_ERROR_ASSERT|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|CONTEXT_IS_DESTROYED"
    r"|CUDA_ERROR_DEINITIALIZED|CUDA_ERROR_UNKNOWN"
    r"|CUDA (?:failure|error)[ :]+(?:4|214|220|226|700|702|709|710|714|715|716|717|718|719|721|999)\b",
    re.IGNORECASE,
)


def is_device_lost(message: str) -> bool:
    """Whether a message of CUDA's, ONNX Runtime's or TensorRT's means that the context computes nothing right again."""
    return _LOST.search(message) is not None


def as_engine_error(error: Exception, what: str) -> EngineError:
    """A foreign library's error as the project's.

    Args:
        error: The error; its text decides whether the GPU is lost.
        what: What failed, for people.
    """
    kind = DeviceLostError if is_device_lost(str(error)) else EngineError
    typed = kind(f"{what}: {error}")
    typed.__cause__ = error
    return typed


def let_go(error: BaseException) -> None:
    """Frees what the frames of an error hold.

    Otherwise what they made of the GPU would go when the error does: later than what it needs, and in any thread.
    """
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        current = found.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            traceback.clear_frames(current.__traceback__)
            found += [current.__cause__, current.__context__]
