"""The handlers of `orin_rerank.v1.RerankService`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError

from orin_rerank.errors import InvalidRequestError, OrinRerankError, UnknownModelError
from orin_rerank.serving import convert, status
from orin_rerank.serving.encoding import PiecewiseEncoder
from orin_rerank.telemetry.log import fields
from orin_rerank.v1 import rerank_pb2 as pb

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from orin_rerank.prompt.content import RerankInput
    from orin_rerank.serving.job import Job, Scored
    from orin_rerank.serving.ports import ServedModel
    from orin_rerank.serving.scheduler import Scheduler
    from orin_rerank.serving.state import DaemonState

__all__ = ["SERVICE_NAME", "RerankService"]

_log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_Request = TypeVar("_Request", pb.RerankRequest, pb.GetStatusRequest, pb.WatchStatusRequest)

_BETWEEN_UPDATES_S: Final = 0.25
_LOOK_AGAIN_S: Final = 2.0
"""Nobody says when problems come and go."""


SERVICE_NAME: Final[str] = pb.DESCRIPTOR.services_by_name["RerankService"].full_name


class RerankService:
    """Answers requests. Whatever goes wrong in a handler becomes a status of the protocol; none leaks as UNKNOWN.

    Handlers take messages as bytes and parse them themselves: the library answers UNKNOWN where its parser raises.

    Args:
        state: What the daemon is doing.
        encoders: The threads that tokenise and decode images.
    """

    def __init__(self, state: DaemonState, encoders: Executor) -> None:
        self._state = state
        self._encoders = encoders
        self._handling = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._over = asyncio.Event()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns what to register with a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Rerank": grpc.unary_unary_rpc_method_handler(self.rerank),
                "GetStatus": grpc.unary_unary_rpc_method_handler(self.get_status),
                "WatchStatus": grpc.unary_stream_rpc_method_handler(self.watch_status),
            },
        )

    async def quiet(self) -> None:
        """Waits until no Rerank handler is at work."""
        await self._quiet.wait()

    async def get_status(self, message: bytes, context: _Context) -> bytes:
        """Says what the daemon is doing, in every state."""
        try:
            _parse(pb.GetStatusRequest, message)
            return self._state.snapshot().SerializeToString()
        except Exception as error:  # noqa: BLE001  # a handler's last line of defence
            return await context.abort_with_status(status.to_status(self._answer(error)))

    async def watch_status(self, message: bytes, context: _Context) -> None:
        """Says what the daemon is at, at once and whenever that changes; ends when the daemon does."""
        try:
            _parse(pb.WatchStatusRequest, message)
            over: asyncio.Future[object] = asyncio.ensure_future(self._over.wait())
            newer = over
            told: tuple[int, list[str]] | None = None
            try:
                while True:
                    version, last = self._state.version, self._over.is_set()
                    update = self._state.activity()
                    if last or told != (version, list(update.problems)):
                        told = version, list(update.problems)
                        await context.write(update.SerializeToString())
                    if last:
                        return
                    await asyncio.wait([over], timeout=_BETWEEN_UPDATES_S)
                    newer = asyncio.ensure_future(self._state.changed(version))
                    await asyncio.wait([over, newer], timeout=_LOOK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
                    newer.cancel()
            finally:
                newer.cancel()  # the caller has left
                over.cancel()
        except Exception as error:  # noqa: BLE001  # a handler's last line of defence
            await context.abort_with_status(status.to_status(self._answer(error)))

    def end_watches(self) -> None:
        """Tells those who watch for the last time."""
        self._over.set()

    async def rerank(self, message: bytes, context: _Context) -> bytes:
        """Scores the documents and returns them best first."""
        remaining = context.time_remaining()
        deadline = None if remaining is None else time.monotonic() + remaining
        self._handling += 1
        self._quiet.clear()
        try:
            response = await self._rerank(message, deadline)
        except asyncio.CancelledError:
            # The library cancels the handler both when the caller leaves and when its deadline passes.
            late = deadline is not None and time.monotonic() >= deadline
            self._ended(grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED)
            raise
        except Exception as error:  # noqa: BLE001  # a handler's last line of defence
            answer = self._answer(error)
            self._ended(status.code_of(answer))
            return await context.abort_with_status(status.to_status(answer))
        else:
            self._ended(None)
            return response
        finally:
            self._handling -= 1
            if self._handling == 0:
                self._quiet.set()

    async def _rerank(self, message: bytes, deadline: float | None) -> bytes:
        model, scheduler = self._state.serving()
        request = _parse(pb.RerankRequest, message)
        if request.model not in ("", model.name):
            raise UnknownModelError(f"no such model here; {model.name!r} is served", item="model")
        checked = convert.to_input(request, max_documents=self._state.settings.max_documents)
        asked = convert.Asked.by(request)
        del request  # it holds the pictures' files once more
        job = scheduler.admit(len(checked.documents), message_bytes=len(message), deadline=deadline)
        try:
            scored = await self._score(model, scheduler, job, checked)
        except OrinRerankError as error:
            error.item = convert.wire_item(error.item, asked, checked)
            raise
        finally:
            scheduler.withdraw(job)
        response = convert.to_response(asked, scored, model=model.name, precision=model.info.precision)
        return response.SerializeToString()

    async def _score(self, model: ServedModel, scheduler: Scheduler, job: Job, request: RerankInput) -> Scored:
        loop = asyncio.get_running_loop()
        pieces = PiecewiseEncoder(model.encoder, model.profile, request)
        while not pieces.done:
            await scheduler.turn(job, tokens=pieces.rough_tokens, picture_bytes=pieces.picture_bytes)
            if job.outcome.done():
                break
            encoded = await loop.run_in_executor(self._encoders, pieces.next_piece)
            if encoded is not None:
                scheduler.feed(job, encoded.prefix, encoded.documents)
            del encoded  # or its pictures would be held, uncounted, until there is another
        return await job.outcome

    def _answer(self, error: Exception) -> OrinRerankError:
        """What the caller is told; of bugs the journal is told the rest."""
        if isinstance(error, OrinRerankError) and status.code_of(error) is not grpc.StatusCode.INTERNAL:
            return error
        reference = secrets.token_hex(4)
        _log.error("request failed", extra=fields(reference=reference), exc_info=error)
        return status.internal_error(reference, error)

    def _ended(self, code: grpc.StatusCode | None) -> None:
        self._state.counters.request_ended(None if code is None else code.name)


def _parse(kind: type[_Request], message: bytes) -> _Request:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise InvalidRequestError(f"the bytes sent are no {kind.DESCRIPTOR.full_name}", item="message") from error
