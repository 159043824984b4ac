"""`orin-rerank doctor`: looks for what keeps this machine from serving as well as it can, and says what helps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import AddressOption, ConfigOption, JsonOption, SocketOption  # noqa: TC001 - typer reads annotations at run time

if TYPE_CHECKING:
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.config.sections import Settings
    from orin_rerank.lifecycle.doctor.context import Context, DaemonAnswer
    from orin_rerank.lifecycle.doctor.examine import Report

__all__ = ["doctor"]

_DAEMON_S = 5.0
_ON_THE_GPU = ("tensorrt", "onnxruntime-cuda")


def doctor(
    *,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write an archive for support, such as support.tar.gz: what was found, and what it was found "
            "from, without what identifies people or machines.",
            show_default=False,
        ),
    ] = None,
    socket: SocketOption = None,
    address: AddressOption = None,
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> int:
    """Check this machine, and say what to do about what is not as it should be.

    Looks at the board and NVIDIA's system, power mode, clocks, heat, memory and disk, the GPU with its device nodes and
    libraries, the model with its engines, and the daemon. Nothing is changed. Each finding is ok, warn (it works, but)
    or FAIL, with what helps and the command for it where there is one. As root it sees more.

    The archive holds nothing of requests. Names of the machine and its people, paths below home folders, addresses,
    serial numbers and identities are taken out; README.txt in it says what is there. Only its owner may read it.

    The exit code is 0 where nothing fails, else 78.

    For example:

        orin-rerank doctor
        sudo orin-rerank doctor --bundle support.tar.gz
        orin-rerank doctor --json | jq '.checks[] | select(.verdict != "ok")'

    --json writes {"healthy", "ok", "warn", "fail", "checks"}; the middle three are numbers, and each check has
    {"subject", "check", "verdict", "finding", "remedy", "command"}.
    """
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.cli.doctor_table import show_archive, show_report
    from orin_rerank.cli.output import console, print_json, progress_console
    from orin_rerank.lifecycle.doctor.examine import examine
    from orin_rerank.telemetry import log

    log.configure("error")  # what is the matter is among the findings
    paths = BoardPaths.from_environment()
    settings, problem = _settings(config)
    with progress_console().status("looking at this machine"):
        context = _context(settings, problem, config, socket, address)
        report = examine(paths, context)
    if json_output:
        print_json(report.as_dict())
    else:
        show_report(report, console(), archived=bundle is not None)
    if bundle is not None:
        with progress_console().status("packing"):
            files = _write(bundle, paths, settings, context, report)
        if not json_output:
            show_archive(bundle, files, console())
    return ExitCode.OK if report.healthy else ExitCode.UNHEALTHY


def _settings(config: Path | None) -> tuple[Settings, str | None]:
    """The settings; defaults where they are wrong, and what is wrong with them."""
    from orin_rerank.cli.configured import settings_of
    from orin_rerank.config.sections import Settings
    from orin_rerank.errors import SettingsError

    try:
        return settings_of(config), None
    except SettingsError as error:
        return Settings(), str(error)


def _context(
    settings: Settings, problem: str | None, config: Path | None, socket: Path | None, address: str | None
) -> Context:
    """What the checks need to know beside the board's files."""
    from orin_rerank import __version__
    from orin_rerank.cli.address import default_socket, socket_of, target_of
    from orin_rerank.cli.bundles import bundle_of
    from orin_rerank.cli.configured import calibration_set, judged_set, state_folder
    from orin_rerank.config.file import config_file
    from orin_rerank.errors import BundleError, SettingsError
    from orin_rerank.lifecycle.doctor.accounts import SERVICE_USER, User
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.probe import probe_machine

    try:
        target = target_of(socket, address, config)
    except SettingsError as error:
        if socket is not None or address is not None:
            raise
        target, problem = f"unix:{default_socket()}", problem or str(error)
    daemon = _ask(target)
    named = os.environ.get("ORIN_RERANK_BUNDLE")
    folder, bundle_problem = None, None
    try:
        folder = bundle_of(Path(named) if named else settings.model.bundle).absolute()
    except BundleError as error:
        bundle_problem = str(error)
    service = User.named(SERVICE_USER)
    sets = {"calibration set": calibration_set(settings), "judged set": judged_set(settings)}
    package = Path(__file__)
    return Context(
        version=__version__,
        state=state_folder(settings, None if service is None else 0),
        socket=socket_of(target),
        bundle=folder,
        bundle_problem=bundle_problem,
        sets={what: folder.absolute() for what, folder in sets.items() if folder is not None},
        settings_file=config_file(config),
        settings_problem=problem,
        engine=settings.engine,
        tuning=settings.board,
        daemon=daemon,
        daemon_user=service or User.current(),
        # A daemon that computes on the GPU proves that it can be opened, and may need the memory that this would take.
        probe=probe_machine(open_gpu=not daemon.engine.startswith(_ON_THE_GPU)),
        built_s=package.stat().st_mtime,
    )


def _ask(target: str) -> DaemonAnswer:
    """What the daemon says of itself, or why it says nothing."""
    from orin_rerank.cli.client import DaemonClient
    from orin_rerank.cli.status import state_name
    from orin_rerank.errors import OrinRerankError
    from orin_rerank.lifecycle.doctor.context import DaemonAnswer

    try:
        with DaemonClient(target, timeout_s=_DAEMON_S) as client:
            status = client.status()
    except OrinRerankError as error:
        return DaemonAnswer(detail=str(error))
    model = status.model
    return DaemonAnswer(
        state_name(status),
        status.detail,
        status.version,
        model.engine,
        model.engine_reason,
        model.precision,
        model.precision_reason,
        tuple(status.problems),
    )


def _write(target: Path, paths: BoardPaths, settings: Settings, context: Context, report: Report) -> list[str]:
    """Writes the archive; returns the names of the files in it."""
    from orin_rerank.board.jtop import merge_jtop, read_jtop
    from orin_rerank.board.request import OUTCOME
    from orin_rerank.board.snapshot import read_snapshot
    from orin_rerank.board.tuning import read_outcome
    from orin_rerank.cli.board_table import board_as_dict
    from orin_rerank.cli.config import settings_as_dict
    from orin_rerank.errors import BoardError
    from orin_rerank.lifecycle.doctor.archive import collect, write_archive
    from orin_rerank.lifecycle.doctor.redaction import redactor_of

    try:
        outcome = read_outcome(paths.at(str(OUTCOME)))
        board = board_as_dict(paths, merge_jtop(read_snapshot(paths), read_jtop(paths)), outcome)
    except BoardError as error:
        board = {"problem": str(error)}
    host = (settings.server.tcp or "").rpartition(":")[0].strip("[]")
    redactor = redactor_of(paths, {host: "<host>"} if host.strip("0123456789.:") else {})
    values = {"doctor.json": report.as_dict(), "board.json": board, "settings.json": settings_as_dict(settings)}
    files = collect(paths, context, redactor, values)
    write_archive(target, files, _who_asked())
    return sorted(files)


def _who_asked() -> tuple[int, int] | None:
    """User and group who called sudo, to whom the archive shall belong; None where nobody did."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    return (int(user), int(group)) if os.geteuid() == 0 and user.isdecimal() and group.isdecimal() else None
