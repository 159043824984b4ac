"""What can go wrong where a model is computed and compiled, and with the board beneath."""

from __future__ import annotations

from typing import ClassVar

from orin_rerank.errors.base import ErrorKind, OrinRerankError

__all__ = [
    "BoardBusyError",
    "BoardError",
    "BuildCancelledError",
    "BuildError",
    "BuildOutOfMemoryError",
    "BuildTimeoutError",
    "DeviceLostError",
    "EngineClosedError",
    "EngineError",
    "GpuMissingError",
    "GraphRefusedError",
    "MemoryShortError",
    "NonFiniteScoreError",
    "PoolExhaustedError",
    "RebootNeededError",
    "SelfTestError",
    "TensorRtMissingError",
]


class EngineError(OrinRerankError):
    """An engine failed."""

    kind = ErrorKind.INTERNAL
    code = "engine"


class NonFiniteScoreError(EngineError):
    """An engine gave a margin that is NaN or infinite."""

    code = "non_finite_score"


class PoolExhaustedError(EngineError):
    """No buffer became free within the deadline."""

    kind = ErrorKind.OVERLOADED
    code = "pool_exhausted"


class DeviceLostError(EngineError):
    """The GPU made an error after which it computes nothing right in this process; only a new process can use it."""

    kind = ErrorKind.UNAVAILABLE
    code = "device_lost"


class EngineClosedError(EngineError):
    """Something was asked of an engine, or of the GPU beneath it, that is closed or being closed."""

    kind = ErrorKind.UNAVAILABLE
    code = "engine_closed"


class SelfTestError(EngineError):
    """A loaded model does not reproduce its golden pairs."""

    code = "self_test"


class TensorRtMissingError(EngineError):
    """The TensorRT bindings are not installed, or cannot be imported."""

    kind = ErrorKind.UNAVAILABLE
    code = "tensorrt_missing"


class GpuMissingError(EngineError):
    """There is no GPU that could be compiled for or computed on, or nothing to reach it by."""

    kind = ErrorKind.UNAVAILABLE
    code = "gpu_missing"


class MemoryShortError(EngineError):
    """A model does not fit into the memory that there is, or that is free.

    Args:
        message: One sentence for a person: what is needed, what there is, and what helps.
        needed_bytes: The least that is needed.
        available_bytes: What there is, or what is free.
    """

    kind = ErrorKind.UNAVAILABLE
    code = "memory_short"

    def __init__(self, message: str, *, needed_bytes: int, available_bytes: int, item: str | None = None) -> None:
        super().__init__(message, item=item)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class BuildError(EngineError):
    """A graph was not compiled to a plan; the item names it.

    Args:
        message: One sentence for a person.
        item: The graph, and its node where one is known.
        advice: What to do about it; None means what helps with this kind of error as a rule.

    Attributes:
        advice: The same.
    """

    code = "build"
    usual_advice: ClassVar[str] = (
        "what is compiled is kept, and the same command goes on from there; if it ends so again, try another --level"
    )

    def __init__(self, message: str, *, item: str | None = None, advice: str | None = None) -> None:
        super().__init__(message, item=item)
        self.advice = advice or self.usual_advice


class GraphRefusedError(BuildError):
    """The compiler does not take a graph; the item names graph and node, the message the operator."""

    kind = ErrorKind.DATA
    code = "graph_refused"
    usual_advice = (
        "`orin-rerank export` writes a bundle's graphs anew, and `orin-rerank calibrate` those of its INT8 engine; if "
        "one is refused still, report this line"
    )


class BuildOutOfMemoryError(BuildError):
    """Memory ran out while a graph was compiled."""

    kind = ErrorKind.OVERLOADED
    code = "build_out_of_memory"
    usual_advice = (
        "stop other programs that use memory, add swap, or compile for shorter packs (--token-budget, --max-tokens); a "
        "restart frees what the GPU's allocator keeps back. What is compiled is kept"
    )


class BuildTimeoutError(BuildError):
    """Compiling took too long, or did not move any more."""

    kind = ErrorKind.DEADLINE
    code = "build_timeout"
    usual_advice = (
        "a board that is short of memory may hang rather than fail: stop other programs, or add swap; a lower --level "
        "takes less time. What is compiled is kept"
    )


class BuildCancelledError(BuildError):
    """Compiling was cancelled."""

    kind = ErrorKind.UNAVAILABLE
    code = "build_cancelled"
    usual_advice = "what is compiled is kept, and the same command goes on from there"


class BoardError(OrinRerankError):
    """Power mode, clocks or a file of the board is not as it must be; names the file, mode or program."""

    kind = ErrorKind.DATA
    code = "board"


class BoardBusyError(BoardError):
    """The board does not take a setting yet, as happens early at boot; the same may succeed later."""

    kind = ErrorKind.UNAVAILABLE
    code = "board_busy"


class RebootNeededError(BoardError):
    """A power mode takes effect only when the board is started again."""

    kind = ErrorKind.UNAVAILABLE
    code = "reboot_needed"
