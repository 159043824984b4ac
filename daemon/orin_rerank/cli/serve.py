"""`orin-rerank serve`: runs the daemon in the foreground."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.options import (  # noqa: TC001 - typer reads annotations at run time
    BundleOption,
    ConfigOption,
    DeviceOption,
    MaxTokensOption,
    PrecisionOption,
    ThreadsOption,
)
from orin_rerank.config.sections import LogLevel  # noqa: TC001 - typer reads annotations at run time

if TYPE_CHECKING:
    from orin_rerank.config.sections import Settings
    from orin_rerank.lifecycle.first_boot.machine import Prepared
    from orin_rerank.lifecycle.model import LoadedModel
    from orin_rerank.serving.reporter import Reporter

__all__ = ["serve"]


def serve(
    *,
    bundle: BundleOption = None,
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The Unix socket to listen on; else /run/orin-rerank/orin-rerank.sock for root, and the same below "
            "$XDG_RUNTIME_DIR for others.",
            show_default=False,
        ),
    ] = None,
    tcp: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Listen here too. There are no passwords: whoever reaches the port may rerank.",
            show_default=False,
        ),
    ] = None,
    precision: PrecisionOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    token_budget: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", min=16, help="Tokens in one pack; else what measuring finds best.", show_default=False
        ),
    ] = None,
    max_tokens: MaxTokensOption = None,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="How much the journal says; else info.", show_default=False)
    ] = None,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Make first what this machine lacks, as `orin-rerank prepare` does, unless [first_boot] in the "
            "settings says otherwise; the system's service does so. As root it works as the owner of the state folder.",
        ),
    ] = False,
    config: ConfigOption = None,
) -> int:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C.

    It listens at once and answers `status`, loads and checks the model, and then serves. On SIGTERM it finishes what
    runs and leaves with 0. On SIGHUP, unless it has a terminal, it reads the settings again, and takes over log level,
    limits of requests and drain time. The journal goes to standard error, as JSON lines unless that is a terminal.

    An INT8 engine that `orin-rerank calibrate` has installed for the bundle is served in its place where it proves
    itself; else `status` says why not. So it is with the GPU: first the TensorRT plans that `orin-rerank build` has
    compiled for this machine, then ONNX Runtime on CUDA. If the GPU is lost the daemon leaves with 71, to be started
    again. Engines are kept below $ORIN_RERANK_STATE, else below /var/lib/orin-rerank for root and
    $XDG_STATE_HOME/orin-rerank for others.

    There is a settings file for more than these options: `orin-rerank config show` lists what may stand in it.

    For example:

        orin-rerank serve
        orin-rerank serve --bundle /srv/models/qwen3-vl-reranker-2b --tcp 127.0.0.1:50051
    """
    if not sys.stderr.isatty():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the loop listens for it, it would end the process
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.cli.address import default_socket
    from orin_rerank.cli.bundles import bundle_of
    from orin_rerank.cli.configured import settings_of, state_folder
    from orin_rerank.cli.exit_codes import exit_code_of
    from orin_rerank.cli.owner import become_owner
    from orin_rerank.cli.reloading import Reloading
    from orin_rerank.lifecycle.board_watch import BoardWatch
    from orin_rerank.serving import foreground
    from orin_rerank.telemetry import log
    from orin_rerank.telemetry.notify import Notifier

    notifier = Notifier()  # before anything is started that could speak for the daemon

    def read() -> Settings:
        return settings_of(
            config,
            server={"socket": None if socket is None else socket.absolute(), "tcp": tcp},
            engine={
                "precision": precision,
                "device": device,
                "threads": threads,
                "token_budget": token_budget,
                "max_tokens": max_tokens,
            },
            log={"level": log_level},
        )

    settings = read()
    server = settings.server
    if socket is None and "server.socket" not in settings.sources:
        server = dataclasses.replace(server, socket=default_socket())
    folder = bundle_of(bundle or settings.model.bundle)
    log.configure(settings.log.level.value)
    state = state_folder(settings)
    if prepare:
        become_owner(state, also=server.socket.parent)
    source = _Source(folder, state, settings, prepare=prepare)
    with BoardWatch(BoardPaths.from_environment(), settings.board) as watch:
        return foreground.run(
            server,
            source.load,
            exit_code_of,
            notifier=notifier,
            problems=lambda: (*source.problems, *watch.problems),
            # A terminal that is closed sends SIGHUP, too, and then the daemon shall end.
            reload=None if sys.stderr.isatty() else Reloading(settings, server, read),
            before_exit=source.stopped,
        )


class _Source:
    """Where the model comes from: what is there, or what this machine is made to have first."""

    def __init__(self, bundle: Path, state: Path, settings: Settings, *, prepare: bool) -> None:
        self._prepared: Prepared | None = None
        self._bundle = bundle
        self._state = state
        self._settings = settings
        self._prepare = prepare

    @property
    def problems(self) -> tuple[str, ...]:
        """What is not as it shall be, for people."""
        return () if self._prepared is None else self._prepared.now().problems

    def load(self, reporter: Reporter) -> LoadedModel:
        """Gives the model; called on the engine's thread."""
        from orin_rerank.cli.configured import place_of
        from orin_rerank.engines.store import EngineStore
        from orin_rerank.lifecycle.first_boot.machine import prepare_and_load
        from orin_rerank.lifecycle.first_boot.progress import Progress, Step
        from orin_rerank.lifecycle.startup import load_model

        settings = self._settings
        if self._prepare:
            return prepare_and_load(place_of(self._bundle, settings, self._state), reporter, self._keep)
        return load_model(
            self._bundle,
            settings.engine,
            lambda detail: reporter(Progress(Step.LOAD, detail)),
            store=EngineStore(self._state),
        )

    def stopped(self) -> None:
        """Notes that a step was stopped in order, though it did not come to an end in time."""
        from orin_rerank.errors import StoreError
        from orin_rerank.lifecycle.first_boot.journal import Journal

        if self._prepare:
            with contextlib.suppress(StoreError):
                Journal(self._state).stop()

    def _keep(self, prepared: Prepared) -> None:
        self._prepared = prepared
