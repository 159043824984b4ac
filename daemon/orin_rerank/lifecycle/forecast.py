"""How long the rest of several builds will take, from how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

__all__ = ["Forecast"]

_K = TypeVar("_K", bound="Hashable")

_TOO_EARLY: Final = 0.02
"""Before this share of all is done, what it took says nothing of the rest."""


class Forecast(Generic[_K]):
    """Takes the rest to go as fast as what is done; so it improves as it goes.

    Args:
        efforts: What each build takes, in any one unit.
        in_seconds: Whether that unit is seconds, since they were measured before; then there is a forecast at once.
    """

    def __init__(self, efforts: Mapping[_K, float], *, in_seconds: bool = False) -> None:
        self._left = dict(efforts)
        self._fractions: dict[_K, float] = dict.fromkeys(efforts, 0.0)
        self._in_seconds = in_seconds

    def skip(self, key: _K) -> None:
        """A build turns out not to be needed."""
        self._left.pop(key, None)
        self._fractions.pop(key, None)

    def ended(self, key: _K) -> None:
        """A build ended before it was done: what is done of it took its time, the rest will take none."""
        if key in self._left:
            self._left[key] *= self._fractions[key]
            self._fractions[key] = 1.0

    def moved(self, key: _K, fraction: float) -> None:
        """So much of a build is done, from 0 to 1; it may be less than before, after a failed attempt."""
        if key in self._left:
            self._fractions[key] = fraction

    @property
    def fraction(self) -> float:
        """What share of all is done, from 0 to 1."""
        total = sum(self._left.values())
        return self._done / total if total else 1.0

    def remaining_s(self, elapsed_s: float) -> float | None:
        """Seconds until all is done; None where nothing can be said yet.

        Args:
            elapsed_s: Seconds since the first build began.
        """
        total, done = sum(self._left.values()), self._done
        if done <= _TOO_EARLY * total:
            return max(total - elapsed_s, 0.0) if self._in_seconds or not total else None
        return elapsed_s * (total - done) / done

    @property
    def _done(self) -> float:
        return sum(self._left[key] * fraction for key, fraction in self._fractions.items())
