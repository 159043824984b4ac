"""jetson_clocks: locks processor, GPU and memory at their highest clocks, and gives them back.

NVIDIA's script ends with 0 whatever went wrong, so what it did is looked at. And it does more than it is asked for: it
keeps in its home folder whether the fan's control runs, also where another file is named, and starts or stops that
control when it restores. The fan is none of ours: it gets a home folder that is none. Which cores are on is left out of
what it stored: that is the power mode's matter. It is never called with `--fan`, which stops the fan's own control.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.board.clocks import parse_show, read_clocks
from orin_rerank.board.programs import run_program
from orin_rerank.errors import BoardBusyError, BoardError

if TYPE_CHECKING:
    from orin_rerank.board.clocks import Clocks
    from orin_rerank.board.paths import BoardPaths

__all__ = ["PROGRAM", "TIMEOUT_S", "clocks_as_root", "lock_clocks", "restore_clocks", "store_clocks"]

PROGRAM: Final = "jetson_clocks"

TIMEOUT_S: Final = 10.0
"""It takes a second or two."""

_NO_HOME: Final = Path("/nonexistent")
_CORE_ON: Final = "/online:"
_FLOOR: Final = "min_freq"
_OF_CORES: Final = "/cpu"
"""What cannot be set of a core that is off meanwhile is no failure; the others' floors are looked at."""


def clocks_as_root(paths: BoardPaths, timeout_s: float = TIMEOUT_S) -> Clocks:
    """Clocks from the kernel's files; where the GPU's are at a place that is not known, as the program shows them."""
    clocks = read_clocks(paths)
    if clocks.gpu is None and paths.program(PROGRAM) is not None:
        try:
            shown = parse_show(run_program(paths, PROGRAM, "--show", timeout_s=min(TIMEOUT_S, timeout_s)).output)
        except BoardError:  # it hangs
            return clocks
        return clocks if shown.gpu is None else shown
    return clocks


def store_clocks(paths: BoardPaths, file: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Notes the clocks as they are set now.

    Args:
        paths: The board.
        file: Where to; there must be none yet, the program refuses otherwise.
        timeout_s: How long it may take.

    Raises:
        BoardError: If there is no jetson_clocks.
        BoardBusyError: If it fails.
        OSError: If the file cannot be written.
    """
    _run(paths, "--store", str(file), timeout_s=timeout_s)
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    # Of a core that is off there is no value.
    kept = [line for line in lines if _CORE_ON not in line and not line.rstrip().endswith(":")]
    file.write_text("".join(kept), encoding="utf-8")


def lock_clocks(paths: BoardPaths, timeout_s: float = TIMEOUT_S) -> None:
    """Locks clocks at their highest; whether it worked, `clocks_as_root` says.

    Raises:
        BoardError: If there is no jetson_clocks.
        BoardBusyError: If it fails, as it does while the drivers are not up.
    """
    _run(paths, timeout_s=timeout_s)


def restore_clocks(paths: BoardPaths, file: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Sets clocks as they were when `file` was stored.

    Raises:
        BoardError: If there is no jetson_clocks.
        BoardBusyError: If it fails, or a clock may still not fall as low as it could.
    """
    output = _run(paths, "--restore", str(file), timeout_s=timeout_s)
    lines = [line.strip() for line in output.splitlines()]
    failed = next((line for line in lines if line.startswith("Error") and _OF_CORES not in line), None)
    for path, value in _floors(file):
        if failed is None and (paths.number(Path(path)) or 0) > value:
            failed = f"{path} is still above {value}"
    if failed is not None:
        raise BoardBusyError(f"did not give all clocks back: {failed}", item=PROGRAM)


def _run(paths: BoardPaths, *arguments: str, timeout_s: float) -> str:
    answer = run_program(paths, PROGRAM, *arguments, timeout_s=min(TIMEOUT_S, timeout_s), home=_NO_HOME)
    if answer.code != 0:
        raise BoardBusyError(f"failed: {answer.gist}", item=" ".join([PROGRAM, *arguments[:1]]))
    return answer.output


def _floors(file: Path) -> list[tuple[str, int]]:
    """The lowest clocks that were stored, by the kernel's file."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    stored = [(path, value.strip()) for path, _, value in (line.rpartition(":") for line in lines)]
    return [(path, int(value)) for path, value in stored if path.endswith(_FLOOR) and value.isdecimal()]
