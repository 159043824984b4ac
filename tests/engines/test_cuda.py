"""The CUDA thread: one thread for every call, one push, one pop, whatever happens."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engines.fake_driver import ILLEGAL, CudaError, FakeDriver, FakeStream
from orin_rerank.engines.cuda import CudaThread, Stream
from orin_rerank.engines.cuda_errors import is_device_lost
from orin_rerank.errors import DeviceLostError, EngineClosedError, EngineError

TESTS = Path(__file__).resolve().parents[1]


def test_every_call_comes_from_one_thread_and_the_context_is_released_once() -> None:
    driver = FakeDriver()
    cuda = CudaThread(driver=driver)
    with ThreadPoolExecutor(8) as threads:
        seen = set(threads.map(lambda _: cuda.call(lambda _: threading.get_ident()), range(200)))
    assert seen == {driver.opened_by}
    assert seen != {threading.get_ident()}
    assert cuda.info.name == "fake 0"
    cuda.close()
    cuda.close()
    assert (driver.opened, driver.closed) == (1, 1)
    with pytest.raises(EngineClosedError):
        cuda.call(lambda d: d.free_bytes())


def test_no_gpu_is_a_typed_error_and_leaves_no_thread() -> None:
    before = threading.active_count()
    driver = FakeDriver(fails=CudaError("cuInit failed: no CUDA-capable device is detected"))
    with pytest.raises(EngineError, match="no CUDA-capable device"):
        CudaThread(driver=driver)
    assert driver.closed == 1
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_the_thread_serves_others_while_a_stream_works() -> None:
    cuda = CudaThread(driver=FakeDriver(stream_s=0.2))
    stream = cuda.stream()
    started = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(cuda.run, stream, lambda _, raw: raw.handle)
        calls = 0
        while not running.done():
            cuda.call(lambda _: None)
            calls += 1
        assert running.result() == stream.handle
    assert 0.2 <= time.monotonic() - started < 2
    assert calls > 10
    cuda.close()


def test_streams_finish_in_any_order() -> None:
    driver = FakeDriver()
    cuda = CudaThread(driver=driver)
    streams = [cuda.stream() for _ in range(4)]
    assert len({stream.handle for stream in streams}) == 4

    def work(number: int) -> int:
        return cuda.run(streams[number % 4], lambda _, __: number)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(1000))) == list(range(1000))
    cuda.close()


def test_no_wait_is_ever_missed() -> None:
    """Streams that take about as long as a look at them, one caller and nobody else who could wake the thread."""
    cuda = CudaThread(driver=FakeDriver(stream_s=60e-6))
    stream = cuda.stream()
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            sum(range(200))

    disturbers = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in disturbers:
        thread.start()
    done = 0

    def work() -> None:
        nonlocal done
        for _ in range(500):
            cuda.run(stream, lambda _, __: None)
            done += 1

    worker = threading.Thread(target=work, daemon=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    worker.start()
    worker.join(30)
    sys.setswitchinterval(interval)
    stop.set()
    for thread in disturbers:
        thread.join()
    assert done == 500
    cuda.close()


def test_a_bug_of_ours_stays_what_it_is_and_the_thread_goes_on() -> None:
    cuda = CudaThread(driver=FakeDriver())

    def bug(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cuda.call(bug)
    with pytest.raises(ZeroDivisionError):
        cuda.run(cuda.stream(), lambda driver, _: bug(driver))
    assert not cuda.lost
    assert cuda.call(lambda _: 3) == 3
    cuda.close()


def test_what_was_enqueued_before_a_failure_is_waited_for() -> None:
    """Its caller gives back buffers that the stream may still be writing to."""
    cuda = CudaThread(driver=FakeDriver(stream_s=0.05))
    done = []

    def half(_: object, raw: FakeStream) -> None:
        raw.left.append(lambda: done.append("first half"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cuda.run(cuda.stream(), half)
    assert done == ["first half"]
    cuda.close()


def test_out_of_memory_is_an_error_and_no_loss() -> None:
    driver = FakeDriver()
    driver.out_of_memory_at = 100
    cuda = CudaThread(driver=driver)
    with pytest.raises(EngineError, match="out of memory") as caught:
        cuda.call(lambda d: d.device_memory(100))
    assert not isinstance(caught.value, DeviceLostError)
    assert cuda.call(lambda d: d.device_memory(99)).host.nbytes == 99
    cuda.close()
    assert driver.closed == 1


def test_after_an_illegal_address_nothing_is_submitted_any_more() -> None:
    driver = FakeDriver()
    cuda = CudaThread(driver=driver)
    stream = cuda.stream()
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        cuda.run(stream, lambda d, raw: d.copy_on_device(0xBAD, 0xBAD, 8, raw))
    calls = []
    with pytest.raises(DeviceLostError):
        cuda.call(calls.append)
    with pytest.raises(DeviceLostError):
        cuda.check()
    assert calls == []
    assert cuda.lost
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        cuda.close()
    assert driver.closed == 1  # a context that is left on pycuda's stack aborts the process


def test_a_loss_that_another_library_met_counts() -> None:
    cuda = CudaThread(driver=FakeDriver())
    assert isinstance(cuda.lose("CUDA failure 700"), DeviceLostError)
    for use in (lambda: cuda.call(lambda _: None), cuda.close):
        with pytest.raises(DeviceLostError, match="700"):
            use()


def test_a_loss_that_tensorrt_met_in_a_call_counts() -> None:
    cuda = CudaThread(driver=FakeDriver())

    def load(_: object) -> None:
        raise DeviceLostError("no engine", item="text.plan")

    with pytest.raises(DeviceLostError):
        cuda.call(load)
    assert cuda.lost
    with pytest.raises(DeviceLostError, match=r"text\.plan: no engine"):
        cuda.close()


@pytest.mark.parametrize("broken", [ILLEGAL, "cuCtxDestroy failed: what no list has"])
def test_a_loss_that_only_the_release_meets_is_told(broken: str) -> None:
    driver = FakeDriver()
    cuda = CudaThread(driver=driver)
    driver.broken = broken
    if broken == ILLEGAL:
        with pytest.raises(DeviceLostError):
            cuda.close()
    else:
        cuda.close()
    assert driver.closed == 1


@pytest.mark.parametrize("call", ["record", "done"])
def test_a_stream_whose_end_cannot_be_told_is_a_loss_whatever_the_error_says(call: str) -> None:
    """A call without arguments failed, so the device did; and what it still writes to, nobody knows."""
    driver = FakeDriver()
    cuda = CudaThread(driver=driver)

    def enqueue(_: object, raw: FakeStream) -> None:
        def fail() -> bool:
            raise CudaError("cuEventQuery failed: an error that no list has")

        setattr(raw, call, fail)

    for use in (lambda: cuda.run(cuda.stream(), enqueue), cuda.close):
        with pytest.raises(DeviceLostError, match="no list has"):
            use()


def test_a_stream_that_comes_to_no_end_is_a_loss() -> None:
    cuda = CudaThread(driver=FakeDriver(stream_s=600), answer_s=0.2)
    begin = time.monotonic()
    with pytest.raises(DeviceLostError, match=r"not come to its end in 0\.2 s"):
        cuda.run(cuda.stream(), lambda _, __: None)
    with pytest.raises(DeviceLostError):
        cuda.close()
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("lost", [True, False])
def test_a_driver_that_never_answers_does_not_hold_up_the_end(lost: bool) -> None:
    class Hanging(FakeDriver):
        def close(self) -> None:
            threading.Event().wait()

    cuda = CudaThread(driver=Hanging(), answer_s=0.5)
    if lost:
        cuda.lose("gone")
    begin = time.monotonic()
    with pytest.raises(DeviceLostError, match="gone" if lost else "does not come to an end"):
        cuda.close()
    assert time.monotonic() - begin < 5


def test_what_must_go_before_the_context_goes_in_its_thread_the_last_first() -> None:
    driver = FakeDriver()
    cuda = CudaThread(driver=driver)
    gone: list[int] = []

    def free(number: int) -> None:
        driver.enter()
        gone.append(number)
        if number == 1:
            raise CudaError("cuMemFree failed: invalid argument")

    for number in range(3):
        cuda.at_end(lambda n=number: free(n))
    cuda.close()
    assert gone == [2, 1, 0]
    cuda = CudaThread(driver=FakeDriver())
    cuda.at_end(lambda: gone.append(3))
    cuda.lose("gone")
    with pytest.raises(DeviceLostError):
        cuda.close()
    assert 3 not in gone


def test_what_an_error_holds_goes_in_the_thread_and_at_once() -> None:
    """A context of TensorRT's in the frame of a failed call would outlive its memory, and go in any thread."""
    ends: list[int] = []

    class Thing:
        pass

    def fail(_: object, __: object = None) -> None:
        thing = Thing()
        weakref.finalize(thing, lambda: ends.append(threading.get_ident()))
        try:
            raise KeyError("inner")  # noqa: TRY301
        except KeyError as error:
            raise EngineError("outer") from error

    driver = FakeDriver()
    cuda = CudaThread(driver=driver)
    with pytest.raises(EngineError) as one:
        cuda.call(fail)
    with pytest.raises(EngineError) as two:
        cuda.run(cuda.stream(), fail)
    assert ends == [driver.opened_by] * 2
    assert (one.value.message, two.value.message) == ("outer", "outer")
    cuda.close()


