"""The one thread that talks to CUDA's driver.

A context belongs to the thread that it was pushed in; a call from another one fails, or finds no context. So the
primary context is retained and pushed in a worker thread, everything that is made in it stays there, and it is popped
and released when that thread ends: at `close`, at the interpreter's exit, and after any error. What must go before the
context does is registered with `at_end`. Whoever wants something of the GPU submits a function and waits. ONNX Runtime
and TensorRT share the primary context.

While a stream works the thread is free: it polls the streams' events between its tasks, so one slot's work is enqueued
while another's runs.

A GPU is lost after an error that its context does not survive, and where it does not answer any more. Then every call
is refused, nothing of it is freed, and `close` raises DeviceLostError, so that whoever closes it learns of it even
where the call that met the loss was not his.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
import time
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as OutOfTime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orin_rerank.engines.cuda_driver import DeviceInfo, Driver, PyCudaDriver
from orin_rerank.engines.cuda_errors import as_engine_error, let_go
from orin_rerank.errors import DeviceLostError, EngineClosedError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.engines.cuda_driver import DriverStream

__all__ = ["CudaThread", "Stream"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_SPIN_S: Final = 50e-6
"""How long a stream is polled without a pause: a small copy is done sooner than a thread wakes up."""

_POLL_S: Final = 200e-6
"""Longest pause between two looks at a stream; a hundredth of what a pack takes."""

_ANSWER_S: Final = 300.0
"""How long a stream, or the driver at the end, may take. The longest pack on the smallest board takes 30 s."""

_FINISH_S: Final = 10.0
"""How long streams that are still at work are waited for at the end."""

_LOST_S: Final = 1.0
"""How long the end of the thread is waited for where the GPU is lost: its driver may never answer again."""


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
        answer_s: How long a stream, or the driver at the end, may take before the GPU counts as lost.
        finish_s: How long `close` waits for streams that are at work.

    Raises:
        EngineError: If there is no such GPU, or no driver.
    """

    def __init__(
        self,
        ordinal: int = 0,
        driver: Driver | None = None,
        *,
        answer_s: float = _ANSWER_S,
        finish_s: float = _FINISH_S,
    ) -> None:
        self.ordinal = ordinal
        self._answer_s = answer_s
        self._finish_s = finish_s
        self._driver: Driver = driver or PyCudaDriver()
        # No SimpleQueue: in CPython 3.12 its get() never returns where a timeout of microseconds passes while it looks
        # at a lock that an earlier put() left open. Once in some 100,000 looks at a stream that hung a run.
        self._tasks: queue.Queue[_Task | None] = queue.Queue()
        self._streams: list[DriverStream] = []
        self._waiting: list[_Task] = []
        self._at_end: list[Callable[[], None]] = []
        self._lost: str | None = None
        self._closing = False
        self._submitting = threading.Lock()
        opened: Future[DeviceInfo] = Future()
        # A daemon, since threads that are not are joined before anything registered with atexit could end this one.
        self._thread = threading.Thread(target=self._main, args=(ordinal, opened), name="cuda", daemon=True)
        self._thread.start()
        self.info = opened.result()
        atexit.register(self._close_at_exit)

    def call(self, function: Callable[[Driver], _T]) -> _T:
        """Calls a function in the CUDA thread and waits for it, not for the work that it enqueues.

        Raises:
            DeviceLostError: If the GPU computes nothing right any more.
            EngineClosedError: If the thread has been closed.
            EngineError: If the driver fails otherwise.
        """
        result: _T = self._submit(_Task(function, None), None)
        return result

    def run(self, stream: Stream, enqueue: Callable[[Driver, DriverStream], _T]) -> _T:
        """Calls a function that enqueues work on a stream, and waits until the stream has done all of it.

        The CUDA thread serves others meanwhile. Where the function fails half-way, or Ctrl-C ends the wait, what was
        enqueued is waited for too: it may still read or write buffers that the caller is about to give back.

        Raises:
            DeviceLostError: If the GPU computes nothing right any more, or the stream comes to no end.
            EngineClosedError: If the thread has been closed.
            EngineError: If the driver fails otherwise.
        """
        task = _Task(lambda driver: enqueue(driver, self._streams[stream.number]), stream)
        result: _T = self._submit(task, self._answer_s)
        return result

    def stream(self) -> Stream:
        """Makes a stream; it lives until `close`."""

        def make(driver: Driver) -> Stream:
            self._streams.append(driver.stream())
            return Stream(len(self._streams) - 1, self._streams[-1].handle)

        return self.call(make)

    def at_end(self, function: Callable[[], None]) -> None:
        """Has a function called in the CUDA thread before the context is popped, the last registered first.

        Of a lost GPU, or one whose streams do not finish, it is not called: what is on it goes with the process.
        """
        self._at_end.append(function)

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
        """Pops and releases the primary context and ends the thread; whoever still waits gets an error.

        Raises:
            DeviceLostError: If the GPU has been lost, now or before, whether or not anybody was told.
        """
        atexit.unregister(self._close_at_exit)
        with self._submitting:
            if not self._closing:
                self._closing = True
                self._tasks.put(None)
        if self._thread is not threading.current_thread():
            self._join()
        self.check()

    def _close_at_exit(self) -> None:
        with contextlib.suppress(DeviceLostError):  # has been logged, and the exit code is settled
            self.close()

    def _join(self) -> None:
        """Waits for the thread, but not for ever: native code cannot be interrupted."""
        begin = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_LOST_S / 10)
            waited = time.monotonic() - begin
            if waited > self._answer_s:
                self.lose("the GPU's driver does not come to an end")
            if self.lost and waited > _LOST_S:
                return

    def _submit(self, task: _Task, limit_s: float | None) -> Any:
        assert self._thread is not threading.current_thread(), "the CUDA thread would wait for itself"
        with self._submitting:
            self.check()
            if self._closing:
                raise EngineClosedError("the GPU has been closed")
            self._tasks.put(task)
        try:
            return task.outcome.result(limit_s)
        except OutOfTime:
            if task.outcome.done():  # just now, or the error is the function's own
                return task.outcome.result()
            raise self.lose(f"a stream has not come to its end in {self._answer_s:g} s") from None
        except KeyboardInterrupt:
            wait([task.outcome], self._answer_s)
            raise

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
            let_go(error)
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
            task.outcome.set_exception(self._typed(error, of_stream=True))
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
            task.error = self._typed(error, of_stream=True)
        if task.error is not None:
            task.outcome.set_exception(task.error)
        else:
            task.outcome.set_result(task.result)
        return True

    def _typed(self, error: BaseException, *, of_stream: bool = False) -> BaseException:
        """What to raise for an error: the driver's become the project's, a bug of ours stays what it is.

        Args:
            error: The error.
            of_stream: Whether the end of a stream could not be marked or asked for. Nothing is wrong with such a call,
                so it is the device that failed, and nobody can tell any more when its buffers are free.
        """
        typed = as_engine_error(error, "CUDA failed") if isinstance(error, self._driver.errors) else error
        if of_stream and isinstance(typed, EngineError) and not isinstance(typed, DeviceLostError):
            typed = DeviceLostError(typed.message)
            typed.__cause__ = error
        if isinstance(typed, DeviceLostError):  # TensorRT may have met it first
            self.lose(str(typed))
        return typed

    def _end(self) -> None:
        """Leaves nothing behind, neither a context nor a thread that waits."""
        self._finish_streams()
        while self._at_end and not self._waiting and not self.lost:
            self._release(self._at_end.pop())
        self._streams.clear()
        # Of a lost GPU too: a thread that ends with a context on pycuda's stack aborts the process.
        self._release(self._driver.close)
        left, self._waiting = self._waiting, []
        with self._submitting:
            self._closing = True  # it may be a bug of ours that ends the thread
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    left.append(task)
        for task in left:
            task.outcome.set_exception(EngineClosedError("the GPU has been closed"))

    def _finish_streams(self) -> None:
        until = time.monotonic() + self._finish_s
        while self._waiting and not self.lost and time.monotonic() < until:
            self._waiting = [task for task in self._waiting if not self._settled(task)]
            time.sleep(_POLL_S)

    def _release(self, function: Callable[[], None]) -> None:
        """Calls what frees something; whatever that meets, the rest is freed too."""
        try:
            function()
        except Exception as error:  # noqa: BLE001  # nobody waits for it
            known = self.lost
            typed = self._typed(error)
            if not known and not self.lost:
                _log.warning("something of the GPU could not be released", exc_info=typed)
