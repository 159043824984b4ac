"""The one thread that talks to CUDA's driver.

A context belongs to the thread that it was pushed in; a call from another one fails, or finds no context. So the
primary context is retained and pushed in a worker thread, everything that is made in it stays there, and it is popped
and released when that thread ends: at `close`, at the interpreter's exit, and after any error. Whoever wants something
of the GPU submits a function and waits. ONNX Runtime and TensorRT share the primary context.

While a stream works the thread is free: it polls the streams' events between its tasks, so one slot's work is enqueued
while another's runs.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orin_rerank.engines.cuda_driver import DeviceInfo, Driver, PyCudaDriver, is_device_lost
from orin_rerank.errors import DeviceLostError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.engines.cuda_driver import DriverStream

__all__ = ["CudaThread", "Stream", "as_engine_error"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_SPIN_S: Final = 50e-6
"""How long a stream is polled without a pause: a small copy is done sooner than a thread wakes up."""

_POLL_S: Final = 200e-6
"""Longest pause between two looks at a stream; a hundredth of what a pack takes."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of the CUDA thread's.

    Attributes:
        number: Which of them.
        handle: The driver's `CUstream`, as TensorRT takes it.
    """

    number: int
    handle: int


@dataclass(slots=True)
class _Task:
    """A function to call and, where there is a stream, work of it to wait for."""

    function: Callable[[Driver], Any]
    stream: Stream | None
    outcome: Future[Any] = field(default_factory=Future)
    result: Any = None
    error: BaseException | None = None
    since: float = 0.0


class CudaThread:
    """Owns one GPU's primary context; safe to use from every thread.

    Args:
        ordinal: Which GPU.
        driver: The driver; None means pycuda's.

    Raises:
        EngineError: If there is no such GPU, or no driver.
    """

    def __init__(self, ordinal: int = 0, driver: Driver | None = None) -> None:
        self.ordinal = ordinal
        self._driver: Driver = driver or PyCudaDriver()
        # No SimpleQueue: in CPython 3.12 its get() never returns where a timeout of microseconds passes while it looks
        # at a lock that an earlier put() left open. Once in some 100,000 looks at a stream that hung a run.
        self._tasks: queue.Queue[_Task | None] = queue.Queue()
        self._streams: list[DriverStream] = []
        self._waiting: list[_Task] = []
        self._lost: str | None = None
        self._closing = False
        self._submitting = threading.Lock()
        opened: Future[DeviceInfo] = Future()
        # A daemon, since threads that are not are joined before anything registered with atexit could end this one.
        self._thread = threading.Thread(target=self._main, args=(ordinal, opened), name="cuda", daemon=True)
        self._thread.start()
        self.info = opened.result()
        atexit.register(self.close)

    def call(self, function: Callable[[Driver], _T]) -> _T:
        """Calls a function in the CUDA thread and waits for it, not for the work that it enqueues.

        Raises:
            DeviceLostError: If the GPU computes nothing right any more.
            EngineError: If the driver fails otherwise, or the thread has been closed.
        """
        result: _T = self._submit(_Task(function, None))
        return result

    def run(self, stream: Stream, enqueue: Callable[[Driver, DriverStream], _T]) -> _T:
        """Calls a function that enqueues work on a stream, and waits until the stream has done all of it.

        The CUDA thread serves others meanwhile. Where the function fails half-way, what it had enqueued is waited for
        too: it may still read or write buffers that the caller is about to give back.

        Raises:
            DeviceLostError: If the GPU computes nothing right any more.
            EngineError: If the driver fails otherwise, or the thread has been closed.
        """
        result: _T = self._submit(_Task(lambda driver: enqueue(driver, self._streams[stream.number]), stream))
        return result

    def stream(self) -> Stream:
        """Makes a stream; it lives until `close`."""

        def make(driver: Driver) -> Stream:
            self._streams.append(driver.stream())
            return Stream(len(self._streams) - 1, self._streams[-1].handle)

        return self.call(make)

    @property
    def lost(self) -> bool:
        """Whether the GPU has been lost."""
        return self._lost is not None

    def check(self) -> None:
        """Makes sure that the GPU can still be used.

        Raises:
            DeviceLostError: If it has been lost.
        """
        if self._lost is not None:
            raise DeviceLostError(self._lost)

    def lose(self, reason: str) -> DeviceLostError:
        """Notes that another library found the GPU lost; from now on nothing is submitted to it.

        Returns:
            The error to raise.
        """
        if self._lost is None:
            self._lost = reason
            _log.error("the GPU is lost; only a new process can use it again")
        return DeviceLostError(self._lost)

    def close(self) -> None:
        """Pops and releases the primary context and ends the thread; whoever still waits gets an error."""
        atexit.unregister(self.close)
        with self._submitting:
            if not self._closing:
                self._closing = True
                self._tasks.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _submit(self, task: _Task) -> Any:
        assert self._thread is not threading.current_thread(), "the CUDA thread would wait for itself"
        with self._submitting:
            self.check()
            if self._closing:
                raise EngineError("the GPU has been closed")
            self._tasks.put(task)
        return task.outcome.result()

    def _main(self, ordinal: int, opened: Future[DeviceInfo]) -> None:
        try:
            try:
                info = self._driver.open(ordinal)
            except BaseException as error:  # noqa: BLE001  # goes to who waits
                opened.set_exception(self._typed(error))
                return
            opened.set_result(info)
            while (task := self._next()) is not None:
                self._start(task)
        finally:
            self._end()

    def _next(self) -> _Task | None:
        """The next task, None at the end; settles what streams have done until one comes."""
        while self._waiting:
            self._waiting = [task for task in self._waiting if not self._settled(task)]
            with contextlib.suppress(queue.Empty):
                pause = self._pause()
                return self._tasks.get(timeout=pause) if pause > 0 else self._tasks.get_nowait()
        return self._tasks.get()

    def _pause(self) -> float:
        """Seconds until the next look at the streams: an eighth of what the youngest has taken, within limits."""
        if not self._waiting:
            return 0.0
        elapsed = time.perf_counter() - self._waiting[-1].since
        return 0.0 if elapsed < _SPIN_S else min(_POLL_S, elapsed / 8)

    def _start(self, task: _Task) -> None:
        try:
            task.result = task.function(self._driver)
        except BaseException as error:  # noqa: BLE001  # goes to who waits
            task.error = self._typed(error)
            if task.stream is None or isinstance(task.error, DeviceLostError):
                task.outcome.set_exception(task.error)
                return
        if task.stream is None:
            task.outcome.set_result(task.result)
            return
        try:
            self._streams[task.stream.number].record()
        except BaseException as error:  # noqa: BLE001  # goes to who waits
            task.outcome.set_exception(task.error or self._typed(error))
            return
        task.since = time.perf_counter()
        if not self._settled(task):
            self._waiting.append(task)

    def _settled(self, task: _Task) -> bool:
        assert task.stream is not None
        try:
            if not self._streams[task.stream.number].done():
                return False
        except BaseException as error:  # noqa: BLE001  # goes to who waits
            task.error = self._typed(error)
        if task.error is not None:
            task.outcome.set_exception(task.error)
        else:
            task.outcome.set_result(task.result)
        return True

    def _typed(self, error: BaseException) -> BaseException:
        """What to raise for an error: the driver's become the project's, a bug of ours stays what it is."""
        if not isinstance(error, self._driver.errors):
            return error
        typed = as_engine_error(error, "CUDA failed")
        if isinstance(typed, DeviceLostError):
            self.lose(str(typed))
        return typed

    def _end(self) -> None:
        """Leaves nothing behind, neither a context nor a thread that waits."""
        self._streams.clear()
        try:
            # Of a lost GPU too: a thread that ends with a context on pycuda's stack aborts the process.
            self._driver.close()
        except self._driver.errors as error:
            if self._lost is None:
                _log.warning("the GPU could not be released", exc_info=error)
        left, self._waiting = self._waiting, []
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    left.append(task)
        for task in left:
            task.outcome.set_exception(EngineError("the GPU has been closed"))


def as_engine_error(error: Exception, what: str) -> EngineError:
    """A foreign library's error as the project's.

    Args:
        error: The error; its text decides whether the GPU is lost.
        what: What failed, for people.
    """
    kind = DeviceLostError if is_device_lost(str(error)) else EngineError
    typed = kind(f"{what}: {error}")
    typed.__cause__ = error
    return typed
