"""What a calibration did and what that took: for a person who waits, and to reckon with for larger models."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Ledger", "Stage", "Watcher"]


class Watcher(Protocol):
    """Who is told how a calibration gets on."""

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        """A stage has done so much of so much; a total of 0 means that it is not known."""


@dataclass(slots=True)
class Stage:
    """One stage.

    Attributes:
        name: For a person.
        seconds: How long it took.
        pairs: Pairs of a query and a document that went through the decoder.
        tokens: Tokens that the decoder computed.
        images: Images that the vision encoder computed.
        weight_bytes: Bytes of weights that were read from the bundle, apart from what an engine loads.
    """

    name: str
    seconds: float = 0.0
    pairs: int = 0
    tokens: int = 0
    images: int = 0
    weight_bytes: int = 0


class Ledger:
    """The stages so far.

    Args:
        watch: Told how each gets on.
        weight_bytes: Gives the bytes of weights read so far.
    """

    def __init__(self, watch: Watcher, weight_bytes: Callable[[], int] = lambda: 0) -> None:
        self.stages: list[Stage] = []
        self._watch = watch
        self._weight_bytes = weight_bytes

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Keeps account of what happens inside."""
        stage = Stage(name)
        self.stages.append(stage)
        self.tell(stage, 0, 0)
        started, read = time.perf_counter(), self._weight_bytes()
        try:
            yield stage
        finally:
            stage.seconds = time.perf_counter() - started
            stage.weight_bytes = self._weight_bytes() - read

    def tell(self, stage: Stage, done: int, total: int) -> None:
        """Says how far a stage is."""
        self._watch(stage.name, done, total)
