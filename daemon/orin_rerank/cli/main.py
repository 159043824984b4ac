"""The entry point of `orin-rerank`: commands, and how errors end the program.

Each command imports what it needs when it runs, so that `--help` and `status` answer at once.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from typer.exceptions import Abort, TyperException

from orin_rerank import __version__
from orin_rerank.cli.board import board_app
from orin_rerank.cli.build import build
from orin_rerank.cli.bundle import bundle_app
from orin_rerank.cli.calibrate import calibrate
from orin_rerank.cli.config import config_app
from orin_rerank.cli.doctor import doctor
from orin_rerank.cli.engines import engines
from orin_rerank.cli.evaluate import evaluate
from orin_rerank.cli.exit_codes import ExitCode, exit_code_help, exit_code_of
from orin_rerank.cli.export import export
from orin_rerank.cli.help_text import help_of
from orin_rerank.cli.output import print_error
from orin_rerank.cli.plan import plan
from orin_rerank.cli.prepare import prepare
from orin_rerank.cli.rank import rank
from orin_rerank.cli.serve import serve
from orin_rerank.cli.status import status
from orin_rerank.errors import (
    BuildError,
    DeadlineError,
    GpuMissingError,
    NewerBundleError,
    OrinRerankError,
    OverloadedError,
    SocketDeniedError,
    StoreBusyError,
    TensorRtMissingError,
    UnavailableError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "run"]

_EPILOG = "`orin-rerank --help` lists the exit codes. Errors go to standard error."

app = typer.Typer(
    add_completion=False, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
)
for command in (serve, rank, status, evaluate, calibrate, build, prepare, engines, export, plan, doctor):
    app.command(help=help_of(command), epilog=_EPILOG)(command)
app.add_typer(board_app, name="board")
app.add_typer(bundle_app, name="bundle")
app.add_typer(config_app, name="config")


_HINTS: Final[tuple[tuple[type[OrinRerankError], str], ...]] = (
    (
        SocketDeniedError,
        "members of its group may: sudo usermod -aG orin-rerank $USER, and log in again; see `orin-rerank doctor`",
    ),
    (UnreachableError, "start the daemon with `orin-rerank serve`, or name its address with --socket or --address"),
    (UnavailableError, "`orin-rerank status` says what it is doing"),
    (DeadlineError, "--timeout gives it longer"),
    (
        TensorRtMissingError,
        "it comes with JetPack: apt install python3-libnvinfer. `orin-rerank serve` works without it",
    ),
    (GpuMissingError, "pycuda has to be installed, and nvidia-smi or tegrastats to show a GPU"),
    (NewerBundleError, "a later orin-rerank wrote it: update this one, or export the checkpoint again with it"),
    (StoreBusyError, "wait until it is done"),
)
"""The first that fits is shown."""


@dataclass(slots=True)
class _Flags:
    debug: bool = False


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"orin-rerank {__version__}\n")
        raise typer.Exit


def options(
    context: typer.Context,
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the program an error arose.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Rank texts and pictures by their relevance to a query, on this machine.

    orin-rerank serve starts the daemon, orin-rerank status says how it is, and orin-rerank rank asks it:

        orin-rerank rank "red fire engine" pictures/*.webp
    """
    context.obj.debug = debug


app.callback(help=f"{help_of(options)}\n\nExit codes:\n\n{exit_code_help()}")(options)


def main() -> NoReturn:
    """Runs the command line and exits."""
    code = run(sys.argv[1:])
    if code == ExitCode.DEVICE_LOST:
        # Libraries over a lost GPU crash, or never end, when the interpreter unloads them.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs the command line.

    Returns:
        The exit code.
    """
    flags = _Flags()
    try:
        code = app(list(arguments), prog_name="orin-rerank", standalone_mode=False, obj=flags)
        sys.stdout.flush()
    except OrinRerankError as error:
        code = _report(error, str(error), _hint(error), exit_code_of(error), flags)
    except TyperException as error:
        code = _report(error, error.format_message(), _usage_hint(error), ExitCode.USAGE, flags)
    except (KeyboardInterrupt, Abort):
        code = ExitCode.INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader of our output left, as `| head` does. The only SystemExit in there is typer's, for the same.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last line before the person: never a bare traceback
        message = f"a bug: {type(error).__name__}: {error}"
        code = _report(error, message, "orin-rerank --debug ... shows where", ExitCode.INTERNAL, flags)
    return int(code)


def _report(error: Exception, message: str, hint: str | None, code: ExitCode, flags: _Flags) -> ExitCode:
    if flags.debug:
        traceback.print_exception(error)
    print_error(message, hint)
    return code


def _hint(error: OrinRerankError) -> str | None:
    """What to do about an error, where that is known."""
    if isinstance(error, BuildError):
        return error.advice
    for kind, hint in _HINTS:
        if isinstance(error, kind):
            return hint
    if isinstance(error, OverloadedError):
        return f"try again in {max(error.retry_after_s, 0.1):.1f} s"
    return None


def _usage_hint(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path if context else 'orin-rerank'} --help` shows how"


if __name__ == "__main__":
    main()
