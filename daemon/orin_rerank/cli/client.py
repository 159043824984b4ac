"""A small synchronous client of the daemon, which turns gRPC's errors back into the project's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from orin_rerank.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    OrinRerankError,
    OverloadedError,
    SocketDeniedError,
    UnavailableError,
    UnknownModelError,
    UnreachableError,
)
from orin_rerank.serving.status import ERROR_DOMAIN
from orin_rerank.v1 import rerank_pb2, rerank_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["DaemonClient", "error_of"]

_OPTIONS: Final = (
    # Else grpcio sends the percent-encoded socket path as :authority, which servers in other languages refuse.
    ("grpc.default_authority", "localhost"),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)

_DENIED: Final = "Permission denied"
"""What gRPC says of EACCES, for which it has no status of its own."""

_BY_STATUS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: UnknownModelError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
}


class DaemonClient:
    """A connection to one daemon; a context manager.

    Args:
        target: As gRPC writes it: `unix:/path` or `host:port`.
        timeout_s: Every call's deadline, connecting included.
    """

    def __init__(self, target: str, *, timeout_s: float) -> None:
        self.target = target
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._stub = rerank_pb2_grpc.RerankServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def rerank(self, request: rerank_pb2.RerankRequest) -> rerank_pb2.RerankResponse:
        """Scores documents.

        Raises:
            OrinRerankError: As `error_of` says.
        """
        try:
            return self._stub.Rerank(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise error_of(error, self.target) from error

    def status(self) -> rerank_pb2.GetStatusResponse:
        """Asks what the daemon is doing.

        Raises:
            OrinRerankError: As `error_of` says.
        """
        try:
            return self._stub.GetStatus(rerank_pb2.GetStatusRequest(), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise error_of(error, self.target) from error

    def watch(self) -> Iterator[rerank_pb2.WatchStatusResponse]:
        """Follows what the daemon is at, until it ends; there is no deadline.

        Raises:
            OrinRerankError: As `error_of` says, where the daemon goes without a word.
        """
        answered = False
        try:
            for update in self._stub.WatchStatus(rerank_pb2.WatchStatusRequest()):
                answered = True
                yield update
        except grpc.RpcError as error:
            failure = error_of(error, self.target)
            if answered and isinstance(failure, UnreachableError):  # a stop that is in order ends it with a last word
                raise UnreachableError(
                    "the daemon ended without a word: killed, or crashed", item=self.target
                ) from error
            raise failure from error

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


def error_of(call: grpc.RpcError, target: str) -> OrinRerankError:
    """The project's error for a failed call.

    The daemon's own errors carry google.rpc.ErrorInfo in its domain; what has none came from gRPC on the way.
    """
    assert isinstance(call, grpc.Call)
    message = call.details() or "no details"
    info, retry_after_s = _details(call)
    if info is None:
        return _transport_error(call.code(), message, target)
    item = info.metadata.get("item")
    message = message.removeprefix(f"{item}: ")
    if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return OverloadedError(message, retry_after_s=retry_after_s, item=item)
    return _BY_STATUS.get(call.code(), InternalError)(message, item=item)


def _details(call: grpc.Call) -> tuple[error_details_pb2.ErrorInfo | None, float]:
    """The daemon's ErrorInfo, if any, and after how many seconds to try again (1 where nothing is said)."""
    status = rpc_status.from_call(call)
    info = None
    retry_after_s = 1.0
    for detail in status.details if status is not None else ():
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            candidate = error_details_pb2.ErrorInfo()
            detail.Unpack(candidate)
            info = candidate if candidate.domain == ERROR_DOMAIN else info
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return info, retry_after_s


def _transport_error(code: grpc.StatusCode, message: str, target: str) -> OrinRerankError:
    """An error that the daemon did not send itself."""
    if code is grpc.StatusCode.UNAVAILABLE:
        denied = _DENIED in message
        kind, what = (
            (SocketDeniedError, "this user may not connect") if denied else (UnreachableError, "no daemon answers")
        )
        return kind(f"{what} there", item=target)
    if code is grpc.StatusCode.CANCELLED:  # not by us: a server that stops ends what it has not answered so
        return UnreachableError("the daemon ended while it was asked", item=target)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnreachableError("what answers there is not an orin-rerank daemon", item=target)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError("the daemon gave no answer in time", item=target)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # gRPC's own limit on the size of a message: sending the same again cannot help.
        return InvalidRequestError(f"the request is larger than the daemon takes ({message})")
    return InternalError(f"the call failed with {code.name}: {message}", item=target)
