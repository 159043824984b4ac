"""A daemon in this process, on a real Unix socket, with a model whose engine a test controls."""

import contextlib

import grpc
import pytest

from fakes.model import FakeModel
from orin_rerank.serving.daemon import Daemon
from orin_rerank.serving.settings import ServerSettings
from orin_rerank.v1 import rerank_pb2 as pb
from orin_rerank.v1 import rerank_pb2_grpc


@pytest.fixture
def model():
    return FakeModel()


@pytest.fixture
def socket_path(tmp_path):
    return tmp_path / "run" / "rerank.sock"


@pytest.fixture
def running(model, socket_path):
    """Returns an async context manager: a daemon that serves, and a stub that talks to it."""

    @contextlib.asynccontextmanager
    async def start(load=None, *, wait=True, notifier=None, problems=tuple, **settings):
        daemon = Daemon(
            ServerSettings(**{"socket": socket_path, "drain_s": 10.0} | settings),
            load or (lambda _: model),
            notifier=notifier,
            problems=problems,
        )
        await daemon.start()
        try:
            if wait:
                await daemon.ready()
            async with grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
                yield daemon, rerank_pb2_grpc.RerankServiceStub(channel)
        finally:
            model.runner.gate.set()
            await daemon.stop()

    return start


def request(query="query", documents=("first", "second", "third"), **rest):
    """A request of texts."""
    return pb.RerankRequest(
        query=pb.Content(text=query), documents=[pb.Content(text=text) for text in documents], **rest
    )
