"""How many tokens to put into one pack, from times measured on this machine.

Larger is not always faster: every document attends to the whole pack under a mask, so attention grows with the square
of its length, and what no longer fits a cache is slower. But each pack computes its prefix again, so a long prefix
asks for longer packs. With `t(S)` the measured time of a pack of S tokens and a prefix of p tokens, a pack does
`S - p` tokens of useful work, and the best S is where `t(S) / (S - p)` is smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orin_rerank.errors import InternalError

__all__ = ["TokenBudget"]


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The measured ladder of pack lengths.

    Attributes:
        tokens: Pack lengths that were measured, ascending.
        seconds: Median time of a pack of each length.
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

    def for_prefix(self, prefix_tokens: int) -> int:
        """The pack length that gives the most document tokens per second behind such a prefix.

        A prefix that leaves no room on the ladder gets twice its own length: still one prefix to one part of work.
        """
        usable = [(t, s) for t, s in zip(self.tokens, self.seconds, strict=True) if t > prefix_tokens]
        if not usable:
            return 2 * prefix_tokens
        return min(usable, key=lambda sample: sample[1] / (sample[0] - prefix_tokens))[0]
