"""Ranking figures of one query, with ties counted at their expected position."""

from __future__ import annotations

import math
from collections.abc import Sequence

CUT = 10


def _discount(rank: int) -> float:
    return 1 / math.log2(1 + rank) if rank <= CUT else 0.0


def evaluate(scores: Sequence[float], relevance: Sequence[int]) -> tuple[float, float, float]:
    """NDCG@10 (gain 2^relevance - 1), reciprocal rank of the best document, pairwise accuracy."""
    scores = [-math.inf if math.isnan(score) else score for score in scores]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    gain = found = 0.0
    top = max(relevance)
    reciprocal = 0.0
    at = 0
    while at < len(order):
        tied = [i for i in order[at:] if scores[i] == scores[order[at]]]
        ranks = range(at + 1, at + len(tied) + 1)
        share = sum(map(_discount, ranks)) / len(tied)
        gain += share * sum(2 ** relevance[i] - 1 for i in tied)
        hits = sum(relevance[i] == top for i in tied)
        if hits and not found:
            found = 1.0
            reciprocal = sum(1 / rank for rank in ranks) / len(tied)
        at += len(tied)
    ideal = sum(_discount(n + 1) * (2**r - 1) for n, r in enumerate(sorted(relevance, reverse=True)))
    pairs = [
        (scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j])
        for i in range(len(scores))
        for j in range(len(scores))
        if relevance[i] > relevance[j]
    ]
    return gain / ideal, reciprocal, sum(pairs) / len(pairs)
