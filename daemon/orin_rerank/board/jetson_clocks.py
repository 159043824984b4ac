"""jetson_clocks: locks processor, GPU and memory at their highest clocks, and gives them back.

Never with `--fan`: that stops the fan's own control. Where clocks are stored is always named: without a name the
program takes $HOME, which services do not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orin_rerank.board.clocks import parse_show, read_clocks
from orin_rerank.board.programs import run_program
from orin_rerank.errors import BoardBusyError, BoardError

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.clocks import Clocks
    from orin_rerank.board.paths import BoardPaths

__all__ = ["PROGRAM", "clocks_as_root", "lock_clocks", "restore_clocks", "store_clocks"]

PROGRAM: Final = "jetson_clocks"

_TIMEOUT_S: Final = 60.0


def clocks_as_root(paths: BoardPaths) -> Clocks:
    """Clocks from the kernel's files; where the GPU's are at a place that is not known, as the program shows them."""
    clocks = read_clocks(paths)
    if clocks.gpu is None and paths.program(PROGRAM) is not None:
        try:
            shown = parse_show(run_program(paths, PROGRAM, "--show", timeout_s=_TIMEOUT_S).output)
        except BoardError:  # it hangs
            return clocks
        return clocks if shown.gpu is None else shown
    return clocks


def store_clocks(paths: BoardPaths, file: Path) -> None:
    """Notes the clocks as they are set now.

    Args:
        paths: The board.
        file: Where to; there must be none yet, the program refuses otherwise.

    Raises:
        BoardError: If there is no jetson_clocks.
        BoardBusyError: If it fails.
    """
    _run(paths, "--store", str(file))


def lock_clocks(paths: BoardPaths) -> None:
    """Locks clocks at their highest; whether it worked, `clocks_as_root` says.

    Raises:
        BoardError: If there is no jetson_clocks.
        BoardBusyError: If it fails, as it does while the drivers are not up.
    """
    _run(paths)


def restore_clocks(paths: BoardPaths, file: Path) -> None:
    """Sets clocks as they were when `file` was stored.

    Raises:
        BoardError: If there is no jetson_clocks.
        BoardBusyError: If it fails.
    """
    _run(paths, "--restore", str(file))


def _run(paths: BoardPaths, *arguments: str) -> None:
    answer = run_program(paths, PROGRAM, *arguments, timeout_s=_TIMEOUT_S)
    if answer.code != 0:
        raise BoardBusyError(f"failed: {answer.gist}", item=" ".join([PROGRAM, *arguments[:1]]))