def test_ctrl_c_waits_for_what_was_enqueued() -> None:
    cuda = CudaThread(driver=FakeDriver(stream_s=0.3))
    stream, done = cuda.stream(), []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            cuda.run(stream, lambda _, raw: raw.left.append(lambda: done.append("written")))
        assert done == ["written"]
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    cuda.close()


def test_streams_that_are_at_work_come_to_their_end_first() -> None:
    cuda = CudaThread(driver=FakeDriver(stream_s=0.2))
    stream, done = cuda.stream(), []
    cuda.at_end(lambda: done.append("freed"))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(cuda.run, stream, lambda _, raw: raw.left.append(lambda: done.append("written")))
        while not cuda._waiting:
            time.sleep(0.01)
        cuda.close()
        assert running.result(5) is None
    assert done == ["written", "freed"]


def test_who_waits_when_it_closes_gets_an_error() -> None:
    cuda = CudaThread(driver=FakeDriver(stream_s=60), finish_s=0.05)
    stream = cuda.stream()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(cuda.run, stream, lambda _, __: None) for _ in range(2)]
        time.sleep(0.05)
        cuda.close()
        for future in waiting:
            with pytest.raises(EngineClosedError):
                future.result(5)


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "raise RuntimeError('unhandled')",
        "sys.exit(3)",
        "threading.Thread(target=lambda: cuda.call(lambda d: time.sleep(0.2))).start()",
        "import gc; del cuda; gc.collect()",
        "cuda.lose('gone')",
    ],
)
def test_the_context_is_released_when_the_interpreter_ends(ending: str) -> None:
    script = (
        "import sys, threading, time\n"
        "from engines.fake_driver import FakeDriver\n"
        "from orin_rerank.engines.cuda import CudaThread\n"
        "class Driver(FakeDriver):\n"
        "    def close(self):\n"
        "        super().close()\n"
        "        print('released', flush=True)\n"
        "cuda = CudaThread(driver=Driver())\n"
        f"{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=TESTS, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.count("released") == 1, done.stderr


@pytest.mark.parametrize(
    "message",
    [
        ILLEGAL,
        "cuEventQuery failed: unspecified launch failure",
        "cuStreamSynchronize failed: the launch timed out and was terminated",
        "Non-zero status code while running Gather. CUDA failure 700: an illegal memory access was encountered ; GPU=0",
        "CUDA error 719",
        "[executionContext.cpp] Error Code 1: Cuda Runtime (misaligned address)",
        "Error when binding input: CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; file=x.cc",
        "cudaErrorIllegalAddress: an illegal memory access was encountered",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "GPU is lost.  Reboot the system to recover this GPU",
    ],
)
def test_what_a_context_does_not_survive(message: str) -> None:
    assert is_device_lost(message)


@pytest.mark.parametrize(
    "message",
    [
        "cuMemAlloc failed: out of memory",
        "CUDA failure 2: out of memory ; GPU=0 ; file=x.cc ; line=700 ; expr=cudaMalloc",
        "cuMemcpyHtoDAsync failed: invalid argument",
        "Error Code 1: Cuda Runtime (out of memory)",
        "CUDA failure 1: invalid argument",
        "INVALID_ARGUMENT : indices element out of data bounds, idx=700",
        "",
    ],
)
def test_what_is_an_error_like_any_other(message: str) -> None:
    assert not is_device_lost(message)


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is not None, reason="pycuda is installed")
def test_without_pycuda_the_error_says_so() -> None:
    with pytest.raises(EngineError) as caught:
        CudaThread()
    assert caught.value.item == "pycuda"


def test_a_stream_is_a_value() -> None:
    assert Stream(1, 2) == Stream(1, 2)
