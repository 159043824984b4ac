"""Compiles what a bundle needs on TensorRT and installs it: one set of plans for each precision it can be served in.

::

    bundle, and its INT8 engine if one passed its gate
      -> the graphs in TensorRT's dialect, in float16 and in INT8
      -> profiles for the sizes that serving has
      -> the key; where plans of this key are installed and whole, there is nothing to do
      -> plan after plan, each in a process of its own; what is finished survives an interruption
      -> INT8 has to pass its gate once more, on this GPU (`lifecycle.plan_judging`)
      -> installed as a set, in place of the one before

INT8 comes first: it needs less memory, and is what is served. What its gate refuses is installed with the record that
says why, for the daemon to pass it over, unless plans for the same key that passed are in service: then those stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.errors import (
    BuildCancelledError,
    BuildError,
    BuildOutOfMemoryError,
    BundleError,
    CalibrationError,
    DatasetError,
    MemoryShortError,
    RefusedPrecisionError,
    SettingsError,
)
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.compilation import Compilation, CompiledEngine, CompileSpectator
from orin_rerank.lifecycle.plan_work import EngineToCompile, PlanToCompile, engine_to_compile
from orin_rerank.lifecycle.precision import HOW_TO_GET_INT8, find_int8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.host_memory import HostMemory
    from orin_rerank.engines.plan_store import PlanStore
    from orin_rerank.engines.store import EngineStore
    from orin_rerank.engines.tensorrt.builder import PlanBuilder
    from orin_rerank.lifecycle.compile_target import CompileTarget
    from orin_rerank.lifecycle.plan_judging import PlanJudge
    from orin_rerank.lifecycle.precision import TrustedInt8

    OpenJudge: TypeAlias = Callable[[TrustedInt8], PlanJudge]

__all__ = [
    "CompileOptions",
    "CompileSpectator",
    "CompiledEngine",
    "EngineToCompile",
    "PlanToCompile",
    "compile_bundle",
    "engine_to_compile",
]

_LEAST_WORKSPACE: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How to compile, checked when made.

    Attributes:
        settings: What the engine will be served with: plans are for its precision and its token budget.
        workspace_bytes: Scratch memory that a plan may ask for; halved where memory is short. None means what there is
            room for.
        level: How hard to look for fast kernels, from 0 to 5.
        again: Whether to compile what is installed already.

    Raises:
        SettingsError: If a value is out of its range; the item names it.
    """

    settings: EngineSettings = field(default_factory=EngineSettings)
    workspace_bytes: int | None = None
    level: int = 3
    again: bool = False

    def __post_init__(self) -> None:
        if self.workspace_bytes is not None and self.workspace_bytes < _LEAST_WORKSPACE:
            raise SettingsError(f"must be {_LEAST_WORKSPACE >> 20} MiB or more", item="workspace")
        if not 0 <= self.level <= 5:
            raise SettingsError(f"must be from 0 to 5, not {self.level}", item="level")


def compile_bundle(
    source: Bundle,
    options: CompileOptions,
    target: CompileTarget,
    engines: EngineStore,
    plans: PlanStore,
    builder: PlanBuilder,
    spectator: CompileSpectator | None = None,
    open_judge: OpenJudge | None = None,
    host_memory: Callable[[], HostMemory] = read_host_memory,
) -> list[CompiledEngine]:
    """Compiles and installs every plan that a bundle, and its INT8 engine if it has one, needs on a GPU.

    What was compiled is kept even if a later plan fails, or the process is interrupted.

    Args:
        source: The full-precision bundle.
        options: How to compile, and which precisions.
        target: What for.
        engines: Where INT8 engines are installed.
        plans: Where plans are.
        builder: Compiles.
        spectator: Told how it gets on.
        open_judge: Makes what judges INT8 plans, as a rule by `PlanJudge.open`; what is not judged is not served. Not
            called where plans are for another GPU.
        host_memory: Says how much memory there is to compile in.

    Returns:
        What is installed now, INT8 plans that were refused among them.

    Raises:
        BundleError: If the bundle is altered, an INT8 one itself, or has no graphs for TensorRT.
        RefusedPrecisionError: If INT8 was asked for and there is none that can be trusted, or its plans are refused.
        DatasetError, CalibrationError: If INT8 was asked for, and there is nothing to judge it by.
        DeviceLostError: If the GPU is lost while plans are judged.
        MemoryShortError: If a precision that was asked for, or each of them, does not fit on this machine.
        BuildError: If a plan could not be compiled; see `PlanBuilder.build`. Unless memory ran out, the other precision
            was compiled all the same.
        StoreError: If plans cannot be written, or another process is compiling for this bundle.
    """
    spectator = spectator or CompileSpectator()
    if source.manifest.source is not None:
        raise BundleError("is an INT8 engine; name the bundle that it was made from", item=str(source.folder))
    wanted = options.settings.precision
    found = list(_bundles(source, wanted, engines, spectator))
    if target.sibling is None and open_judge is not None:
        found = [one for one in found if _can_be_judged(one, open_judge, wanted, spectator)]
    todo = _that_fit(found, options, target, plans, spectator)
    spectator.on_work([work for _, work in todo])
    cache = engines.root / "timing" / f"{target.runtime.replace(' ', '-')}.cache"
    makings = [
        Compilation(work, options, target, plans, builder, spectator, cache, one.judge, host_memory)
        for one, work in todo
    ]
    return _made(makings, wanted, spectator)


