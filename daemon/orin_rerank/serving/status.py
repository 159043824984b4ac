"""How an error becomes a gRPC status; nothing else in the program chooses a status code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from orin_rerank.errors import ErrorKind, InternalError, OrinRerankError, OverloadedError, UnavailableError

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["ERROR_DOMAIN", "code_of", "internal_error", "to_status"]

ERROR_DOMAIN: Final = "orin-rerank"
"""The `domain` of every google.rpc.ErrorInfo that this daemon sends."""

_RETRY_S: Final = 1.0
"""Sent with an overload that knows no better."""

_CODES: Final = {
    ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    # Our own files: no request can bring it about, so to a caller it is our bug.
    ErrorKind.DATA: grpc.StatusCode.INTERNAL,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
}


def code_of(error: OrinRerankError) -> grpc.StatusCode:
    """The canonical code of an error."""
    return _CODES[error.kind]


def internal_error(reference: str, error: Exception) -> OrinRerankError:
    """What a caller is told of a bug: the error's own words if it is one of ours, and where to find the rest."""
    if isinstance(error, OrinRerankError):
        error.message = f"{error.message} (reference {reference} in the daemon's journal)"
        return error
    return InternalError(f"an internal error; the daemon's journal has it under reference {reference}")


def to_status(error: OrinRerankError) -> grpc.Status:
    """Builds the status of an error, for `context.abort_with_status`.

    Its details (`grpc-status-details-bin`) hold google.rpc.ErrorInfo with the error's code in upper case as the reason
    and the offending item under `item`, and google.rpc.RetryInfo where the error says when to try again.
    """
    details: list[Message] = [
        error_details_pb2.ErrorInfo(
            reason=error.code.upper(),
            domain=ERROR_DOMAIN,
            metadata={"item": error.item} if error.item else {},
        )
    ]
    seconds = error.retry_after_s if isinstance(error, (OverloadedError, UnavailableError)) else None
    if error.kind is ErrorKind.OVERLOADED and seconds is None:
        seconds = _RETRY_S
    if seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(max(1, round(seconds * 1000)))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        box = any_pb2.Any()
        box.Pack(detail)
        packed.append(box)
    status: grpc.Status = rpc_status.to_status(
        status_pb2.Status(code=code_of(error).value[0], message=str(error), details=packed)
    )
    return status
