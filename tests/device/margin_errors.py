"""How far margins are from a reference's, and what that does to the order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["margin_errors"]

_TOP = 10


def margin_errors(
    margins: npt.ArrayLike, reference: npt.ArrayLike, requests: npt.ArrayLike
) -> dict[str, float | int | None]:
    """Compares margins with a reference's.

    Args:
        margins: One of each pair.
        reference: The same pairs', in the reference.
        requests: Which request each pair is of.

    Returns:
        The error's root mean square, median, 99th percentile and largest value; the reference's spread and the first
        as a share of it; rank correlations over all pairs, how many of the first ten are the same, and how many of the
        pairs of one request's documents changed places; how many margins are not finite, beside which nothing else is.
    """
    got, expected = np.asarray(margins, np.float64), np.asarray(reference, np.float64)
    lost = int(np.count_nonzero(~np.isfinite(got)))
    if lost:
        return {"not_finite": lost}
    off = np.abs(got - expected)
    rms, spread = float(np.sqrt((off**2).mean())), float(expected.std())
    signs, expected_signs = (np.sign(values[:, None] - values[None]) for values in (got, expected))
    above = np.triu(np.ones_like(signs, bool), 1)
    groups = np.asarray(requests)
    same_request = above & (groups[:, None] == groups[None])
    changed = int(np.count_nonzero((signs != expected_signs) & same_request))
    top, expected_top = (set(np.argsort(-values, kind="stable")[:_TOP].tolist()) for values in (got, expected))
    return {
        "not_finite": 0,
        "rms": rms,
        "p50": float(np.quantile(off, 0.5)),
        "p99": float(np.quantile(off, 0.99)),
        "largest": float(off.max()),
        "mean": float((got - expected).mean()),
        "spread": spread,
        "rms_of_spread": rms / spread,
        "kendall": float((signs * expected_signs)[above].mean()),
        "spearman": float(np.corrcoef(_ranks(got), _ranks(expected))[0, 1]),
        "top_10_kept": len(top & expected_top),
        "order_changed": changed,
        "order_pairs": int(np.count_nonzero(same_request)),
        "distinct": len(np.unique(got)),
    }


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Places in ascending order; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    result: npt.NDArray[np.float64] = ((2 * ends - counts - 1) / 2)[inverse]
    return result
