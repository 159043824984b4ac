"""`orin-rerank board`: shows the board, and sets its power mode and clocks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.help_text import help_of
from orin_rerank.cli.options import ConfigOption, JsonOption  # noqa: TC001 - typer reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.tuning import TuningOutcome

__all__ = ["apply", "board_app", "request", "restore", "show"]

board_app = typer.Typer(help="Show the board, and set its power mode and clocks.", no_args_is_help=True)

_STATE: Final = Path("/var/lib/orin-rerank-board")
"""Where what was found before the first change is kept; systemd names it in STATE_DIRECTORY."""


def show(*, json_output: JsonOption = False) -> int:
    """Show the board: module, power mode, clocks, heat, rails.

    Needs no root, though without it the memory's clock stays unknown, unless jetson-stats runs and its module is
    installed: then it is asked for what the board's files do not say. On a PC it shows what there is.

    --json writes {"board", "modes", "modes_problem", "mode", "fastest", "clocks", "clocks_locked", "zones",
    "throttled", "over_current", "rails", "watts", "gpu_load", "fan", "memory", "tuning", "jtop"}; clocks are in Hz,
    temperatures in degrees Celsius, "over_current" is how often each limit was hit since the board started, "tuning"
    what the root service did last, "jtop" what jetson-stats says.
    """
    from orin_rerank.board.jtop import merge_jtop, read_jtop
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.request import OUTCOME
    from orin_rerank.board.snapshot import read_snapshot
    from orin_rerank.board.tuning import read_outcome
    from orin_rerank.cli.board_table import board_as_dict, board_table
    from orin_rerank.cli.output import console, print_json

    paths = BoardPaths.from_environment()
    snapshot = merge_jtop(read_snapshot(paths), read_jtop(paths))
    outcome = read_outcome(paths.at(str(OUTCOME)))
    if json_output:
        print_json(board_as_dict(paths, snapshot, outcome))
    else:
        console().print(board_table(paths, snapshot, outcome))
    return ExitCode.OK


def apply(
    *,
    requested: Annotated[
        bool, typer.Option("--requested", help="Only if the daemon has asked for it, which this answers.")
    ] = False,
    config: ConfigOption = None,
) -> int:
    """Set power mode and clocks as [board] in the settings says; as root, at every boot.

    What was set before a change is kept, for `orin-rerank board restore`. Nothing that is as it shall be is touched,
    and the fan is left to itself. A board that does not take a setting yet is asked again for half a minute or so. A
    mode that takes a reboot is reported; the machine is rebooted for it, once, only if the settings say so, and never
    while it serves: not where the daemon has asked.

    The exit code is 0 where all is as it shall be or waits for a reboot, else 69.
    """
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.request import REQUEST, read_request
    from orin_rerank.board.tuner import tune_board
    from orin_rerank.board.tuning import TuningOutcome
    from orin_rerank.cli.configured import settings_of
    from orin_rerank.errors import SettingsError
    from orin_rerank.telemetry import log

    paths = BoardPaths.from_environment()
    if requested:
        read_request(paths.at(str(REQUEST)))  # first: what stays there would be answered again and again
    with _as_root():
        try:
            settings = settings_of(config)
        except SettingsError as error:
            _note(paths, TuningOutcome(problem=f"the settings are wrong: {error}"))
            raise
        log.configure(settings.log.level.value)
        # Whatever changes the mode after each boot would have the machine rebooted after each boot.
        tuning = dataclasses.replace(settings.board, reboot=settings.board.reboot and not requested)
        outcome = tune_board(paths, tuning, _state_folder(paths))
        _note(paths, outcome)
    return _say(outcome)


def restore() -> int:
    """Give back the power mode and clocks that were found before they were changed; as root, when the package goes.

    What cannot be given back is told, and kept for another try. It stays so until the next boot, or the next
    `orin-rerank board apply`.
    """
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.restoring import restore_board

    paths = BoardPaths.from_environment()
    with _as_root():
        outcome = restore_board(paths, _state_folder(paths))
        _note(paths, outcome)
    return _say(outcome)


def request() -> int:
    """Ask the root service to set power mode and clocks again, as the daemon does when something has undone them."""
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.request import REQUEST, BoardRequest, write_request

    write_request(BoardRequest.TUNE, BoardPaths.from_environment().at(str(REQUEST)))
    return ExitCode.OK


@contextlib.contextmanager
def _as_root() -> Iterator[None]:
    """Says so where this is not root; on SIGTERM ends what it has started, as on Ctrl-C.

    Raises:
        BoardError: If this is not root.
    """
    from orin_rerank.errors import BoardError

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except PermissionError as error:
        raise BoardError("takes root: put `sudo` before the command", item=str(error.filename)) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _state_folder(paths: BoardPaths) -> Path:
    named = os.environ.get("STATE_DIRECTORY")
    return Path(named) if named else paths.at(str(_STATE))


def _note(paths: BoardPaths, outcome: TuningOutcome) -> None:
    """Tells the daemon what came of it."""
    from orin_rerank.board.request import OUTCOME
    from orin_rerank.durable import replace_file

    file = paths.at(str(OUTCOME))
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, outcome.to_json())
    file.chmod(0o644)


def _say(outcome: TuningOutcome) -> int:
    from orin_rerank.cli.output import console

    console().print("; ".join(outcome.changed) or "nothing to change", markup=False)
    if outcome.problem is not None:
        from orin_rerank.cli.output import print_error

        print_error(outcome.problem)
    return ExitCode.OK if outcome.problem is None or outcome.reboot_needed else ExitCode.UNAVAILABLE


for _command in (show, apply, restore, request):
    board_app.command(help=help_of(_command))(_command)
