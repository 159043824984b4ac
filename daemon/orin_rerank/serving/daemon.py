"""The daemon: gRPC from the first moment, the model behind it once it has proved itself, an orderly end.

::

    STARTING --model loaded and self-tested--> SERVING --SIGTERM--> DRAINING --> gone
        |                                         |
        +------------- it fails ------------------+-- the scheduler fails --> FAILED --> gone

A lost GPU is a failure wherever it is met, on the way out too: the next process on it, started or not, must not be the
first to learn of it. SIGHUP has the settings read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from orin_rerank.errors import DeviceLostError, InternalError, OrinRerankError, UnavailableError
from orin_rerank.serving.heartbeat import Heartbeat
from orin_rerank.serving.reporter import Reporter
from orin_rerank.serving.scheduler import Scheduler
from orin_rerank.serving.service import SERVICE_NAME, RerankService
from orin_rerank.serving.state import DaemonState
from orin_rerank.serving.unix_socket import SocketClaim
from orin_rerank.telemetry.counters import Counters
from orin_rerank.telemetry.log import fields
from orin_rerank.telemetry.notify import Notifier
from orin_rerank.v1 import rerank_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from typing import TypeAlias

    from orin_rerank.serving.ports import ServedModel
    from orin_rerank.serving.settings import ServerSettings

    Load: TypeAlias = Callable[[Reporter], ServedModel]
    Reload: TypeAlias = Callable[[], ServerSettings]

__all__ = ["Daemon"]

_log = logging.getLogger(__name__)

_ARRIVED_S: Final = 0.1
"""How long requests that were sent before their callers could know better are still refused one by one."""

_FLUSH_S: Final = 0.5
"""How long the last responses may take to leave; only clients that watch the health make it last that long."""

_PREPARING_S: Final = 3.5
"""How long a preparation, or a model that loads, may take to come round: some calls take minutes, and what is finished
is kept however the process ends."""


class Daemon:
    """One daemon from `start` to `stop`; belongs to one event loop.

    Args:
        settings: How it is reached and how much it takes on.
        load: Prepares the machine where that is wanted, loads, warms and self-tests the model, and tells what it is
            doing; called on the first engine thread. The model is the daemon's from then on, and closed by it.
        notifier: The service manager; None is none.
        problems: Says what is not as it should be though requests may be served.
    """

    def __init__(
        self,
        settings: ServerSettings,
        load: Load,
        *,
        notifier: Notifier | None = None,
        problems: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._settings = settings
        self._load = load
        self._reload_problem: str | None = None
        self._problems = problems
        self._state = DaemonState(settings, Counters(), self._all_problems)
        self._heartbeat = Heartbeat(notifier or Notifier({}), self._state)
        self._stopping = threading.Event()
        self._stop: asyncio.Future[bool] | None = None
        self._failure: OrinRerankError | None = None
        self._is_open = False
        self._engine = threading.Thread(target=self._engine_main, name="engine", daemon=True)

    @property
    def tcp_port(self) -> int | None:
        """The TCP port that is listened on, None without one."""
        return self._tcp_port

    @property
    def failure(self) -> OrinRerankError | None:
        """Why it failed, None if it did not."""
        return self._failure

    async def start(self) -> None:
        """Listens, and begins to load the model.

        Raises:
            SettingsError: If the socket's path cannot be used.
            UnavailableError: If the socket or the TCP address cannot be listened on now.
        """
        self._loop = self._state.loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._encoders = ThreadPoolExecutor(self._settings.encoder_threads, thread_name_prefix="encoder")
        self._claim = SocketClaim(self._settings.socket)
        try:
            await self._listen()
        except BaseException:
            self._claim.release()
            raise
        self._heartbeat.start()
        self._engine.start()

    async def ready(self) -> None:
        """Waits until requests are served.

        Raises:
            OrinRerankError: If the model could not be loaded.
        """
        await asyncio.shield(self._ready)

    async def failed(self) -> None:
        """Waits for the daemon to fail; a daemon that does not never returns from here.

        Raises:
            OrinRerankError: Why it failed.
        """
        await asyncio.shield(self._ended)

    async def stop(self) -> bool:
        """Drains and ends: running requests finish within the drain time, new ones are refused as UNAVAILABLE.

        Returns:
            Whether the engine thread came to its end, and freed the model; False if it hangs in native code, or packs
            that do so hold buffers.
        """
        if self._stop is None:
            self._stop = asyncio.ensure_future(self._drain())
        return await asyncio.shield(self._stop)

    def reload(self, read: Reload) -> None:
        """Takes over what can be changed while it runs; where the settings are wrong, everything stays as it is.

        Args:
            read: Reads the settings again.
        """
        told = self._heartbeat.reloading()
        try:
            settings = read()
        except OrinRerankError as error:
            _log.error("the settings are wrong, and stay as they are", extra=fields(reason=str(error)))
            self._reload_problem = f"the settings are wrong, and those of before hold: {error}"
        else:
            self._reload_problem = None
            self._settings = self._state.settings = settings
            if self._state.scheduler is not None:
                self._limit(self._state.scheduler)
        self._state.touch()
        if told:
            self._heartbeat.ready()

    def _limit(self, scheduler: Scheduler) -> None:
        scheduler.limit(
            max_queued_documents=self._settings.max_queued_documents,
            max_queued_bytes=self._settings.effective_max_queued_bytes,
        )

    def _all_problems(self) -> Sequence[str]:
        return [*self._problems(), *([self._reload_problem] if self._reload_problem is not None else [])]

    async def _drain(self) -> bool:
        serves = self._state.scheduler is not None
        if self._state.state != pb.STATE_FAILED:
            detail = "finishing the requests that run" if serves else "ending what was being prepared"
            self._state.enter(pb.STATE_DRAINING, detail)
        # First of all it gets no more time, then what is being prepared is ended.
        self._heartbeat.stopping(2 * self._engine_patience_s + _ARRIVED_S + 2 * _FLUSH_S)
        self._stopping.set()
        await self._health.enter_graceful_shutdown()
        _log.info("draining", extra=fields(requests=self._state.scheduler.requests if self._state.scheduler else 0))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._service.quiet(), self._settings.drain_s)
        if self._state.scheduler is not None:
            self._state.scheduler.stop(lambda: UnavailableError("the daemon stopped before the request was done"))
            await self._service.quiet()
        # Meanwhile what has arrived is answered: the library cancels what it has not handed over yet.
        await asyncio.sleep(_ARRIVED_S)
        await self._service.quiet()
        self._service.end_watches()
        await self._server.stop(_FLUSH_S)
        self._encoders.shutdown(wait=False, cancel_futures=True)
        await self._join_engine()
        self._heartbeat.stop()
        self._claim.release()
        _log.info("stopped", extra=fields(engine_ended=not self._engine.is_alive()))
        return not self._engine.is_alive() and not self._is_open

    async def _listen(self) -> None:
        self._server = grpc.aio.server(options=self._options())
        self._service = RerankService(self._state, self._encoders)
        self._server.add_generic_rpc_handlers((self._service.handlers(),))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        await self._set_health(serving=False)
        reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        with self._claim.private():
            _bind(self._server, f"unix:{self._settings.socket}", "socket")
        tcp = self._settings.tcp
        self._tcp_port = None if tcp is None else _bind(self._server, tcp, "tcp")
        await self._server.start()
        self._claim.open_to(self._settings.socket_mode)
        _log.info("listening", extra=fields(socket=str(self._settings.socket), tcp_port=self._tcp_port))

    def _options(self) -> list[tuple[str, int]]:
        interval_ms = round(self._settings.keepalive_min_interval_s * 1000)
        return [
            ("grpc.max_receive_message_length", self._settings.max_message_bytes),
            # A response that carries its documents back is somewhat larger than its request.
            ("grpc.max_send_message_length", -1),
            # By default pings more often than every five minutes end the connection with too_many_pings.
            ("grpc.http2.min_ping_interval_without_data_ms", interval_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            # A second daemon on the same port must fail rather than share it.
            ("grpc.so_reuseport", 0),
        ]

    async def _set_health(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", SERVICE_NAME):
            await self._health.set(service, status)

    def _engine_main(self) -> None:
        """The first engine thread: load, serve (with further threads where the engine has slots for them), close."""
        try:
            started = time.monotonic()
            model = self._load(Reporter(self._state, self._stopping))
            self._is_open = True
            scheduler = Scheduler(
                model,
                max_queued_documents=self._settings.max_queued_documents,
                max_queued_bytes=self._settings.effective_max_queued_bytes,
                counters=self._state.counters,
                loop=self._loop,
                on_crash=self._fail,
                encoder_threads=self._settings.encoder_threads,
                first_pack_s=self._state.step_s,
            )
            try:
                if not self._stopping.is_set():
                    serving = asyncio.run_coroutine_threadsafe(self._serve(model, scheduler, started), self._loop)
                    serving.add_done_callback(self._served)
                    scheduler.serve()
            finally:
                model.close()
                self._is_open = False
        except BaseException as error:  # noqa: BLE001  # whatever ends this thread ends the daemon, and says why
            if self._stopping.is_set() and not isinstance(error, DeviceLostError):
                if not isinstance(error, UnavailableError):  # which is how what is being prepared is ended
                    _log.warning("the engine thread failed while stopping", exc_info=error)
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon did not wait for this thread
                self._loop.call_soon_threadsafe(self._fail, error)

    async def _serve(self, model: ServedModel, scheduler: Scheduler, started: float) -> None:
        self._state.model = model
        self._state.scheduler = scheduler
        if self._state.state != pb.STATE_STARTING:
            scheduler.stop(lambda: UnavailableError("the daemon stops"))
            return
        self._limit(scheduler)  # which may have been changed since it was made
        self._state.enter(pb.STATE_SERVING, "ready")
        self._heartbeat.ready()
        await self._set_health(serving=True)
        _log.info(
            "serving",
            extra=fields(
                model=model.name,
                engine=model.info.name,
                precision=model.info.precision,
                reason=model.precision_reason,
                engine_reason=model.engine_reason,
                seconds=time.monotonic() - started,
            ),
        )
        if not self._ready.done():
            self._ready.set_result(None)

    def _served(self, serving: Future[None]) -> None:
        error = None if serving.cancelled() else serving.exception()
        if error is not None:
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, DeviceLostError):
            if isinstance(self._failure, DeviceLostError):
                return  # told before by the scheduler
        elif self._failure is not None or self._stopping.is_set():
            return  # likewise, or on its way out anyhow
        _log.error("failed", exc_info=error)
        if not isinstance(error, OrinRerankError):
            internal = InternalError("the engine thread failed; the journal has the details")
            internal.__cause__ = error
            error = internal
        self._failure = error
        if self._stopping.is_set():
            return
        self._unhealthy = asyncio.ensure_future(self._set_health(serving=False))
        self._state.enter(pb.STATE_FAILED, "an internal error" if isinstance(error, InternalError) else str(error))
        for outcome in (self._ready, self._ended):
            if not outcome.done():
                outcome.set_exception(error)
                outcome.exception()  # seen, even if nobody waits for this one

    async def _join_engine(self) -> None:
        """Waits for the engine thread, though not for ever: native code cannot be interrupted."""
        await asyncio.to_thread(self._engine.join, self._engine_patience_s)

    @property
    def _engine_patience_s(self) -> float:
        return _PREPARING_S if self._state.scheduler is None else max(self._settings.drain_s, 1.0)


def _bind(server: grpc.aio.Server, address: str, item: str) -> int:
    try:
        port: int = server.add_insecure_port(address)
    except RuntimeError as error:
        # What another program has, or the network has not given yet, may be free or there when it is tried again.
        raise UnavailableError(f"cannot listen on {address}", item=item) from error
    return port
