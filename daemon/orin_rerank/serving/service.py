"""The handlers of `orin_rerank.v1.RerankService`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import TYPE_CHECKING

import grpc

from orin_rerank.errors import OrinRerankError, UnknownModelError
from orin_rerank.serving import convert, status
from orin_rerank.serving.encoding import PiecewiseEncoder
from orin_rerank.telemetry.log import fields
from orin_rerank.v1 import rerank_pb2_grpc

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from orin_rerank.prompt.content import RerankInput
    from orin_rerank.serving.job import Job, Scored
    from orin_rerank.serving.ports import ServedModel
    from orin_rerank.serving.scheduler import Scheduler
    from orin_rerank.serving.state import DaemonState
    from orin_rerank.v1 import rerank_pb2 as pb

__all__ = ["RerankService"]

_log = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext


class RerankService(rerank_pb2_grpc.RerankServiceServicer):
    """Answers requests. Whatever goes wrong in a handler becomes a status of the protocol; none leaks as UNKNOWN.

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

    async def quiet(self) -> None:
        """Waits until no Rerank handler is at work."""
        await self._quiet.wait()

    async def GetStatus(  # noqa: N802  # named by the protocol
        self,
        request: pb.GetStatusRequest,
        context: _Context[pb.GetStatusRequest, pb.GetStatusResponse],
    ) -> pb.GetStatusResponse:
        """Says what the daemon is doing, in every state."""
        del request
        try:
            return self._state.snapshot()
        except Exception as error:  # noqa: BLE001  # a handler's last line of defence
            return await context.abort_with_status(status.to_status(self._bug(error)))

    async def Rerank(  # noqa: N802  # named by the protocol
        self,
        request: pb.RerankRequest,
        context: _Context[pb.RerankRequest, pb.RerankResponse],
    ) -> pb.RerankResponse:
        """Scores the documents and returns them best first."""
        remaining = context.time_remaining()
        deadline = None if remaining is None else time.monotonic() + remaining
        self._handling += 1
        self._quiet.clear()
        try:
            response = await self._rerank(request, deadline)
        except asyncio.CancelledError:
            # The library cancels the handler both when the caller leaves and when its deadline passes.
            late = deadline is not None and time.monotonic() >= deadline
            self._ended(grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED)
            raise
        except Exception as error:  # noqa: BLE001  # a handler's last line of defence
            answer = self._answer(error, request)
            self._ended(status.code_of(answer))
            return await context.abort_with_status(status.to_status(answer))
        else:
            self._ended(None)
            return response
        finally:
            self._handling -= 1
            if self._handling == 0:
                self._quiet.set()

    async def _rerank(self, request: pb.RerankRequest, deadline: float | None) -> pb.RerankResponse:
        model, scheduler = self._state.serving()
        if request.model not in ("", model.name):
            raise UnknownModelError(f"no such model here; {model.name!r} is served", item="model")
        checked = convert.to_input(request, max_documents=self._state.settings.max_documents)
        job = scheduler.admit(len(checked.documents), message_bytes=request.ByteSize(), deadline=deadline)
        try:
            scored = await self._score(model, scheduler, job, checked)
        finally:
            scheduler.withdraw(job)
        return convert.to_response(request, scored, model=model.name, precision=model.info.precision)

    async def _score(self, model: ServedModel, scheduler: Scheduler, job: Job, request: RerankInput) -> Scored:
        loop = asyncio.get_running_loop()
        pieces = PiecewiseEncoder(model.encoder, model.profile, request)
        while not pieces.done:
            await scheduler.room(job)
            if job.outcome.done():
                break
            encoded = await loop.run_in_executor(self._encoders, pieces.next_piece)
            scheduler.feed(job, encoded.prefix, encoded.documents)
        return await job.outcome

    def _answer(self, error: Exception, request: pb.RerankRequest) -> OrinRerankError:
        """What the caller is told; bugs are told to the journal."""
        if not isinstance(error, OrinRerankError):
            return self._bug(error)
        error.item = convert.wire_item(error.item, request)
        if status.code_of(error) is grpc.StatusCode.INTERNAL:
            return self._bug(error)
        return error

    def _bug(self, error: Exception) -> OrinRerankError:
        reference = secrets.token_hex(4)
        _log.error("request failed", extra=fields(reference=reference), exc_info=error)
        return status.internal_error(reference, error)

    def _ended(self, code: grpc.StatusCode | None) -> None:
        self._state.counters.request_ended(None if code is None else code.name)
