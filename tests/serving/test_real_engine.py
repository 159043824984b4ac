"""Everything real over the socket: prompt path, ONNX Runtime, runner, scheduler. The weights are small and random."""

import asyncio

import pytest

from fakes.tiny_checkpoint import write_checkpoint
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import ImagePart, RerankInput, TextPart
from orin_rerank.v1 import rerank_pb2 as pb
from prompt.pictures import picture
from serving.conftest import request

SETTINGS = EngineSettings(threads=2, token_budget=128)
PICTURES = [picture("PNG", height, width) for height, width in ((64, 64), (96, 64), (64, 128))]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    options = ExportOptions(name="tiny", precisions=(Precision.FP32,))
    export_checkpoint(write_checkpoint(folder / "tiny"), folder / "bundle", options)
    return folder / "bundle"


@pytest.fixture(scope="module")
def reference(bundle):
    """The same model in this process, without daemon or scheduler."""
    model = load_model(bundle, SETTINGS)
    yield model
    model.close()


@pytest.fixture
def load(bundle):
    return lambda report: load_model(bundle, SETTINGS, report)


def _margins(response):
    return [result.margin for result in sorted(response.results, key=lambda result: result.index)]


async def test_the_daemon_gives_what_the_model_gives(running, load, reference):
    documents = [f"document {i} " + "word " * (i % 40) for i in range(150)]
    async with running(load) as (_, stub):
        response = await stub.Rerank(request("a query", documents))
        status = await stub.GetStatus(pb.GetStatusRequest())
    expected = reference.rerank(RerankInput((TextPart("a query"),), [(TextPart(text),) for text in documents]))
    assert _margins(response) == pytest.approx(expected.margins.tolist(), abs=1e-5)
    assert len(set(_margins(response))) > 100, "the random model was meant to tell documents apart"
    assert (response.model, response.precision) == ("tiny", "fp32")
    assert status.counters.documents == 150
    assert status.counters.packs > 10
    assert (status.model.engine, status.model.images, status.model.token_budget) == ("onnxruntime-cpu", True, 128)
    pool = status.pool
    assert (pool.used, pool.slots) == (0, SETTINGS.threads)
    assert 1 <= pool.high_water <= pool.slots
    assert pool.total_bytes > 1 << 20


async def test_images_count_and_are_encoded_once(running, load, reference):
    query = pb.Content(text="like this", image=PICTURES[0])
    documents = [
        pb.Content(image=PICTURES[1]),
        pb.Content(text="words", image=PICTURES[2]),
        pb.Content(
            parts=[pb.Part(text="a"), pb.Part(image=PICTURES[0]), pb.Part(text="b"), pb.Part(image=PICTURES[1])]
        ),
        pb.Content(text="no picture"),
    ]
    expected = reference.rerank(
        RerankInput(
            (ImagePart(PICTURES[0]), TextPart("like this")),
            [
                (ImagePart(PICTURES[1]),),
                (ImagePart(PICTURES[2]), TextPart("words")),
                (TextPart("a"), ImagePart(PICTURES[0]), TextPart("b"), ImagePart(PICTURES[1])),
                (TextPart("no picture"),),
            ],
        )
    )
    async with running(load) as (_, stub):
        first = await stub.Rerank(pb.RerankRequest(query=query, documents=documents))
        second = await stub.Rerank(pb.RerankRequest(query=query, documents=documents))
    assert _margins(first) == pytest.approx(expected.margins.tolist(), abs=1e-5)
    assert _margins(second) == pytest.approx(_margins(first), abs=1e-5)
    assert (first.usage.images, first.usage.images_cached) == (5, 2)
    assert (second.usage.images, second.usage.images_cached) == (5, 5)


async def test_scores_do_not_depend_on_who_else_asks(running, load, reference):
    requests = {
        f"query {i}": [f"document {i} {j} " + "word " * ((i * 7 + j) % 30) for j in range(1 + i % 5)] for i in range(24)
    }
    async with running(load) as (_, stub):
        responses = await asyncio.gather(*(stub.Rerank(request(q, documents)) for q, documents in requests.items()))
    for (query, documents), response in zip(requests.items(), responses, strict=True):
        alone = reference.rerank(RerankInput((TextPart(query),), [(TextPart(text),) for text in documents]))
        assert _margins(response) == pytest.approx(alone.margins.tolist(), abs=1e-5)
