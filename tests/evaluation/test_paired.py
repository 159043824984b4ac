"""The paired comparison, against values worked by hand and against what must hold of any margins."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evaluation.scored import moved, reference, scored, with_noise
from orin_rerank.errors import DatasetError
from orin_rerank.evaluation.metrics import estimate, ndcg
from orin_rerank.evaluation.paired import HAIR, PairedReport, compare

MARGINS = st.lists(st.integers(-80, 80).map(lambda value: value / 8), min_size=3, max_size=3)
QUERIES = st.lists(MARGINS, min_size=1, max_size=5)


def queries_of(rows: list[list[float]]):
    return [scored(f"q{place}", row) for place, row in enumerate(rows)]


def test_flips_shifts_and_distinct_margins_of_a_hand_worked_example() -> None:
    before = [scored("q1", [3.0, 2.0, 1.0]), scored("q2", [1.0, 1.0 + HAIR / 2, -5.0])]
    after = [scored("q1", [3.0, 0.5, 1.0]), scored("q2", [1.0, 0.0, 0.0])]
    total = compare(before, after).total
    # q1: of three pairs one is the other way round; q2: its first two are not told apart, the other two pairs hold
    # once and are a tie once, which counts half.
    assert total.pairs == 5
    assert total.flips == pytest.approx((1 + 0.5) / 5)
    assert total.largest_shift == pytest.approx(5.0)
    shifts = [0, 1.5, 0, 0, 1 + HAIR / 2, 5]
    assert total.rms_shift == pytest.approx(math.sqrt(sum(shift**2 for shift in shifts) / 6))
    assert (total.reference_distinct, total.candidate_distinct, total.non_finite) == (6, 5, 0)
    flat_before = [margin for query in before for margin in query.margins]
    flat_after = [margin for query in after for margin in query.margins]
    assert total.correlation == pytest.approx(np.corrcoef(flat_before, flat_after)[0, 1])
    assert total.spread == pytest.approx(np.std(flat_before))


def test_the_difference_is_paired() -> None:
    before, after = reference(), with_noise(reference(), 1.0)
    total = compare(before, after).total
    differences = [ndcg(b.margins, b.grades) - ndcg(a.margins, a.grades) for a, b in zip(before, after, strict=True)]
    assert total.difference == estimate(differences)
    assert total.difference.mean == pytest.approx(total.candidate.mean - total.reference.mean)
    assert total.difference.high - total.difference.low < total.reference.high - total.reference.low


def test_splits_are_compared_apart() -> None:
    before = reference(splits=("x", "y", "x/z"))
    after = [dataclasses.replace(one, margins=one.margins[::-1]) if one.split == "y" else one for one in before]
    x, y, z = (report := compare(before, after)).splits
    assert [split.name for split in report.splits] == ["x", "y", "x/z"]
    assert (x.queries, x.documents) == (20, 200)
    assert (x.flips, z.flips, x.difference.mean) == (0.0, 0.0, 0.0)
    assert y.flips > 0.3
    assert y.correlation < 0.5
    assert report.total.flips == pytest.approx(y.flips * y.pairs / report.total.pairs)


@given(QUERIES, st.floats(0.1, 10.0), st.floats(-5.0, 5.0), st.booleans())
def test_a_monotone_transform_flips_nothing(
    rows: list[list[float]], factor: float, offset: float, curved: bool
) -> None:
    before = queries_of(rows)
    after = moved(before, lambda margins: factor * margins + offset + (margins**3 if curved else 0.0))
    total = compare(before, after).total
    assert total.pairs == 0 or total.flips == 0.0
    assert total.difference.mean == pytest.approx(0.0)
    assert total.candidate_distinct == total.reference_distinct
    if not curved and total.reference_distinct > len(rows):
        assert total.correlation == pytest.approx(1.0)


@given(QUERIES)
def test_the_reverse_flips_everything(rows: list[list[float]]) -> None:
    before = queries_of(rows)
    total = compare(before, moved(before, np.negative)).total
    assume(total.pairs)
    assert total.flips == 1.0
    assert total.correlation == pytest.approx(-1.0)


@given(QUERIES, st.data())
def test_the_order_of_documents_does_not_matter(rows: list[list[float]], data: st.DataObject) -> None:
    others = data.draw(st.lists(MARGINS, min_size=len(rows), max_size=len(rows)))
    order = data.draw(st.permutations(range(3)))

    def shuffled(margins: list[float], place: int):
        return scored(f"q{place}", [margins[i] for i in order], [(2, 1, 0)[i] for i in order])

    straight = compare(queries_of(rows), queries_of(others)).total
    turned = compare(
        [shuffled(row, place) for place, row in enumerate(rows)],
        [shuffled(row, place) for place, row in enumerate(others)],
    ).total
    for name in ("flips", "correlation", "rms_shift", "largest_shift"):
        assert getattr(turned, name) == pytest.approx(getattr(straight, name), nan_ok=True)
    assert turned.difference.mean == pytest.approx(straight.difference.mean)


@given(st.floats(-1e6, 1e6))
def test_a_constant_scorer_leaves_every_order_open(constant: float) -> None:
    before = reference(queries=4)
    total = compare(before, moved(before, lambda margins: np.full(len(margins), constant))).total
    assert total.flips == 0.5
    assert math.isnan(total.correlation)
    assert (total.reference_distinct, total.candidate_distinct) == (40, 4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_nothing_is_averaged_around_a_margin_that_is_not_finite(value: float, side: str) -> None:
    good = reference()
    bad = [dataclasses.replace(good[0], margins=(value, *good[0].margins[1:])), *good[1:]]
    report = compare(bad, good) if side == "reference" else compare(good, bad)
    broken, whole = report.splits
    for one in (broken, report.total):
        assert one.non_finite == 1
        figures = [one.difference.mean, one.flips, one.correlation, one.rms_shift, one.largest_shift]
        assert all(math.isnan(figure) for figure in figures)
    assert whole.non_finite == 0
    assert whole.flips == 0.0


def test_what_is_not_the_same_set_is_refused() -> None:
    queries = reference(queries=4)
    for other, message in (
        (queries[:3], "3 scored queries are compared with 4"),
        (
            [queries[1], queries[0], *queries[2:]],
            r"queries\[0\]: is not the same query in both scorings: 'q0' and 'q1'",
        ),
        ([*queries[:3], dataclasses.replace(queries[3], split="z")], r"queries\[3\]: is not the same query"),
        ([*queries[:3], dataclasses.replace(queries[3], grades=(1,) * 10)], r"queries\[3\]: is not the same query"),
        (
            [*queries[:3], dataclasses.replace(queries[3], margins=(1.0,))],
            r"queries\[3\]: q3: does not have one margin",
        ),
    ):
        with pytest.raises(DatasetError, match=message):
            compare(queries, other)
    with pytest.raises(DatasetError, match="nothing to compare"):
        compare([], [])


@given(st.integers(0, 2**32 - 1))
def test_permuted_queries_are_refused(seed: int) -> None:
    queries = reference(queries=5, documents=3)
    permuted = random.Random(seed).sample(queries, len(queries))
    assume(permuted != queries)
    with pytest.raises(DatasetError, match="not the same query"):
        compare(queries, permuted)


def test_a_report_comes_back_from_json_as_it_was() -> None:
    report = compare(reference(), with_noise(reference(), 0.3))
    assert PairedReport.from_dict(json.loads(json.dumps(report.as_dict(), allow_nan=False))) == report
    broken = compare(reference(), moved(reference(), lambda margins: margins * math.nan))
    again = PairedReport.from_dict(json.loads(json.dumps(broken.as_dict(), allow_nan=False)))
    assert math.isnan(again.total.flips)
    assert again.total.non_finite == broken.total.non_finite == 600


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flips": "0.1"}, "flips must be of type float"),
        ({"flips": True}, "flips must be of type float"),
        ({"queries": 1.5}, "queries must be of type int"),
        ({"queries": None}, "queries must be of type int"),
        ({"name": 3}, "name must be of type str"),
        ({"difference": {"mean": 0.0, "low": 0.0}}, "must be an object of high, low, mean"),
        ({"difference": 0.0}, "difference must be of type dict"),
        ({"more": 1}, "must be an object of candidate"),
    ],
)
def test_a_malformed_report_is_refused(change: dict[str, object], message: str) -> None:
    value = compare(reference(), reference()).as_dict()
    value["total"].update(change)
    with pytest.raises(ValueError, match=message):
        PairedReport.from_dict(value)
    with pytest.raises(ValueError, match="must be an object of splits, total"):
        PairedReport.from_dict({"splits": []})
