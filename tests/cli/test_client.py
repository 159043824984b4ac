"""The client turns what comes over the wire back into the project's errors."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from orin_rerank import errors
from orin_rerank.cli.client import DaemonClient
from orin_rerank.serving.status import to_status
from orin_rerank.v1 import rerank_pb2, rerank_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Answering(rerank_pb2_grpc.RerankServiceServicer):
    """Ends every call as it is told."""

    def __init__(self, end: Callable[[grpc.ServicerContext], None]) -> None:
        self.end = end

    def Rerank(self, request: rerank_pb2.RerankRequest, context: grpc.ServicerContext) -> None:  # noqa: N802
        self.end(context)


@contextmanager
def serving(path: Path, servicer: rerank_pb2_grpc.RerankServiceServicer | None) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.max_receive_message_length", 1000)])
    if servicer is not None:
        rerank_pb2_grpc.add_RerankServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield f"unix:{path}"
    finally:
        server.stop(None).wait()


def error_for(tmp_path: Path, end: Callable[[grpc.ServicerContext], None]) -> errors.OrinRerankError:
    with (
        serving(tmp_path / "s", Answering(end)) as target,
        DaemonClient(target, timeout_s=10) as client,
        pytest.raises(errors.OrinRerankError) as caught,
    ):
        client.rerank(rerank_pb2.RerankRequest())
    return caught.value


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (errors.ImageDecodeError("is damaged", item="documents[3].content[0]"), errors.InvalidRequestError),
        (errors.UnknownModelError("is not served here", item="m"), errors.UnknownModelError),
        (errors.UnavailableError("building"), errors.UnavailableError),
        (errors.DeadlineError("cannot be met"), errors.DeadlineError),
        (errors.InternalError("a bug"), errors.InternalError),
        (errors.BundleError("altered", item="weights"), errors.InternalError),
    ],
)
def test_the_daemons_errors_arrive(
    tmp_path: Path, sent: errors.OrinRerankError, received: type[errors.OrinRerankError]
) -> None:
    caught = error_for(tmp_path, lambda context: context.abort_with_status(to_status(sent)))
    assert type(caught) is received
    assert (caught.message, caught.item, str(caught)) == (sent.message, sent.item, str(sent))


def test_an_overloaded_daemon_says_when_to_try_again(tmp_path: Path) -> None:
    sent = errors.OverloadedError("the queue is full", retry_after_s=2.25)
    caught = error_for(tmp_path, lambda context: context.abort_with_status(to_status(sent)))
    assert isinstance(caught, errors.OverloadedError)
    assert (caught.message, caught.retry_after_s) == ("the queue is full", 2.25)


def test_what_is_not_the_daemons_own_is_taken_as_the_transports(tmp_path: Path) -> None:
    caught = error_for(tmp_path, lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "proxy has no backend"))
    assert isinstance(caught, errors.UnreachableError)
    caught = error_for(tmp_path, lambda context: context.abort(grpc.StatusCode.DATA_LOSS, "odd"))
    assert isinstance(caught, errors.InternalError)
    assert "DATA_LOSS: odd" in caught.message


def test_nothing_listens(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/nothing"
    with DaemonClient(target, timeout_s=10) as client:
        with pytest.raises(errors.UnreachableError) as caught:
            client.status()
        assert caught.value.item == target
        with pytest.raises(errors.UnreachableError):
            client.rerank(rerank_pb2.RerankRequest())


def test_a_daemon_that_ends_while_it_is_asked(tmp_path: Path) -> None:
    """Its server cancels what it has not answered by then."""
    caught = error_for(tmp_path, lambda context: context.abort(grpc.StatusCode.CANCELLED, "CANCELLED"))
    assert isinstance(caught, errors.UnreachableError)
    assert caught.message == "the daemon ended while it was asked"


def test_something_else_listens(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "s", None) as target,
        DaemonClient(target, timeout_s=10) as client,
        pytest.raises(errors.UnreachableError, match="not an orin-rerank daemon"),
    ):
        client.status()


def test_what_listens_never_answers(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with (
            DaemonClient(f"unix:{tmp_path}/s", timeout_s=0.3) as client,
            pytest.raises(errors.DeadlineError, match="no answer in time"),
        ):
            client.status()


def test_a_message_over_the_transports_limit_is_bad_input_not_overload(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "s", Answering(lambda _: None)) as target,
        DaemonClient(target, timeout_s=10) as client,
        pytest.raises(errors.InvalidRequestError, match="larger than the daemon takes"),
    ):
        client.rerank(rerank_pb2.RerankRequest(query=rerank_pb2.Content(text="x" * 2000)))
