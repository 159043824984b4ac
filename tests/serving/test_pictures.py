"""Decoded pictures of all requests together, over a real socket: memory is bounded, nobody is refused or forgotten."""

import asyncio

import pytest

from fakes.model import FakeEncoder, FakeModel
from orin_rerank.prompt.profile import ImageProfile, PromptFamily, PromptProfile
from orin_rerank.prompt.resize import most_picture_bytes
from orin_rerank.v1 import rerank_pb2 as pb
from serving.conftest import request

IMAGES = ImageProfile(
    patch_size=16,
    temporal_patch_size=2,
    merge_size=2,
    position_grid=48,
    head_dim=64,
    rope_theta=10000.0,
    min_pixels=1024,
    max_pixels=1024 * 64,
)
EACH = most_picture_bytes(IMAGES)
PIECE = 2 * EACH
RATION = 8 * PIECE
PACK = 16 * EACH
"""A pack of this test's documents, which is in its thread's hands for a moment longer than it counts."""


@pytest.fixture
def model():
    model = FakeModel(
        profile=PromptProfile(PromptFamily.VL, 4096, "default", IMAGES),
        encoder=FakeEncoder(picture_bytes=EACH),
        picture_bytes=RATION,
    )
    model.runner.fail = lambda _: model.runner.packs.clear()  # a runner that remembers packs holds their pictures
    return model


def pictures(query, count, picture_in_query=False):
    documents = [pb.Content(image=f"{query} {number}".encode()) for number in range(count)]
    asked = pb.Content(text=query, image=b"looks like this" if picture_in_query else b"")
    return pb.RerankRequest(query=asked, documents=documents)


def margins(response):
    return [result.margin for result in sorted(response.results, key=lambda result: result.index)]


async def arrived(model):
    await asyncio.to_thread(model.runner.arrived.wait, 30)


async def queue_of(stub):
    return (await stub.GetStatus(pb.GetStatusRequest())).queue


async def settled(stub):
    """The queue's status, once it changes no more."""
    last = None
    while (now := await queue_of(stub)) != last:
        last = now
        await asyncio.sleep(0.1)
    return now


async def crowd(model, stub):
    """Ten requests of 200 pictures, on a model that does not run until its gate is opened; none gets any further."""
    model.runner.gate.clear()
    calls = [asyncio.ensure_future(stub.Rerank(pictures(f"q{n}", 200))) for n in range(10)]
    await arrived(model)
    await settled(stub)
    return calls


@pytest.mark.parametrize("picture_in_query", [False, True])
async def test_a_full_queue_of_pictures_takes_no_more_than_its_ration(running, model, picture_in_query):
    async with running(encoder_threads=4) as (_, stub):
        alone = [await stub.Rerank(pictures(f"q{n}", 20, picture_in_query)) for n in range(12)]
        model.encoder.most_live_bytes = 0
        model.runner.gate.clear()
        model.runner.arrived.clear()
        calls = [asyncio.ensure_future(stub.Rerank(pictures(f"q{n}", 20, picture_in_query))) for n in range(12)]
        await arrived(model)
        held = await settled(stub)
        assert held.documents == 240
        assert held.max_picture_bytes == RATION
        assert 0.4 * RATION < held.picture_bytes <= RATION
        assert model.encoder.live_bytes <= RATION
        model.runner.gate.set()
        together = await asyncio.gather(*calls)
        assert [margins(one) for one in together] == [margins(one) for one in alone]
        assert model.encoder.most_live_bytes <= RATION + PACK
        assert (await queue_of(stub)).picture_bytes == 0


async def test_texts_do_not_wait_for_pictures(running, model):
    async with running() as (_, stub):
        calls = await crowd(model, stub)
        text = asyncio.ensure_future(stub.Rerank(request("text", ["a", "b"])))
        assert (await settled(stub)).documents == 2002
        model.runner.gate.set()
        await text
        assert not any(call.done() for call in calls), "the text was scored before any of 200 pictures"
        await asyncio.gather(*calls)


async def test_a_small_request_of_pictures_overtakes_large_ones(running, model):
    async with running() as (_, stub):
        calls = await crowd(model, stub)
        small = asyncio.ensure_future(stub.Rerank(pictures("small", 3)))
        await settled(stub)
        model.runner.gate.set()
        await small
        assert not any(call.done() for call in calls)
        await asyncio.gather(*calls)


async def test_callers_who_leave_give_their_share_back(running, model):
    async with running() as (daemon, stub):
        model.runner.gate.clear()
        calls = [stub.Rerank(pictures(f"q{n}", 20)) for n in range(20)]
        waiting = [asyncio.ensure_future(call) for call in calls]
        await arrived(model)
        await settled(stub)
        for call in calls:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await daemon._service.quiet()
        assert (await queue_of(stub)).picture_bytes == 0
        model.runner.gate.set()
        assert len((await stub.Rerank(pictures("after", 20))).results) == 20
        for _ in range(1000):
            if model.encoder.live_bytes:
                await asyncio.sleep(0.01)
        assert model.encoder.live_bytes == 0


async def test_a_deadline_ends_the_waiting(running, model):
    async with running() as (_, stub):
        model.runner.gate.clear()
        calls = [asyncio.ensure_future(stub.Rerank(pictures(f"q{n}", 20))) for n in range(20)]
        await arrived(model)
        await settled(stub)
        late = await asyncio.gather(stub.Rerank(pictures("late", 20), timeout=0.3), return_exceptions=True)
        assert late[0].code().name == "DEADLINE_EXCEEDED"
        assert (await settled(stub)).requests == 20, "the daemon has forgotten it, too"
        model.runner.gate.set()
        await asyncio.gather(*calls)


async def test_a_ration_that_is_too_small_serves_one_piece_at_a_time(running, model):
    model.picture_bytes = 1
    async with running() as (_, stub):
        responses = await asyncio.gather(*(stub.Rerank(pictures(f"q{n}", 20, True)) for n in range(10)))
    assert all(len(response.results) == 20 for response in responses)
    assert model.encoder.most_live_bytes <= 2 * (PIECE + EACH), "a piece and its query, beside those that end"
