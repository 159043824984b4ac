"""The board itself: which module, which of NVIDIA's releases, and the time."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from orin_rerank.board.module import identify_board
from orin_rerank.lifecycle.doctor.finding import Check, fail, ok, warn

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.finding import Finding

__all__ = ["CHECKS"]

_SUBJECT: Final = "board"
_HOW_TO_UPGRADE: Final = "install JetPack 6.2 or 7.2, with SDK Manager or from an SD card image"


def check_module(paths: BoardPaths, _: Context) -> Finding:
    """Whether the module is one that is known, and what does not fit together about it."""
    board = identify_board(paths)
    if not board.is_jetson:
        return ok(f"{board.model}: no Jetson")
    if board.kind is None:
        return warn(board.doubt or f"the module {board.part} is not known", "`orin-rerank plan` cannot plan for it")
    if board.doubt is not None:
        return warn(board.doubt, "the memory decides: see what `memory` says below")
    return ok(f"{board.kind.name} ({board.part})")


def check_system(paths: BoardPaths, _: Context) -> Finding | None:
    """Whether NVIDIA's system is new enough."""
    board = identify_board(paths)
    if not board.is_jetson:
        return None
    release = board.release
    if release is None:
        return fail("/etc/nv_tegra_release is missing or unreadable", "is this NVIDIA's Jetson Linux?")
    name = f"Jetson Linux {release}"
    if not release.supported:
        return fail(f"{name}; JetPack 6.1 (Jetson Linux 36.4) is the oldest that will do", _HOW_TO_UPGRADE)
    if release.jetpack is None:
        return warn(f"{name}, of no JetPack that was known when this was written")
    return ok(f"JetPack {release.jetpack} ({name})")


def check_time(_: BoardPaths, context: Context) -> Finding:
    """Whether the clock can be right; a board without a battery may think that it is 1970."""
    now = dt.datetime.fromtimestamp(context.now_s, dt.timezone.utc)
    text = f"{now:%Y-%m-%d %H:%M} UTC"
    if context.now_s < context.built_s:
        return warn(
            f"{text}, which is before this program was installed",
            "certificates and logs will be wrong; let the board reach a time server, or set the clock",
            "sudo timedatectl set-ntp true",
        )
    return ok(text)


CHECKS: Final = (
    Check(_SUBJECT, "module", check_module),
    Check(_SUBJECT, "system", check_system),
    Check(_SUBJECT, "time", check_time),
)
