"""The process that compiles, seen from the one that waits for it."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import subprocess
import threading
from collections import deque
from typing import IO, TYPE_CHECKING, Final

from orin_rerank.engines.tensorrt.job import BuildFailed, Failure, event_from_line
from orin_rerank.engines.tensorrt.symptoms import advice_on, lacks_memory
from orin_rerank.errors import BuildError, BuildOutOfMemoryError, InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.engines.tensorrt.job import BuildEvent, BuildJob

__all__ = ["BuildProcess"]

_TAIL_LINES: Final = 50
_AFTER_A_CRASH: Final = (
    "give the same command again, it goes on from what is compiled; if it ends so again, remove the files of measured "
    "kernels (`timing` in the folder that `orin-rerank engines` names), or try another --level"
)
_NOT_STARTED: Final = (
    "the same command may work a moment later; if Python was updated while the daemon ran, restart the daemon"
)


class BuildProcess:
    """One process that compiles, and the threads that read what it says.

    Args:
        command: What to run.
        job: What to tell it.
        grace_s: From asking it to stop until it is killed.

    Raises:
        BuildError: If it cannot be started.
    """

    def __init__(self, command: Sequence[str], job: BuildJob, grace_s: float) -> None:
        self.job = job
        self._grace_s = grace_s
        self._events: queue.Queue[BuildEvent | InternalError | None] = queue.Queue()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._short_of_memory = ""
        self._was_killed_here = False
        self.has_ended = False
        # A group of its own: the terminal's Ctrl-C is ours to handle, and what it may start ends with it.
        try:
            self._process = subprocess.Popen(  # noqa: S603 # no shell, and no argument that came from outside
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            message = f"the process that compiles cannot be started: {error.strerror}"
            if error.errno == errno.ENOMEM:
                raise BuildOutOfMemoryError(message, item=job.graph.name) from error
            raise BuildError(message, item=job.graph.name, advice=_NOT_STARTED) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._input: IO[bytes] = self._process.stdin
        self._threads = [
            threading.Thread(target=self._read_events, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_errors, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        with contextlib.suppress(OSError):  # it died before it read; how will be seen
            self._input.write(f"{job.to_line()}\n".encode())
            self._input.flush()

    def close(self) -> None:
        """Ends it, whatever it does."""
        self._kill()
        self._wait()

    def next_event(self, timeout_s: float) -> BuildEvent | None:
        """What it says next; None if it says nothing in time, or has ended.

        Raises:
            InternalError: If it wrote what is no event.
        """
        try:
            found = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(found, InternalError):
            raise found
        self.has_ended = self.has_ended or found is None
        return found

    def stop(self) -> None:
        """Asks it to stop, which it does after a step, and kills it if it takes long."""
        self._close_input()
        try:
            self._process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            self._kill()

    def reconsidered(self, failed: BuildFailed) -> BuildFailed:
        """A failure whose cause the compiler does not know, but what libraries printed may tell."""
        self._wait()
        if not self._short_of_memory:
            return failed
        return BuildFailed(Failure.MEMORY, f"{failed.message} ({self._short_of_memory})", failed.item)

    def death(self) -> BuildError:
        """Why it ended without an outcome."""
        code = self._wait()
        graph = self.job.graph.name
        if self._short_of_memory:
            return BuildOutOfMemoryError(f"the compiler ran out of memory: {self._short_of_memory}", item=graph)
        if self._was_killed_here:
            return BuildError(
                "the process that compiles fell silent for good, but did not end", item=graph, advice=_AFTER_A_CRASH
            )
        if code == -signal.SIGKILL:
            return BuildOutOfMemoryError(
                "the process that compiles was killed (SIGKILL), as the kernel does where memory runs out", item=graph
            )
        how = f"exit status {code}"
        if code < 0:
            known = {number.value: number.name for number in signal.Signals}
            how = f"signal {known.get(-code, -code)}"
        said = self._tail[-1] if self._tail else "it said nothing"
        # A signal is the compiler's or a driver's doing, anything else a bug of ours.
        usual = _AFTER_A_CRASH if code < 0 else "that is a bug of orin-rerank's: report this line"
        return BuildError(
            f"the process that compiles ended by {how}: {said}", item=graph, advice=advice_on(said) or usual
        )

    def _read_events(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                if line.endswith(b"\n"):  # else it died over it, and how it did is to be told
                    self._events.put(_event(line))
        self._events.put(None)

    def _read_errors(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace").strip()
                if text:
                    self._tail.append(text)
                if not self._short_of_memory and lacks_memory(text):
                    self._short_of_memory = text

    def _wait(self) -> int:
        """Waits for its end, and for the last of what it wrote."""
        try:
            code = self._process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            code = self._kill()
        for thread in self._threads:
            thread.join(self._grace_s)
        return code

    def _kill(self) -> int:
        self._close_input()
        if self._process.poll() is None:
            self._was_killed_here = True
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _close_input(self) -> None:
        with contextlib.suppress(OSError):  # what was written has nobody to read it
            self._input.close()


def _event(line: bytes) -> BuildEvent | InternalError:
    """An event, or an error to be raised in the thread that asks for it."""
    try:
        return event_from_line(line)
    except InternalError as error:
        return error
