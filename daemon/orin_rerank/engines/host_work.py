"""How the host keeps a GPU busy with pictures.

A pack of pictures goes back and forth: the host lays patches out, the GPU encodes them, the host copies their features,
the GPU decodes. Two slots hide the one behind the other, but only where they do not march in step: two packs that begin
together and share the GPU evenly come back to the host together, and the GPU waits for both. So the vision encoder runs
for one slot at a time, which keeps the second pack behind the first; and the host's work on the pictures of a run is
shared out among threads. docs/decisions/0014-pictures-on-a-gpu.md has the figures.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

__all__ = ["HostWork"]

_T = TypeVar("_T")

_THREADS: Final = 4
"""Who copies and lays out at a time; memory is no faster with more."""


class HostWork:
    """The host's part in runs of the vision encoder; safe to use from every thread.

    Args:
        for_gpu: Whether a GPU computes. A processor has no core to spare, and its slots share nothing.
    """

    def __init__(self, *, for_gpu: bool) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "pictures") if for_gpu else None
        self._turn = threading.Lock() if for_gpu else None

    def each(self, function: Callable[..., _T], *arguments: Iterable[Any]) -> list[_T]:
        """What `map` gives, as a list; what the function raises is raised once all have ended."""
        if self._threads is None:
            return list(map(function, *arguments))
        waiting = [self._threads.submit(function, *values) for values in zip(*arguments, strict=True)]
        try:
            return [future.result() for future in waiting]
        finally:
            for future in waiting:  # they write to a buffer that is given back
                future.exception()

    def turn(self) -> AbstractContextManager[object]:
        """Waits until no other slot runs the vision encoder; on a processor it does not."""
        return contextlib.nullcontext() if self._turn is None else self._turn

    def close(self) -> None:
        """Ends the threads; no work may be left."""
        if self._threads is not None:
            self._threads.shutdown()