def _made(makings: Sequence[Compilation], choice: PrecisionChoice, spectator: CompileSpectator) -> list[CompiledEngine]:
    """Makes one set after the other; that one fails need not keep the next from being made."""
    compiled: list[CompiledEngine] = []
    failed: BuildError | None = None
    for making in makings:
        try:
            compiled.append(making.run())
            compiled[-1].check_gate()
        except RefusedPrecisionError as error:  # noqa: PERF203 - two of them at most
            if choice is PrecisionChoice.INT8:
                raise
            spectator.on_warning(str(error))
        except MemoryShortError as error:
            if not compiled:
                raise
            spectator.on_warning(str(error))
        except (BuildCancelledError, BuildOutOfMemoryError):
            raise  # nobody wants the next one now, or it would take more memory still
        except BuildError as error:
            failed = error
            if making is not makings[-1]:
                spectator.on_failure(making.work, error)
    if failed is not None:
        raise failed
    return compiled


@dataclass(slots=True)
class _Found:
    """A bundle whose graphs are to be compiled, verified."""

    bundle: Bundle
    precision: Precision
    int8: TrustedInt8 | None = None
    judge: PlanJudge | None = None


def _bundles(
    source: Bundle, choice: PrecisionChoice, engines: EngineStore, spectator: CompileSpectator
) -> Iterator[_Found]:
    """The bundles whose graphs are to be compiled."""
    if choice is not PrecisionChoice.FULL:
        try:
            int8 = find_int8(source, engines, spectator.on_report)
        except BundleError as error:
            if choice is PrecisionChoice.INT8:
                raise
            spectator.on_warning(f"an INT8 engine is installed, but refused, and is not compiled: {error}")
            int8 = None
        if int8 is not None:
            yield _Found(int8.bundle, Precision.INT8_FP16, int8)
        elif choice is PrecisionChoice.INT8:
            raise RefusedPrecisionError(f"no INT8 engine is installed for this bundle; {HOW_TO_GET_INT8}")
    if choice is not PrecisionChoice.INT8:
        source.verify(spectator.on_report)
        yield _Found(source, Precision.FP16)


def _that_fit(
    found: Iterable[_Found],
    options: CompileOptions,
    target: CompileTarget,
    plans: PlanStore,
    spectator: CompileSpectator,
) -> list[tuple[_Found, EngineToCompile]]:
    """What is to be compiled, without precisions that the machine has no memory to serve; one has to be left."""
    short: MemoryShortError | None = None
    fits = []
    for one in found:
        try:
            fits.append((one, engine_to_compile(one.bundle, one.precision, options.settings, target, plans)))
        except MemoryShortError as error:  # noqa: PERF203 - two of them at most
            short = error
    if short is not None and not fits:
        raise short
    if short is not None:
        spectator.on_warning(f"not everything is compiled: {short}")
    return fits


def _can_be_judged(one: _Found, open_judge: OpenJudge, choice: PrecisionChoice, spectator: CompileSpectator) -> bool:
    """Finds what judges INT8 before hours go into compiling it: without a verdict it would not be served."""
    if one.int8 is None:
        return True
    try:
        one.judge = open_judge(one.int8)
    except (DatasetError, CalibrationError) as error:
        if choice is PrecisionChoice.INT8:
            raise
        spectator.on_warning(f"INT8 is not compiled, since it could not be judged: {error}")
        return False
    return True
