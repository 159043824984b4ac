"""How long packs should be on this machine: measured, by running some of each length."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.lifecycle.sizes import DOCUMENT_TOKENS, LADDER
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.packing.pack import Pack, PackGroup
from orin_rerank.prompt.encoded import EncodedSegment

if TYPE_CHECKING:
    from orin_rerank.engines.runner import Runner
    from orin_rerank.graph.architecture import Architecture

__all__ = ["measure_budget"]

_GIVE_UP: Final = 0.93
"""Longer packs are not tried once two in a row reach only this share of the best: from there throughput falls."""

_REPEATS: Final = 3


def measure_budget(runner: Runner, architecture: Architecture, most: int | None = None) -> TokenBudget:
    """Times packs of each length on the ladder, as many side by side as the engine runs.

    The packs' prefix is known after the first, as it is when a request has many documents.

    Args:
        runner: Runs them.
        architecture: The model's.
        most: Tokens of the longest pack that is tried; None means what the engine holds.
    """
    most = min(runner.info.max_tokens, most or runner.info.max_tokens)
    rng = np.random.default_rng(0)

    def segment(tokens: int, start: int) -> EncodedSegment:
        ids = rng.integers(0, architecture.text.vocabulary, tokens, dtype=np.int32)
        positions = np.tile(np.arange(start, start + tokens, dtype=np.int32), (3, 1))
        return EncodedSegment(ids, positions, np.full(tokens, -1, np.int32), (), tokens, 0)

    prefix = segment(DOCUMENT_TOKENS, 0)

    def pack(tokens: int) -> Pack:
        documents = tuple(segment(DOCUMENT_TOKENS, len(prefix)) for _ in range(tokens // DOCUMENT_TOKENS))
        return Pack((PackGroup(prefix, documents),), tuple(range(len(documents))), tokens)

    runner.run(pack(LADDER[0]))
    samples = []
    slots = runner.info.slots
    with ThreadPoolExecutor(slots) as threads:
        for tokens in LADDER:
            if tokens > most:
                break
            batch = [pack(tokens) for _ in range(slots)]
            times = []
            for _ in range(_REPEATS):
                started = time.perf_counter()
                list(threads.map(runner.run, batch))
                times.append(time.perf_counter() - started)
            # The least time: whatever else the machine does can only lengthen one.
            samples.append((tokens, min(times)))
            rates = [length / seconds for length, seconds in samples]
            if len(rates) > 2 and max(rates[-2:]) < _GIVE_UP * max(rates):
                break
    return TokenBudget.measured(samples)
