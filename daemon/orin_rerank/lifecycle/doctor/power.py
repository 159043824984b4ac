"""Power mode and clocks, beside what the settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orin_rerank.board.clocks import read_clocks
from orin_rerank.board.jetson_clocks import PROGRAM
from orin_rerank.board.module import identify_board
from orin_rerank.board.nvpmodel import read_current_mode
from orin_rerank.board.power_modes import CONFIG, read_power_modes
from orin_rerank.board.request import OUTCOME
from orin_rerank.board.snapshot import fastest_mode
from orin_rerank.board.tuning import are_clocks_locked, read_outcome, wanted_mode
from orin_rerank.errors import BoardError
from orin_rerank.lifecycle.doctor.finding import Check, fail, ok, warn
from orin_rerank.lifecycle.doctor.reach import installed_unit

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.finding import Finding

__all__ = ["CHECKS"]

_SUBJECT: Final = "power and clocks"
_APPLY: Final = "sudo orin-rerank board apply"


def check_power_mode(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether the board is in the mode that the settings ask for, and whether that is the fastest."""
    board = identify_board(paths)
    modes = read_power_modes(paths)
    if modes is None:
        return fail(f"{CONFIG} is missing", "it comes with nvidia-l4t-nvpmodel") if board.is_jetson else None
    current = read_current_mode(paths, modes)
    if current is None:
        return warn("not known: nvpmodel does not answer, and has noted nothing", command="sudo nvpmodel -q")
    fastest = fastest_mode(paths, board, modes)
    name = current.name or str(current.id)
    try:
        wanted = wanted_mode(paths, modes, context.tuning)
    except BoardError as error:
        return fail(str(error), "name another in [board] power_mode of the settings")
    if wanted is not None and current.id != wanted.id:
        why = "the fastest" if wanted.id == fastest.id else "as the settings say"
        return warn(f"{name}, though it should be {wanted.name}, {why}", command=_APPLY)
    if current.id != fastest.id:
        return ok(f"{name}, as the settings say; {fastest.name} is the fastest")
    return ok(f"{name}, the fastest")


def check_clocks(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether clocks are locked at their highest, as the settings ask for."""
    if not identify_board(paths).is_jetson:
        return None
    clocks = read_clocks(paths)
    if are_clocks_locked(paths, read_outcome(paths.at(str(OUTCOME)))):
        at = "as the root service saw" if clocks.gpu is None else f"GPU at {clocks.gpu.highest / 1e6:.0f} MHz"
        return ok(f"locked: {at}")
    if clocks.gpu is None:
        return warn("the GPU's clock cannot be read: its driver may not be up", "see `device nodes` below")
    span = f"GPU from {clocks.gpu.lowest / 1e6:.0f} to {clocks.gpu.highest / 1e6:.0f} MHz"
    if not context.tuning.lock_clocks:
        return ok(f"not locked, as the settings say: {span}")
    if paths.program(PROGRAM) is None:
        return warn(f"not locked: {span}; there is no {PROGRAM}", "it comes with nvidia-l4t-tools")
    return warn(f"not locked: {span}", "something such as nvpmodel has undone it, or it was never done", _APPLY)


def check_root_service(paths: BoardPaths, _: Context) -> Finding | None:
    """What the root service said last."""
    if not identify_board(paths).is_jetson:
        return None
    outcome = read_outcome(paths.at(str(OUTCOME)))
    if outcome is None:
        command = "systemctl status orin-rerank-board" if installed_unit(paths) else _APPLY
        return warn("power mode and clocks have not been set since boot", command=command)
    modes = read_power_modes(paths)
    if outcome.reboot_needed and outcome.wanted is not None and modes is not None:
        return warn(
            f"the power mode {outcome.wanted} waits for a reboot that is made for it",
            "answer YES: it notes the mode and reboots, and no other reboot does",
            f"sudo nvpmodel -m {modes.find(outcome.wanted).id}",
        )
    if outcome.problem is not None:
        return warn(outcome.problem, "the journal of the service says more", "journalctl -b -u orin-rerank-board")
    return ok("; ".join(outcome.changed) or "everything was as it should be")


CHECKS: Final = (
    Check(_SUBJECT, "power mode", check_power_mode),
    Check(_SUBJECT, "clocks", check_clocks),
    Check(_SUBJECT, "root service", check_root_service),
)
