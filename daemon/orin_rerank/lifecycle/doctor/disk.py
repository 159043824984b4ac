"""The disk that engines are kept on: whether it takes them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.settings import DeviceChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.doctor.finding import Check, fail, ok, warn
from orin_rerank.lifecycle.doctor.reach import MAY_WRITE, out_of_reach, shut_by_unit
from orin_rerank.lifecycle.first_boot.preflight import engine_disk_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.finding import Finding

__all__ = ["CHECKS", "missing_bytes"]

_SUBJECT: Final = "memory and disk"
_RESERVE: Final = 256 << 20
"""What should stay free whatever is made: journals, updates, the system's own."""
_MORE: Final = "remove something, or keep engines on another disk: [model] state in the settings"


def check_state_folder(paths: BoardPaths, context: Context) -> Finding:
    """Whether the daemon may write to its state folder."""
    user, there = context.daemon_user, _nearest(context.state)
    try:
        if os.statvfs(there).f_flag & os.ST_RDONLY:
            return fail(f"{context.state} is on a file system that is read-only", "mount it writable, or name another")
        shut = shut_by_unit(paths, context.state) or out_of_reach(paths, context, there, MAY_WRITE)
    except PermissionError:
        raise
    except OSError as error:
        return fail(f"{there} cannot be looked at: {error.strerror}")
    if shut is None:
        return ok(f"{context.state}" + ("" if there == context.state else ", which is made when it is needed"))
    if there == context.state or shut.remedy is not None:
        return shut
    return fail(f"{user.name} cannot make {context.state}", f"{there} belongs to somebody else")


def check_room(_: BoardPaths, context: Context) -> Finding:
    """Whether the engines that are still to be made have room."""
    there = _nearest(context.state)
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return fail(f"{there} cannot be asked how much is free: {error.strerror}")
    text = f"{free / 1e6:,.0f} MB free"
    if free < _RESERVE:
        return fail(f"only {text}", _MORE)
    missing = missing_bytes(context)
    if free < missing + _RESERVE:
        return warn(f"{text}; engines that are still to be made take {missing / 1e6:,.0f} MB", _MORE)
    return ok(text + (f"; {missing / 1e6:,.0f} MB are still to be made" if missing else ""))


def missing_bytes(context: Context) -> int:
    """What the engines take that this machine should have and has not: INT8, and plans where there is TensorRT.

    Raises:
        BundleError: If the bundle is damaged.
        StoreError: If the store cannot be read.
    """
    if context.bundle is None:
        return 0
    bundle = Bundle.open(context.bundle)
    wide, quantized = (engine_disk_bytes(bundle, one) for one in (Precision.FP16, Precision.INT8_FP16))
    folder = EngineStore(context.state).quantized(bundle.digest)
    wants_int8 = context.engine.may_serve(int8=True)
    missing = quantized if wants_int8 and folder is None and bundle.manifest.source is None else 0
    if context.probe.tensorrt is not None and context.engine.device is not DeviceChoice.CPU:
        compiled = {stored.precision for stored in PlanStore(context.state).stored() if stored.current}
        if context.engine.may_serve(int8=False) and Precision.FP16.value not in compiled:
            missing += wide
        if wants_int8 and Precision.INT8_FP16.value not in compiled:
            missing += quantized
    return missing


def _nearest(folder: Path) -> Path:
    """A folder, or the one above it that is there."""
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    return there


CHECKS: Final = (
    Check(_SUBJECT, "state folder", check_state_folder),
    Check(_SUBJECT, "disk", check_room),
)
