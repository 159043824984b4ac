"""How many tokens to put into one pack, from times measured on this machine.

Larger is not always faster: every token attends to the whole pack under a mask, so attention grows with the square of
its length, and what no longer fits a cache is slower. Smaller packs also start and end sooner, which is latency. So
the budget is the shortest measured length whose throughput is within a few per cent of the best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TokenBudget"]

_TOLERANCE: Final = 0.03


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The measured ladder of pack lengths.

    Attributes:
        tokens: Pack lengths that were measured, ascending.
        seconds: Time of a pack of each length.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.seconds) or list(self.tokens) != sorted(set(self.tokens)):
            raise InternalError("a token budget needs one time for each of its ascending pack lengths")

    @classmethod
    def fixed(cls, tokens: int) -> TokenBudget:
        """A budget that was set rather than measured."""
        return cls((tokens,), (1.0,))

    @classmethod
    def measured(cls, samples: Sequence[tuple[int, float]]) -> TokenBudget:
        """A budget from `(tokens, seconds)` pairs."""
        ordered = sorted(samples)
        return cls(tuple(t for t, _ in ordered), tuple(s for _, s in ordered))

    @property
    def best(self) -> int:
        """The shortest length whose tokens per second are within 3 % of the best."""
        fastest = max(t / s for t, s in zip(self.tokens, self.seconds, strict=True))
        return next(t for t, s in zip(self.tokens, self.seconds, strict=True) if t / s >= fastest * (1 - _TOLERANCE))

    def for_prefix(self, prefix_tokens: int) -> int:
        """The budget of a pack that must compute a prefix of this length: at least half of it is left for documents.

        Args:
            prefix_tokens: Tokens of the prefix; 0 where it is known already.
        """
        return max(self.best, prefix_tokens + self.best // 2)
