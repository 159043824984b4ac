"""The TensorRT that is installed, ready to run plans. Importing this needs the bindings."""

from __future__ import annotations

import functools
from typing import Final

from orin_rerank.engines.tensorrt.api import trt
from orin_rerank.engines.tensorrt.journal import Journal
from orin_rerank.engines.tensorrt.network import BuildLogger
from orin_rerank.engines.tensorrt.runtime import PlanRuntime

__all__ = ["installed_runtime"]


_JOURNAL: Final = Journal()


def installed_runtime() -> PlanRuntime:
    """A new runtime, for the CUDA context of the calling thread; it must be closed before that is popped.

    A runtime holds what it took of the context that it was made in, so none outlives it: when the last of a process's
    contexts goes, the driver resets the device's primary one.
    """
    return PlanRuntime(trt.Runtime(_logger()), trt.ExecutionContextAllocationStrategy, _JOURNAL)


@functools.cache
def _logger() -> BuildLogger:
    """The process's one logger: TensorRT keeps the first that it is given for all that come later."""
    return BuildLogger(_JOURNAL.say)
