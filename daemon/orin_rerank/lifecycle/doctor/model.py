"""The model: its bundle, the INT8 engine made from it, and whether compiled plans are for this machine as it is now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orin_rerank.board.module import identify_board
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.settings import DeviceChoice, PrecisionChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.errors import BundleError, MemoryShortError, PlanError
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.accelerators import HOW_TO_GET_PLANS, installed_plans
from orin_rerank.lifecycle.compile_target import CompileTarget
from orin_rerank.lifecycle.doctor.finding import Check, fail, ok, warn
from orin_rerank.lifecycle.doctor.reach import MAY_READ, out_of_reach
from orin_rerank.lifecycle.inventory import Item, Kind, take_inventory

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.finding import Finding

__all__ = ["CHECKS", "inventory_of"]

_SUBJECT: Final = "model"


def inventory_of(context: Context) -> list[Item]:
    """What bundles, engines and plans there are.

    Raises:
        StoreError: If the stores cannot be read.
    """
    bundle = None
    if context.bundle is not None:
        try:
            bundle = Bundle.open(context.bundle)
        except BundleError:
            bundle = None  # `check_bundle` tells; there may be engines all the same
    return take_inventory(bundle, EngineStore(context.state), PlanStore(context.state))


def check_bundle(paths: BoardPaths, context: Context) -> Finding:
    """Whether there is a bundle that the daemon can read; its files are not compared with its manifest."""
    if context.bundle is None:
        return fail(context.bundle_problem or "none is installed", command="orin-rerank export --help")
    try:
        bundle = Bundle.open(context.bundle)
    except BundleError as error:
        return fail(
            str(error),
            "copy or export it again, or name another in [model] bundle of the settings",
            f"orin-rerank bundle verify {context.bundle}",
        )
    missing = [name for name in bundle.manifest.files if not (bundle.folder / name).is_file()]
    if missing:
        return fail(f"{bundle.folder} lacks {', '.join(missing[:3])}", "copy or export it again")
    if (shut := out_of_reach(paths, context, bundle.folder, MAY_READ)) is not None:
        return shut
    unreadable = [name for name in bundle.manifest.files if not _may_read(context, bundle.folder / name)]
    if unreadable:
        return fail(
            f"{context.daemon_user.name} may not read {', '.join(unreadable[:3])} in {bundle.folder}",
            command=f"sudo chmod -R a+rX {bundle.folder}",
        )
    return ok(f"{bundle.manifest.name} ({bundle.digest[:12]})")


def _may_read(context: Context, file: Path) -> bool:
    return context.daemon_user.may(4, file.stat())


def check_sets(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether the daemon can read what it makes INT8 from, and has it judged by."""
    if not context.sets or not context.engine.may_serve(int8=True):
        return None
    for what, folder in context.sets.items():
        try:
            shut = out_of_reach(paths, context, folder, MAY_READ)
        except FileNotFoundError as error:
            return fail(
                f"there is no {what} at {folder}: {error.filename} is missing",
                "put it there, or name another in [first_boot] of the settings",
            )
        if shut is not None:
            return shut
    return ok(" and ".join(context.sets))


def check_int8(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether there is an INT8 engine that passed its gate."""
    if context.bundle is None or not context.engine.may_serve(int8=True):
        return None
    engines = [item for item in inventory_of(context) if item.kind is Kind.INT8 and item.current]
    digest = Bundle.open(context.bundle).digest
    mine = next((item for item in engines if item.made_from == digest), None)
    calibrate = context.as_root("orin-rerank calibrate")
    if mine is None:
        jetson = identify_board(paths).is_jetson
        if jetson or context.engine.precision is PrecisionChoice.INT8:
            return warn("there is none for this bundle: full precision is served", command=calibrate)
        return ok(f"there is none for this bundle; `{calibrate}` makes one")
    if mine.problem is not None:
        return warn(f"cannot be read: {mine.problem}", "full precision is served", calibrate)
    if mine.gate != "passed":
        return warn(f"its gate says: {mine.gate}", "full precision is served", calibrate)
    return ok(f"{mine.digest[:12]}, gate passed")


def check_plans(_: BoardPaths, context: Context) -> Finding | None:
    """Whether plans are compiled for this machine as it is: its GPU, its TensorRT, its system, its settings."""
    probe = context.probe
    if context.bundle is None or probe.tensorrt is None or context.engine.device is DeviceChoice.CPU:
        return None
    if probe.gpu is None or probe.tensorrt.startswith("tensorrt_rtx"):
        return None
    target = CompileTarget(probe.tensorrt, probe.gpu)
    bundle = Bundle.open(context.bundle)
    wanted = [(bundle, Precision.FP16)] if context.engine.may_serve(int8=False) else []
    int8 = EngineStore(context.state).quantized(bundle.digest) if context.engine.may_serve(int8=True) else None
    if int8 is not None:
        wanted.append((Bundle.open(int8), Precision.INT8_FP16))
    if not wanted:
        return None
    store, problems = PlanStore(context.state), []
    for source, precision in wanted:
        try:
            installed_plans(source, precision, context.engine, target, store)
        except (PlanError, MemoryShortError) as error:  # noqa: PERF203 - two times at most
            problems.append(str(error).removesuffix(f"; {HOW_TO_GET_PLANS}"))
    if problems:
        build = context.as_root("orin-rerank build")
        return warn("; ".join(problems), "the daemon computes without them, slower", build)
    return ok(f"{' and '.join(precision.value for _, precision in wanted)}, for this machine as it is")


def check_damage(_: BoardPaths, context: Context) -> Finding | None:
    """Whether something in the stores cannot be read."""
    damaged = [item for item in inventory_of(context) if item.problem is not None and item.kind is Kind.PLANS]
    if not damaged:
        return None
    first = damaged[0]
    return warn(f"plans cannot be read: {first.problem}", "compile them again", context.as_root("orin-rerank build"))


CHECKS: Final = (
    Check(_SUBJECT, "bundle", check_bundle),
    Check(_SUBJECT, "sets", check_sets),
    Check(_SUBJECT, "INT8 engine", check_int8),
    Check(_SUBJECT, "plans", check_plans),
    Check(_SUBJECT, "damage", check_damage),
)
