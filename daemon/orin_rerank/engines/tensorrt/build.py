"""Compiles a graph to a plan, in this process. Whoever cannot afford to be killed calls `PlanBuilder` instead."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.durable import replace_file
from orin_rerank.engines.host_memory import peak_bytes
from orin_rerank.engines.tensorrt.api import IS_RTX, RUNTIME, choose_target, trt
from orin_rerank.engines.tensorrt.job import (
    BuildDone,
    BuilderSaid,
    PhaseFinished,
    PhaseStarted,
    StepDone,
)
from orin_rerank.engines.tensorrt.network import BuildLogger, add_profiles, parse_network
from orin_rerank.engines.tensorrt.symptoms import advice_on, lacks_memory
from orin_rerank.engines.tensorrt.timing_cache import attach_timing_cache, keep_timing_cache
from orin_rerank.errors import BuildCancelledError, BuildError, BuildOutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.engines.tensorrt.job import BuildJob, Watch

__all__ = ["build_plan"]


@dataclass(slots=True)
class _Said:
    """What the compiler said that tells why there is no plan.

    A warning counts where memory is concerned: the compiler passes over kernels that get none, and fails in the end
    because none is left.
    """

    last_error: str = ""
    short_of_memory: str = ""

    def note(self, severity: str, text: str) -> None:
        if severity != trt.ILogger.Severity.WARNING.name:
            self.last_error = text
        if not self.short_of_memory and lacks_memory(text):
            self.short_of_memory = text


class _Monitor(trt.IProgressMonitor):
    """Passes progress on, and asks TensorRT to stop. Called from its threads."""

    def __init__(self, watch: Watch, cancelled: Callable[[], bool]) -> None:
        trt.IProgressMonitor.__init__(self)
        self._watch = watch
        self._cancelled = cancelled

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        self._watch(PhaseStarted(phase_name, parent_phase, num_steps))

    def step_complete(self, phase_name: str, step: int) -> bool:
        self._watch(StepDone(phase_name, step))
        return not self._cancelled()

    def phase_finish(self, phase_name: str) -> None:
        self._watch(PhaseFinished(phase_name))


def build_plan(job: BuildJob, watch: Watch, cancelled: Callable[[], bool]) -> BuildDone:
    """Compiles a graph and writes the plan.

    Args:
        job: What to compile.
        watch: Told of every phase and step, and what the compiler warns of; called from its threads.
        cancelled: Whether to stop; asked after each step.

    Raises:
        GraphRefusedError: If the graph cannot be read, or the compiler does not take it.
        BuildCancelledError: If `cancelled` said so.
        BuildOutOfMemoryError: If the compiler says that it ran out of memory.
        BuildError: If it fails otherwise, or the plan cannot be written.
    """
    begin = time.monotonic()
    said = _Said()

    def say(severity: str, text: str) -> None:
        said.note(severity, text)
        watch(BuilderSaid(severity, text))

    logger = BuildLogger(say)
    monitor = _Monitor(watch, cancelled)
    parsed = parse_network(job.graph, job.weights, logger)
    config = _configured(parsed.builder, job)
    config.progress_monitor = monitor
    add_profiles(parsed, config, job.profiles)
    cache_used = False
    if job.timing_cache is not None and not IS_RTX:
        cache_used = attach_timing_cache(config, job.timing_cache)
    plan = parsed.builder.build_serialized_network(parsed.network, config)
    if job.timing_cache is not None and not IS_RTX:
        keep_timing_cache(config, job.timing_cache)  # after a failure too: what was measured holds
    if plan is None:
        raise _failure(job, said, was_cancelled=cancelled())
    try:
        replace_file(job.plan, memoryview(plan))
    except OSError as error:
        advice = advice_on(error.strerror or "")
        raise BuildError(f"the plan cannot be written: {error.strerror}", item=str(job.plan), advice=advice) from error
    seconds = time.monotonic() - begin
    return BuildDone(RUNTIME, plan.nbytes, parsed.network.num_layers, seconds, peak_bytes(), cache_used)


def _configured(builder: trt.Builder, job: BuildJob) -> trt.IBuilderConfig:
    config = builder.create_builder_config()
    choose_target(config, job.target)
    config.builder_optimization_level = job.level
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, job.workspace_bytes)
    # Ampere would round the inputs of float32 products to 10 bits of mantissa: the head is float32 for its ties' sake.
    config.clear_flag(trt.BuilderFlag.TF32)
    # The deep learning accelerator takes no graph like these, and a layer sent there would come back by a copy.
    config.default_device_type = trt.DeviceType.GPU
    # A graph is one chain of products. What little could run beside it is not worth the memory of a second stream.
    config.max_aux_streams = 0
    return config


def _failure(job: BuildJob, said: _Said, *, was_cancelled: bool) -> BuildError:
    """What became of a build without a plan."""
    if was_cancelled:
        return BuildCancelledError("the build was cancelled", item=job.graph.name)
    if said.short_of_memory:
        return BuildOutOfMemoryError(f"{RUNTIME} ran out of memory: {said.short_of_memory}", item=job.graph.name)
    why = said.last_error or "it does not say why"
    return BuildError(f"{RUNTIME} compiled no plan: {why}", item=job.graph.name, advice=advice_on(why))
