"""The process that compiles: a job on its standard input, events on its standard output, one line of JSON each.

It is made to be killed. Compiling may use up the memory of the machine, and then the kernel shall take this process and
no other; it may hang, and libraries of the GPU may end it. Nothing that it leaves behind is half-written but a part
file, which the parent removes.

After the job's line, standard input carries nothing: when it ends, the parent is gone or wants no plan any more, and
the build is cancelled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from orin_rerank.engines.tensorrt.job import BuildFailed, BuildJob, Failure, event_to_line
from orin_rerank.errors import (
    BuildCancelledError,
    BuildError,
    BuildOutOfMemoryError,
    GraphRefusedError,
    OrinRerankError,
    TensorRtMissingError,
)

if TYPE_CHECKING:
    from orin_rerank.engines.tensorrt.job import BuildEvent, Watch

__all__ = ["main", "run"]

_ORPHANED: Final = 3
"""What the process exits with where nobody waits for it any more."""
_BUG: Final = 70
_LAST_STEP_S: Final = 10.0
_FAILURES: Final[tuple[tuple[type[OrinRerankError], str], ...]] = (
    (GraphRefusedError, Failure.REFUSED),
    (BuildCancelledError, Failure.CANCELLED),
    (BuildOutOfMemoryError, Failure.MEMORY),
    (TensorRtMissingError, Failure.MISSING),
    (OrinRerankError, Failure.OTHER),
)


def main() -> int:
    """Compiles one graph."""
    tell = _event_stream()
    # A service manager asks every process of a service to end; whether this one shall, its parent says.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # not everywhere may a process offer itself
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    job = BuildJob.from_line(sys.stdin.readline())
    cancelled = threading.Event()
    threading.Thread(target=_wait_for_the_end_of_input, args=(cancelled,), daemon=True).start()
    outcome = _compile(job, tell, cancelled)
    tell(outcome)
    return 1 if isinstance(outcome, BuildFailed) else 0


def run() -> NoReturn:
    """Compiles one graph and ends the process."""
    code = _BUG
    try:
        code = main()
    except BaseException:  # noqa: BLE001  # its last line is what the parent tells
        traceback.print_exc()
    finally:
        # Not sys.exit(): libraries of a GPU have crashed or hung at their own unloading, and all of worth is on disk.
        sys.stderr.flush()
        os._exit(code)


def _compile(job: BuildJob, tell: Watch, cancelled: threading.Event) -> BuildEvent:
    try:
        # The bindings load hundreds of MB of libraries, and where there are none the parent is told like anything else.
        from orin_rerank.engines.tensorrt.build import build_plan  # noqa: PLC0415

        return build_plan(job, tell, cancelled.is_set)
    except OrinRerankError as error:
        why = next(why for kind, why in _FAILURES if isinstance(error, kind))
        return BuildFailed(why, error.message, error.item, error.advice if isinstance(error, BuildError) else None)
    except MemoryError:
        return BuildFailed(Failure.MEMORY, "Python could not allocate memory", job.graph.name)


def _event_stream() -> Watch:
    """Takes standard output for events alone; what libraries print there goes to standard error."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lock = threading.Lock()

    def tell(event: BuildEvent) -> None:
        try:
            with lock:
                stream.write(event_to_line(event) + "\n")
                stream.flush()
        except OSError:  # nobody listens; and no exception may pass through the compiler, which calls this
            os._exit(_ORPHANED)

    return tell


def _wait_for_the_end_of_input(cancelled: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1 << 12):
        pass
    cancelled.set()
    # A step may take minutes. The parent does not wait for it, and where there is no parent any more, nobody does.
    time.sleep(_LAST_STEP_S)
    os._exit(_ORPHANED)
