"""The TensorRT that is installed, ready to run plans. Importing this needs the bindings."""

from __future__ import annotations

import functools

from orin_rerank.engines.tensorrt.api import trt
from orin_rerank.engines.tensorrt.journal import Journal
from orin_rerank.engines.tensorrt.network import BuildLogger
from orin_rerank.engines.tensorrt.runtime import PlanRuntime

__all__ = ["installed_runtime"]


@functools.cache
def installed_runtime() -> PlanRuntime:
    """The process's one runtime: TensorRT keeps the first logger that it is given for all that come later."""
    journal = Journal()
    return PlanRuntime(trt.Runtime(BuildLogger(journal.say)), trt.ExecutionContextAllocationStrategy, journal)
