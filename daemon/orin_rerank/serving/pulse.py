"""Whether the engine threads live: each has come round for its next pack lately, or its pack is not overdue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pulse", "Pulses"]

_SLOWER: Final = 5.0
"""By how much a pack may be slower than those before it: pictures are to be encoded, something else computes, too."""


@dataclass(slots=True)
class Pulse:
    """Of one thread. Guarded by the scheduler's lock, but for `runs`, which its own thread calls between packs."""

    _answered: int = 0
    _tokens: int | None = None
    _since_s: float = 0.0

    def came_round(self, asked: int) -> None:
        """The thread looks for a pack, when it has been asked for a sign of life so often."""
        self._answered = asked
        self._tokens = None

    def runs(self, tokens: int, now_s: float) -> None:
        """The thread runs a pack of so many tokens from now on."""
        self._since_s = now_s
        self._tokens = tokens

    def beats(self, asked: int, now_s: float, patience_s: float, usual_s: Callable[[int], float]) -> bool:
        """Whether it lives.

        Args:
            asked: How often it had been asked for a sign of life when that was done last.
            now_s: On the scheduler's clock.
            patience_s: How long a pack may take in any case.
            usual_s: Says how long a pack of so many tokens takes as a rule.
        """
        tokens = self._tokens
        if tokens is None:
            return self._answered >= asked
        return now_s - self._since_s < max(patience_s, _SLOWER * usual_s(tokens))


@dataclass(slots=True)
class Pulses:
    """Of all engine threads. Guarded by the scheduler's lock.

    Attributes:
        threads: How many there are once all have started.
        first_pack_s: How long a pack may take before any has been measured.
    """

    threads: int
    first_pack_s: float
    _pulses: list[Pulse] = field(default_factory=list)
    _asked: int = 0

    def of_another_thread(self) -> Pulse:
        """The pulse of a thread that begins."""
        pulse = Pulse()
        self._pulses.append(pulse)
        return pulse

    def came_round(self, pulse: Pulse) -> None:
        """A thread looks for a pack."""
        pulse.came_round(self._asked)

    def beat(self, now_s: float, patience_s: float, measured_s: Callable[[int], float | None]) -> bool:
        """Whether all have started and live, and asks each for its next sign of life.

        Args:
            now_s: On the scheduler's clock.
            patience_s: How long a pack may take in any case.
            measured_s: Says how long a pack of so many tokens takes as a rule; None before the first.
        """

        def usual_s(tokens: int) -> float:
            seconds = measured_s(tokens)
            return self.first_pack_s if seconds is None else seconds

        living = len(self._pulses) == self.threads and all(
            pulse.beats(self._asked, now_s, patience_s, usual_s) for pulse in self._pulses
        )
        self._asked += 1
        return living
