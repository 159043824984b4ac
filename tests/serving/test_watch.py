"""WatchStatus: what the daemon is at, as it changes; and what a request is told meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from orin_rerank.lifecycle.first_boot.progress import Progress, Step
from orin_rerank.serving.daemon import Daemon
from orin_rerank.serving.settings import ServerSettings
from orin_rerank.v1 import rerank_pb2 as pb
from serving.conftest import request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def read(call: Any) -> pb.WatchStatusResponse:
    update = await asyncio.wait_for(call.read(), 10)
    assert update is not grpc.aio.EOF
    assert isinstance(update, pb.WatchStatusResponse)
    return update


async def until(call: Any, wanted: str) -> pb.WatchStatusResponse:
    while True:
        update = await read(call)
        if wanted in (update.activity.detail, update.activity.step):
            return update


async def test_everything_on_the_way_to_serving_and_out(running, model):
    """Told at once, when something changes, and at the end; the stream then ends in order."""
    go_on = threading.Event()

    def load(report):
        report(Progress(Step.CALIBRATE, "observing", 0.25, 40.0, "there is no INT8"))
        go_on.wait(30)
        report(Progress(Step.LOAD, "comparing golden pairs"))
        return model

    async with running(load, wait=False, problems=lambda: ["clocks are not locked"]) as (daemon, stub):
        call = stub.WatchStatus(pb.WatchStatusRequest())
        first = await until(call, "observing")
        assert first.state == pb.STATE_STARTING
        assert (first.activity.step, first.activity.fraction) == ("calibrate", 0.25)
        assert (first.activity.seconds_left, first.activity.reason) == (40.0, "there is no INT8")
        assert list(first.problems) == ["clocks are not locked"]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(silent := call.read())), 0.6)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Rerank(request())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the daemon is starting: calibrate: observing, 25%, about 40 s left" in caught.value.details()
        assert retry_s(caught.value) == 40.0
        go_on.set()
        del silent
        await daemon.ready()
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.state, status.activity.step, status.problems) == (
            pb.STATE_SERVING,
            "",
            ["clocks are not locked"],
        )
        second = stub.WatchStatus(pb.WatchStatusRequest())
        assert (await read(second)).state == pb.STATE_SERVING
        stopping = asyncio.ensure_future(daemon.stop())
        last = [update async for update in rest(second)][-1]
        assert last.state == pb.STATE_DRAINING
        assert await second.code() is grpc.StatusCode.OK
        await stopping


async def rest(call: Any) -> AsyncIterator[pb.WatchStatusResponse]:
    while (update := await asyncio.wait_for(call.read(), 10)) is not grpc.aio.EOF:
        yield update


def retry_s(error: grpc.aio.AioRpcError) -> float | None:
    class Call:
        code, details, trailing_metadata = error.code, error.details, error.trailing_metadata

    for detail in rpc_status.from_call(Call()).details:
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            return info.retry_delay.ToMilliseconds() / 1000
    return None


async def test_a_flood_of_reports_becomes_four_updates_a_second(running, model):
    over = threading.Event()

    def load(report):
        number = 0
        while not over.is_set():
            number += 1
            report(Progress(Step.BUILD_FULL, f"step {number}"))
            time.sleep(0.0005)
        return model

    async with running(load, wait=False) as (daemon, stub):
        call = stub.WatchStatus(pb.WatchStatusRequest())
        await until(call, "build-full")
        started, details = time.monotonic(), []
        while time.monotonic() - started < 2:
            details.append((await read(call)).activity.detail)
        assert 3 <= len(details) <= 9
        assert len(set(details)) == len(details)
        over.set()
        await daemon.ready()


async def test_problems_that_come_and_go_are_told(running):
    problems: list[str] = []
    async with running(problems=lambda: list(problems)) as (_, stub):
        call = stub.WatchStatus(pb.WatchStatusRequest())
        assert list((await read(call)).problems) == []
        problems.append("clocks are not locked")
        assert list((await read(call)).problems) == ["clocks are not locked"]
        problems.clear()
        assert list((await read(call)).problems) == []


async def test_a_watcher_that_leaves_leaves_nothing(running):
    async with running() as (_, stub):
        before = len(asyncio.all_tasks())
        calls = [stub.WatchStatus(pb.WatchStatusRequest()) for _ in range(20)]
        for call in calls:
            await read(call)
        for call in calls:
            call.cancel()
        for _ in range(50):
            if len(asyncio.all_tasks()) <= before:
                break
            await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) <= before


async def test_a_failure_is_told_to_those_who_watch(running):
    go_on = threading.Event()

    def load(report):
        report("loading")
        go_on.wait(30)
        raise RuntimeError

    async with running(load, wait=False) as (_, stub):
        call = stub.WatchStatus(pb.WatchStatusRequest())
        await until(call, "loading")
        go_on.set()
        update = await until(call, "an internal error")
        assert update.state == pb.STATE_FAILED


async def test_watchers_who_leave_leave_nothing_behind(running):
    async with running() as (_, stub):
        before = len(asyncio.all_tasks())
        calls = [stub.WatchStatus(pb.WatchStatusRequest()) for _ in range(20)]
        for call in calls:
            await read(call)
        await asyncio.sleep(0.5)  # they wait for something newer
        for call in calls:
            call.cancel()
        for _ in range(200):
            if len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) <= before


async def test_a_load_that_is_in_one_long_call_is_left_after_some_seconds(model, socket_path):
    """It may take minutes: a bundle is verified, a graph compiled; `systemctl stop` is to take five seconds."""
    over = threading.Event()

    def load(report):
        report(Progress(Step.LOAD, "verifying the bundle"))
        over.wait(60)
        return model

    daemon = Daemon(ServerSettings(socket=socket_path, drain_s=20.0), load)
    await daemon.start()
    started = time.monotonic()
    try:
        assert not await daemon.stop(), "the thread is in there still"
        assert time.monotonic() - started < 5
    finally:
        over.set()
