"""`orin-rerank prepare`: makes what this machine lacks, in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import BundleOption, ConfigOption, JsonOption  # noqa: TC001 - typer reads annotations at run time

if TYPE_CHECKING:
    from rich.console import Console

    from orin_rerank.lifecycle.first_boot.machine import Prepared

__all__ = ["prepare"]


def prepare(
    *,
    bundle: BundleOption = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Take steps at once that failed or were refused, and that wait or rest since."),
    ] = False,
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> int:
    """Make what this machine lacks to serve as well as it can: what the system's service does at its first start.

    Looks at board, memory, power mode, clocks and GPU; makes INT8 from the calibration set where none is installed, and
    TensorRT plans where there is TensorRT. What is there is not made again, and what is interrupted goes on with the
    same command. A step that fails is tried again later each time, and after five failures only with --again or when
    something has changed: the bundle, the sets, JetPack. The daemon serves what there is meanwhile; it must be stopped
    for a build, which takes almost three times the memory of the weights. As root it works as the owner of the state
    folder, which is the service's user.

    For example:

        systemctl stop orin-rerank; orin-rerank prepare --again; systemctl start orin-rerank

    The exit code is 0 where all is as it shall be, else 69. --json writes {"steps": [{"step", "outcome", "text",
    "retry_in_seconds"}]}; outcomes are done, failed and refused.
    """
    from orin_rerank.cli.bundles import bundle_of
    from orin_rerank.cli.configured import place_of, settings_of, state_folder
    from orin_rerank.cli.output import console, print_json
    from orin_rerank.cli.owner import become_owner
    from orin_rerank.cli.preparation_progress import ShownPreparation
    from orin_rerank.lifecycle.first_boot import machine
    from orin_rerank.telemetry import log

    settings = settings_of(config)
    log.configure("error")  # what is the matter is in the table
    state = state_folder(settings)
    become_owner(state)
    place = place_of(bundle_of(bundle or settings.model.bundle), settings, state)
    with ShownPreparation() as shown:
        prepared = machine.prepare(place, shown, again=again).now()
    if json_output:
        print_json(
            {
                "steps": [
                    {
                        "step": result.step.value,
                        "outcome": result.outcome.value,
                        "text": result.text,
                        "retry_in_seconds": None if result.retry_in_s is None else round(result.retry_in_s),
                    }
                    for result in prepared.steps
                ]
            }
        )
    else:
        _show(prepared, console())
    return ExitCode.UNAVAILABLE if prepared.problems else ExitCode.OK


def _show(prepared: Prepared, out: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column()
    for result in prepared.steps:
        fine = result.problem is None
        table.add_row(
            result.step.value, Text(result.outcome.value, style="green" if fine else "yellow"), Text(result.text)
        )
    out.print(table)
