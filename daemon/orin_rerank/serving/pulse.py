"""Whether an engine thread lives: it has come round for its next pack lately, or its pack is not overdue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pulse"]

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
