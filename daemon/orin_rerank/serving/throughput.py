"""How fast the engine has been lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Throughput"]

_MEMORY: Final = 0.9
"""What a pack's weight falls to with every later one: about the last ten packs speak."""


@dataclass(slots=True)
class Throughput:
    """Exponentially weighted rates; time in which the engine had nothing to do does not count.

    Packs overlap where the engine has several slots: each counts for the time since the one before it ended. Sums
    rather than a mean of ratios, so that a pack weighs as much as the time that it took.
    """

    _tokens: float = 0.0
    _documents: float = 0.0
    _seconds: float = 0.0
    _own_seconds: float = 0.0
    _last_ended: float = 0.0

    def observe(self, *, tokens: int, documents: int, started: float, ended: float) -> None:
        """Notes one pack, in the order in which packs end; the times are in seconds, from any beginning."""
        seconds = ended - max(started, self._last_ended)
        self._last_ended = ended
        self._tokens = self._tokens * _MEMORY + tokens
        self._documents = self._documents * _MEMORY + documents
        self._seconds = self._seconds * _MEMORY + seconds
        self._own_seconds = self._own_seconds * _MEMORY + ended - started

    def seconds_for_tokens(self, tokens: float) -> float | None:
        """How long the engine takes for so many tokens, all slots together; None before the first pack."""
        return tokens * self._seconds / self._tokens if self._tokens else None

    def seconds_for_pack(self, tokens: float) -> float | None:
        """How long a pack of so many tokens takes from its begin to its end; None before the first."""
        return tokens * self._own_seconds / self._tokens if self._tokens else None

    def seconds_for_documents(self, documents: float) -> float | None:
        """The same of documents."""
        return documents * self._seconds / self._documents if self._documents else None
