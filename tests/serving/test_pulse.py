"""Proof that engine threads live, and what the heartbeat makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest

from fakes.model import FakeModel, segment
from orin_rerank.lifecycle.first_boot.progress import Progress, Step
from orin_rerank.serving.heartbeat import Heartbeat
from orin_rerank.serving.pulse import Pulse
from orin_rerank.serving.scheduler import Scheduler
from orin_rerank.serving.settings import ServerSettings
from orin_rerank.serving.state import DaemonState
from orin_rerank.telemetry.counters import Counters
from orin_rerank.telemetry.notify import Notifier


def unknown(_: int) -> float:
    return 0.0


class TestPulse:
    def test_one_that_waits_answers_each_time(self) -> None:
        pulse = Pulse()
        pulse.came_round(3)
        assert pulse.beats(3, 0, 1, unknown)
        assert not pulse.beats(4, 0, 1, unknown)

    def test_a_pack_may_take_the_patience(self) -> None:
        pulse = Pulse()
        pulse.runs(100, 10.0)
        assert pulse.beats(99, 10.9, 1, unknown)
        assert not pulse.beats(99, 11.1, 1, unknown)

    def test_or_five_times_what_packs_take_as_a_rule(self) -> None:
        pulse = Pulse()
        pulse.runs(100, 10.0)
        assert pulse.beats(99, 19.9, 1, lambda tokens: tokens / 50)
        assert not pulse.beats(99, 20.1, 1, lambda tokens: tokens / 50)


@pytest.mark.parametrize("slots", [1, 2])
async def test_every_thread_must_come_round(slots: int) -> None:
    model = FakeModel()
    model.runner.slots = slots
    model.info = type(model.info)("fake-gpu", "fp32", 8192, 64, slots=slots)
    loop = asyncio.get_running_loop()
    scheduler = Scheduler(model, max_queued_documents=99, max_queued_bytes=9999, counters=Counters(), loop=loop)
    assert not scheduler.proves_life(1), "no thread is there yet"
    thread = threading.Thread(target=scheduler.serve)
    thread.start()

    async def lives(patience_s: float = 0.2) -> bool:
        scheduler.proves_life(patience_s)
        await asyncio.sleep(0.3)
        return scheduler.proves_life(patience_s)

    assert await lives()
    assert await lives()
    model.runner.gate.clear()
    job = scheduler.admit(1)
    scheduler.feed(job, segment([1, 2]), (segment([3]),))
    await asyncio.to_thread(model.runner.arrived.wait, 10)
    await asyncio.sleep(0.3)  # the other one has been woken, and comes round
    assert scheduler.proves_life(60)
    assert not await lives(), "one thread hangs, and another does not speak for it"
    model.runner.gate.set()
    await job.outcome
    assert await lives()
    scheduler.withdraw(job)
    scheduler.stop(RuntimeError)  # type: ignore[arg-type]
    thread.join(10)


async def test_a_pack_takes_what_packs_take_however_many_run_beside_it() -> None:
    """Six slots: together they are six times as fast as each pack by itself."""
    slots = 6
    model = FakeModel()
    model.runner.slots = slots
    model.info = type(model.info)("fake-cpu", "fp32", 8192, 1, slots=slots)
    model.runner.fail = lambda _: time.sleep(0.5)
    loop = asyncio.get_running_loop()
    scheduler = Scheduler(
        model, max_queued_documents=99, max_queued_bytes=9999, counters=Counters(), loop=loop, first_pack_s=30
    )
    thread = threading.Thread(target=scheduler.serve)
    thread.start()
    job = scheduler.admit(4 * slots)
    scheduler.feed(job, segment([1]), tuple(segment([2] * 8) for _ in range(4 * slots)))
    await asyncio.sleep(0.7)  # all threads are there, and packs are measured
    seen = []
    while not job.outcome.done():
        seen.append(scheduler.proves_life(0.1))
        await asyncio.sleep(0.1)
    assert all(seen)
    assert len(seen) > 5
    scheduler.withdraw(job)
    scheduler.stop(RuntimeError)  # type: ignore[arg-type]
    thread.join(10)


async def test_before_anything_was_measured_a_pack_may_take_as_long_as_loading_did() -> None:
    model = FakeModel()
    loop = asyncio.get_running_loop()
    scheduler = Scheduler(
        model, max_queued_documents=99, max_queued_bytes=9999, counters=Counters(), loop=loop, first_pack_s=30
    )
    thread = threading.Thread(target=scheduler.serve)
    thread.start()
    model.runner.gate.clear()
    job = scheduler.admit(1)
    scheduler.feed(job, segment([1, 2]), (segment([3]),))
    await asyncio.to_thread(model.runner.arrived.wait, 10)
    await asyncio.sleep(0.1)
    assert scheduler.proves_life(0.01)
    model.runner.gate.set()
    await job.outcome
    scheduler.withdraw(job)
    scheduler.stop(RuntimeError)  # type: ignore[arg-type]
    thread.join(10)


async def test_a_step_that_falls_silent_gets_no_more_time(tmp_path: Path) -> None:
    """Half an hour is what a build may be silent for; the clock alone feeds nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "n"))
        ear.setblocking(False)
        state = DaemonState(ServerSettings(), Counters())
        variables = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "150000"}
        heartbeat = Heartbeat(Notifier(variables), state)
        heartbeat.start()
        progress = Progress(Step.BUILD_INT8, "compiling text.plan")
        state.report(progress)
        await asyncio.sleep(0.2)
        assert b"EXTEND_TIMEOUT_USEC=60000000" in heard(ear)
        state.heard_s = time.monotonic() - 1900
        await asyncio.sleep(0.2)
        assert b"EXTEND" in heard(ear), "the compiler may still be at it"
        state.heard_s = time.monotonic() - progress.patience_s
        await asyncio.sleep(0.2)
        heard(ear)
        await asyncio.sleep(0.2)
        assert heard(ear) == b""
        heartbeat.stop()


def heard(ear: socket.socket) -> bytes:
    messages: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            messages.append(ear.recv(4096))
    return b"\n".join(messages)
