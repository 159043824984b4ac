"""Whether a plan computes attention in one kernel, which is what makes very long packs safe.

TensorRT-RTX 1.7 makes one kernel of the graph's attention, which keeps no scores. Whether TensorRT on a board does too
is not known before it has compiled. If it does not, it writes the scores of all tokens with all, twice in float16; and
where these are more than it can count, it asks for less memory than it writes to (seen with TensorRT-RTX from 2**32
scores on: 1.9 GB asked for, 19 needed). Nothing but the memory that a plan asks for tells which it was.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.footprint import EngineKind, scratch_bytes
from orin_rerank.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orin_rerank.engines.memory_plan import MemoryPlan

__all__ = ["COUNTABLE", "AskedScratch", "check_scores"]

COUNTABLE: Final = 1 << 31
"""Fewer elements than this no compiler miscounts."""
_WRITTEN: Final = 4
"""Bytes of scratch memory a score, where scores are written."""


@dataclass(frozen=True, slots=True)
class AskedScratch:
    """What a plan asks for, for one profile.

    Attributes:
        tokens: Most of a pack.
        known: Most rows of known prefixes.
        keep: Most rows to keep.
        nbytes: Scratch memory.
    """

    tokens: int
    known: int
    keep: int
    nbytes: int


def check_scores(plan: str, asked: Iterable[AskedScratch], memory: MemoryPlan) -> None:
    """Makes sure that a decoder's plan asks for as much memory as it uses.

    Args:
        plan: Its name, for the error.
        asked: What it asks for, for each profile.
        memory: What it was compiled by.

    Raises:
        PlanError: If it writes scores and a pack may have more of them than can be counted, or nothing tells that it
            does not; the message says with which limit to compile again.
    """
    heads = memory.model.architecture.text.heads
    profiles = [(one, heads * one.tokens * (one.known + one.tokens)) for one in asked]
    counted = [(one, scores) for one, scores in profiles if scores < COUNTABLE]
    if len(counted) == len(profiles):
        return
    # Nearly all of what is asked for grows with the tokens, so the longest packs that can be counted tell most.
    if counted and not _writes_scores(*max(counted, key=lambda pair: pair[1]), memory):
        return
    known = memory.capacity.known_rows
    # The largest n with heads * n * (known + n) < COUNTABLE
    longest = math.floor(math.sqrt(known**2 / 4 + (COUNTABLE - 1) / heads) - known / 2) - memory.model.suffix_tokens
    most = max(one.tokens for one, _ in profiles)
    raise PlanError(
        f"writes out attention's scores, of which packs of {most} tokens have more than can be counted; compile again "
        f"with --max-tokens {longest // 256 * 256}, and serve with it",
        item=plan,
    )


def _writes_scores(asked: AskedScratch, scores: int, memory: MemoryPlan) -> bool:
    """Whether a profile asks for what takes scores, rather than for what does without."""
    capacity = dataclasses.replace(
        memory.capacity, tokens=asked.tokens, known_rows=asked.known, keep_rows=min(asked.keep, asked.tokens)
    )
    architecture = memory.model.architecture
    without = scratch_bytes(architecture, capacity, None, memory.precision, EngineKind.TENSORRT)
    return asked.nbytes > without + _WRITTEN * scores // 2
