"""Compares two scorings of one set query by query: a candidate, such as INT8, against a reference.

Averages of the two apart would hide most of what happens: a query that gains covers for one that loses, and the noise
between queries is many times what a precision costs. So every figure here is of differences.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from orin_rerank.errors import DatasetError
from orin_rerank.evaluation.metrics import Estimate, Float64Array, estimate, ndcg
from orin_rerank.evaluation.run import TOTAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orin_rerank.evaluation.scoring import ScoredQuery

__all__ = ["HAIR", "PairedFigures", "PairedReport", "compare"]

HAIR: Final = 1e-3
"""Documents whose reference margins differ by no more than this are not told apart: their scores differ by less than
2.5e-4, and how they are packed moves half-precision margins by as much."""

_UNKNOWN: Final = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class PairedFigures:
    """A candidate beside its reference on one split, or on the whole set.

    Where a margin is not finite, on either side, nothing is averaged around the hole: all figures but the counts are
    NaN.

    Attributes:
        name: The split's name, or `all`.
        queries: How many queries.
        documents: How many documents over all queries.
        reference: NDCG@10 of the reference.
        candidate: NDCG@10 of the candidate.
        difference: Candidate less reference, query by query; its interval is a paired bootstrap over the queries.
        pairs: Pairs of documents of one query that the reference tells apart by more than `HAIR`.
        flips: Share of those pairs in which the candidate has the other order; a tie counts half, as it leaves the
            order open. NaN where there are no such pairs.
        correlation: Pearson's, of all margins. NaN where either side is constant.
        rms_shift: Root mean square by which a margin moves.
        largest_shift: The most by which any margin moves.
        spread: Standard deviation of the reference's margins, to compare the shifts with.
        non_finite: Documents with a margin that is not finite on either side.
        reference_distinct: How many different margins the reference gives the documents of a query, summed over the
            queries.
        candidate_distinct: The same of the candidate; far fewer mean that its scores collapsed.
    """

    name: str
    queries: int
    documents: int
    reference: Estimate
    candidate: Estimate
    difference: Estimate
    pairs: int
    flips: float
    correlation: float
    rms_shift: float
    largest_shift: float
    spread: float
    non_finite: int
    reference_distinct: int
    candidate_distinct: int

    @classmethod
    def of(cls, name: str, reference: Sequence[ScoredQuery], candidate: Sequence[ScoredQuery]) -> PairedFigures:
        """The figures of some queries, at least one, which both sides give in the same order."""
        first, second = _margins(reference), _margins(candidate)
        all_first, all_second = np.concatenate(first), np.concatenate(second)
        broken = int((~np.isfinite(all_first) | ~np.isfinite(all_second)).sum())
        pairs, flipped = 0, math.nan
        before = after = difference = _UNKNOWN
        shift = correlation = spread = largest = math.nan
        if not broken:
            gained = (
                [ndcg(query.margins, query.grades) for query in reference],
                [ndcg(query.margins, query.grades) for query in candidate],
            )
            before, after = estimate(gained[0]), estimate(gained[1])
            difference = estimate(np.subtract(gained[1], gained[0]))
            pairs, flipped = _flips(first, second)
            correlation = _correlation(all_first, all_second)
            moved = np.abs(all_second - all_first)
            shift, largest = float(np.sqrt(np.mean(np.square(moved)))), float(moved.max())
            spread = float(all_first.std())
        return cls(
            name=name,
            queries=len(reference),
            documents=len(all_first),
            reference=before,
            candidate=after,
            difference=difference,
            pairs=pairs,
            flips=flipped,
            correlation=correlation,
            rms_shift=shift,
            largest_shift=largest,
            spread=spread,
            non_finite=broken,
            reference_distinct=_distinct(first),
            candidate_distinct=_distinct(second),
        )

    def as_dict(self) -> dict[str, object]:
        """The figures as JSON takes them: None for NaN."""
        return {key: _to_json(value) for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> PairedFigures:
        """Reads what `as_dict` gave.

        Raises:
            ValueError: If a key is missing, unknown, or has a value of the wrong type.
        """
        _check_keys(value, {field.name for field in fields(cls)})
        read: dict[str, Any] = {}
        for field in fields(cls):
            one = value[field.name]
            if field.type == "str":
                read[field.name] = _typed(one, str, field.name)
            elif field.type == "int":
                read[field.name] = _typed(one, int, field.name)
            elif field.type == "float":
                read[field.name] = _number(one, field.name)
            else:
                _check_keys(_typed(one, dict, field.name), {"mean", "low", "high"})
                read[field.name] = Estimate(**{key: _number(part, field.name) for key, part in one.items()})
        return cls(**read)


@dataclass(frozen=True, slots=True)
class PairedReport:
    """A comparison over a whole set.

    Attributes:
        splits: In the order in which they appear in the set.
        total: All queries together, each weighing the same.
    """

    splits: tuple[PairedFigures, ...]
    total: PairedFigures

    def as_dict(self) -> dict[str, object]:
        """The report as JSON takes it."""
        return {"splits": [split.as_dict() for split in self.splits], "total": self.total.as_dict()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> PairedReport:
        """Reads what `as_dict` gave.

        Raises:
            ValueError: If it is malformed.
        """
        _check_keys(value, {"splits", "total"})
        splits = tuple(PairedFigures.from_dict(split) for split in _typed(value["splits"], list, "splits"))
        return cls(splits, PairedFigures.from_dict(value["total"]))


def compare(reference: Sequence[ScoredQuery], candidate: Sequence[ScoredQuery]) -> PairedReport:
    """Compares two scorings of the same queries in the same order.

    Args:
        reference: What is held to be right, such as full precision; may serve many comparisons.
        candidate: What is judged; margins need not be finite.

    Raises:
        DatasetError: If there are no queries, or the two aren't of the same ones; names the first that differs.
    """
    if len(reference) != len(candidate):
        raise DatasetError(f"{len(candidate)} scored queries are compared with {len(reference)}", item="queries")
    if not reference:
        raise DatasetError("there is nothing to compare", item="queries")
    groups: dict[str, list[int]] = {}
    for place, (before, after) in enumerate(zip(reference, candidate, strict=True)):
        if (before.id, before.split, before.grades) != (after.id, after.split, after.grades):
            raise DatasetError(
                f"is not the same query in both scorings: {before.id!r} and {after.id!r}", item=f"queries[{place}]"
            )
        if not len(before.margins) == len(after.margins) == before.documents:
            raise DatasetError("does not have one margin a document", item=f"queries[{place}]: {before.id}")
        groups.setdefault(before.split, []).append(place)
    splits = tuple(
        PairedFigures.of(name, [reference[place] for place in group], [candidate[place] for place in group])
        for name, group in groups.items()
    )
    return PairedReport(splits, PairedFigures.of(TOTAL, reference, candidate))


def _margins(queries: Sequence[ScoredQuery]) -> list[Float64Array]:
    return [np.array(query.margins, dtype=np.float64) for query in queries]


def _distinct(margins: Sequence[Float64Array]) -> int:
    return sum(len(np.unique(one)) for one in margins)


def _flips(reference: Sequence[Float64Array], candidate: Sequence[Float64Array]) -> tuple[int, float]:
    """How many pairs of a query's documents the reference tells apart, and in what share of them the order changed."""
    pairs, flipped = 0, 0.0
    for before, after in zip(reference, candidate, strict=True):
        told_apart = before[:, None] - before[None, :] > HAIR
        gap = (after[:, None] - after[None, :])[told_apart]
        pairs += len(gap)
        flipped += float((gap < 0).sum() + 0.5 * (gap == 0).sum())
    return pairs, flipped / pairs if pairs else math.nan


def _correlation(first: Float64Array, second: Float64Array) -> float:
    """Pearson's, or NaN where either is constant, whose standard deviation rounding may leave just above nothing."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    a, b = first - first.mean(), second - second.mean()
    product = math.sqrt(float(a @ a) * float(b @ b))
    return min(max(float(a @ b) / product, -1.0), 1.0) if product else math.nan


def _to_json(value: Any) -> object:
    if isinstance(value, dict):
        return {key: _to_json(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_keys(value: Mapping[str, Any], keys: set[str]) -> None:
    if not isinstance(value, dict) or value.keys() != keys:
        raise ValueError(f"must be an object of {', '.join(sorted(keys))}")


def _typed(value: object, wanted: type, name: str) -> Any:
    if type(value) is not wanted:  # a bool is an int, but none was ever written for one
        raise ValueError(f"{name} must be of type {wanted.__name__}")
    return value


def _number(value: object, name: str) -> float:
    """A number; None stands for NaN."""
    if value is None:
        return math.nan
    return float(value if type(value) is int else _typed(value, float, name))
