"""The gate: what it lets through, what it refuses and why, and that nothing gets past a record."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.scored import moved, reference, with_noise
from orin_rerank.engines.bundle import FileEntry
from orin_rerank.engines.sealed import json_digest
from orin_rerank.errors import RefusedPrecisionError, SettingsError
from orin_rerank.evaluation.metrics import Estimate
from orin_rerank.evaluation.paired import PairedFigures, PairedReport, compare
from orin_rerank.quantization.gate import (
    GATE_FILE,
    GateRecord,
    GateSubject,
    GateThresholds,
    engine_digest,
    judge,
    read_gate,
)

if TYPE_CHECKING:
    from pathlib import Path

THRESHOLDS = GateThresholds()
SUBJECT = GateSubject(source="5" * 64, engine="e" * 64)
GOOD = PairedFigures(
    name="all",
    queries=100,
    documents=2000,
    reference=Estimate(0.75, 0.7, 0.8),
    candidate=Estimate(0.75, 0.7, 0.8),
    difference=Estimate(0.0, -0.01, 0.01),
    pairs=19000,
    flips=0.01,
    correlation=0.999,
    rms_shift=0.1,
    largest_shift=0.5,
    spread=4.0,
    non_finite=0,
    reference_distinct=2000,
    candidate_distinct=2000,
)


def report(split: dict[str, object] | None = None, **changes: object) -> PairedReport:
    """A report of two equal splits, with changes to the whole and to the second split."""
    half = {name: getattr(GOOD, name) // 2 for name in ("queries", "documents", "pairs")}
    half |= {"reference_distinct": 1000, "candidate_distinct": 1000}
    first = dataclasses.replace(GOOD, name="a", **half)
    second = dataclasses.replace(first, **{"name": "b", **(split or {})})
    return PairedReport((first, second), dataclasses.replace(GOOD, **changes))


def with_loss(loss: float) -> PairedReport:
    """A report in which all splits and the whole lose as much."""
    figures = {"candidate": Estimate(0.75 - loss, 0.6, 0.8), "difference": Estimate(0.75 - loss - 0.75, -0.05, 0.05)}
    return PairedReport(
        tuple(dataclasses.replace(one, **figures) for one in report().splits), dataclasses.replace(GOOD, **figures)
    )


def reasons(value: PairedReport, thresholds: GateThresholds = THRESHOLDS) -> tuple[str, ...]:
    verdict = judge(value, thresholds)
    assert verdict.passed == (not verdict.reasons)
    return verdict.reasons


def record(value: PairedReport | None = None, thresholds: GateThresholds = THRESHOLDS) -> GateRecord:
    return GateRecord(SUBJECT, "d" * 64, thresholds, value or compare(reference(), with_noise(reference(), 0.02)))


def signed(value: dict[str, object]) -> str:
    """The text of an edited record whose editor also put the digest right."""
    value.pop("sha256", None)
    return json.dumps({**value, "sha256": json_digest(value)})


def test_little_noise_passes_and_much_does_not() -> None:
    assert reasons(compare(reference(), reference())) == ()
    assert reasons(compare(reference(), with_noise(reference(), 0.02))) == ()
    refused = reasons(compare(reference(), with_noise(reference(), 1.5)))
    assert any(reason.startswith("NDCG@10 falls by 0.") for reason in refused)
    assert any(reason.startswith("margins correlate by 0.") for reason in refused)
    assert any("document pairs change their order; at most 8.0% may" in reason for reason in refused)


def test_a_better_engine_passes() -> None:
    assert reasons(with_loss(-0.01)) == ()


@pytest.mark.parametrize(
    ("within", "beyond", "reason"),
    [
        (with_loss(0.0049), with_loss(0.0051), "NDCG@10 falls by 0.0051, from 0.7500 to 0.7449"),
        (report(correlation=0.995), report(correlation=math.nextafter(0.995, 0)), "margins correlate by 0.9950"),
        (report(flips=0.08), report(flips=0.0801), "8.0% of the document pairs"),
        (report(rms_shift=1.0), report(rms_shift=1.01), "the root mean square shift of a margin is 1.01; at most 1.00"),
        (
            report(split={"largest_shift": 4.0}, largest_shift=4.0),
            report(split={"largest_shift": 4.01}, largest_shift=4.01),
            "the largest shift of a margin is 4.01; at most 4.00",
        ),
        (
            report(split={"candidate_distinct": 980}, candidate_distinct=1980),
            report(split={"candidate_distinct": 979}, candidate_distinct=1979),
            "scores collapsed: 1979 different margins are left of 2000",
        ),
        (
            report(split={"difference": Estimate(0.0, -0.1, -0.02)}),
            report(split={"difference": Estimate(0.0, -0.1, -0.0201)}),
            "NDCG@10 of b falls by -0.0000, and surely by more than 0.02",
        ),
        (
            report(split={"correlation": 0.97}),
            report(split={"correlation": 0.9699}),
            "margins of b correlate by 0.9699",
        ),
    ],
)
def test_thresholds_at_their_border(within: PairedReport, beyond: PairedReport, reason: str) -> None:
    assert reasons(within) == ()
    (only,) = reasons(beyond)
    assert only.startswith(reason)


def test_the_loss_that_is_allowed_is_allowed() -> None:
    loss = -with_loss(0.005).total.difference.mean
    assert reasons(with_loss(0.005), GateThresholds(max_ndcg_loss=loss)) == ()
    assert len(reasons(with_loss(0.005), GateThresholds(max_ndcg_loss=math.nextafter(loss, 0)))) == 1


def test_a_split_that_is_ruined_is_seen_through_a_good_average() -> None:
    before = reference(queries=200, splits=("a",) * 14 + ("pictures",), documents=20)
    noisy = with_noise(before, 0.55)
    after = [n if n.split == "pictures" else b for b, n in zip(before, noisy, strict=True)]
    value = compare(before, after)
    assert value.total.correlation > THRESHOLDS.min_correlation
    refused = reasons(value, GateThresholds(max_ndcg_loss=1.0, max_largest_shift=10.0))
    assert len(refused) >= 1
    assert all("pictures" in reason for reason in refused)


def test_a_small_split_is_judged_as_part_of_the_whole_alone() -> None:
    few = report(split={"queries": 9, "correlation": 0.5}, queries=59)
    assert reasons(few) == ()
    assert len(reasons(report(split={"queries": 10, "correlation": 0.5}, queries=60))) == 1


@settings(max_examples=20)
@given(st.floats(-50, 50))
def test_a_constant_scorer_is_refused(constant: float) -> None:
    before = reference(queries=60, documents=4)
    refused = reasons(compare(before, moved(before, lambda margins: np.full(len(margins), constant))))
    assert refused[0] == "scores collapsed: 60 different margins are left of 240 in full precision"


@settings(max_examples=20)
@given(st.floats(-6, 6))
def test_scores_of_one_half_or_one_are_refused(threshold: float) -> None:
    before = reference()
    refused = reasons(compare(before, moved(before, lambda margins: np.where(margins > threshold, 20.0, 0.0))))
    assert refused[0].startswith("scores collapsed: ")


@settings(max_examples=20)
@given(st.integers(0, 59), st.integers(0, 9), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_margin_that_is_not_finite_is_enough(query: int, document: int, value: float) -> None:
    before = reference()
    after = list(before)
    margins = list(after[query].margins)
    margins[document] = value
    after[query] = dataclasses.replace(after[query], margins=tuple(margins))
    assert reasons(compare(before, after)) == ("1 of 600 margins are not finite",)
    assert reasons(compare(after, before)) == ("1 of 600 margins are not finite",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda margins: 1.5 * margins, "the root mean square shift"),
        (lambda margins: margins + 3.0, "the root mean square shift"),
    ],
    ids=["stretched", "moved alike"],
)
def test_all_scores_moved_or_stretched_alike_is_refused(change, reason: str) -> None:
    refused = reasons(compare(reference(), moved(reference(), change)))
    assert refused[0].startswith(reason)


def test_few_queries_decide_nothing() -> None:
    few = compare(reference(queries=49), reference(queries=49))
    assert reasons(few) == ("49 judged queries decide nothing; 50 are needed",)
    assert reasons(few, GateThresholds(min_queries=49)) == ()


@pytest.mark.parametrize(
    "field", ["flips", "correlation", "rms_shift", "largest_shift", "spread", "reference", "candidate", "difference"]
)
def test_any_figure_that_is_no_number_refuses(field: str) -> None:
    nothing = Estimate(math.nan, math.nan, math.nan) if isinstance(getattr(GOOD, field), Estimate) else math.nan
    (reason,) = reasons(report(**{field: nothing}))
    assert reason.startswith(f"not a number: {field}")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (PairedReport((), GOOD), "queries of the whole and of its splits"),
        (report(queries=101), "queries of the whole and of its splits"),
        (report(candidate_distinct=1999), "candidate_distinct of the whole and of its splits"),
        (report(largest_shift=0.4), "largest_shift of the whole and of its splits"),
        (report(candidate=Estimate(0.7, 0.7, 0.8)), "NDCG@10 of all and its difference"),
        (report(split={"candidate": Estimate(0.7, 0.7, 0.8)}), "NDCG@10 of b and its difference"),
        (
            report(split={"candidate": Estimate(0.5, 0.4, 0.6), "difference": Estimate(-0.25, -0.3, 0.0)}),
            "difference of the whole and of its splits",
        ),
    ],
)
def test_figures_that_contradict_each_other_refuse(value: PairedReport, named: str) -> None:
    assert reasons(value) == (f"the figures contradict each other: {named}",)


def test_a_report_of_nothing_is_refused() -> None:
    empty = dataclasses.replace(
        GOOD, queries=0, documents=0, pairs=0, reference_distinct=0, candidate_distinct=0, largest_shift=0.0
    )
    assert reasons(PairedReport((dataclasses.replace(empty, name="a"),), empty))[0].startswith("0 judged queries")


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(GateThresholds)])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_thresholds_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(SettingsError) as caught:
        GateThresholds(**{name: value})
    assert caught.value.item == name


def test_a_record_that_passed_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(record().to_json())
    assert read_gate(path, SUBJECT) == record()
    written = json.loads(path.read_text())
    assert written["verdict"] == {"passed": True, "reasons": []}


def test_a_record_keeps_the_thresholds_that_it_was_judged_by(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    noisy = compare(reference(), with_noise(reference(), 0.2))
    path.write_text(record(noisy, GateThresholds(max_ndcg_loss=0.1, min_correlation=0.9)).to_json())
    assert read_gate(path, SUBJECT).verdict.passed
    path.write_text(record(noisy, GateThresholds(max_ndcg_loss=0.1, min_correlation=0.9999)).to_json())
    with pytest.raises(RefusedPrecisionError, match="the gate refuses INT8: margins correlate by 0"):
        read_gate(path, SUBJECT)


def test_a_refusal_can_be_read_for_its_figures_but_not_served(tmp_path: Path) -> None:
    broken = record(compare(reference(), moved(reference(), lambda margins: margins * math.nan)))
    assert GateRecord.from_json(broken.to_json()).verdict.reasons == ("600 of 600 margins are not finite",)
    path = tmp_path / "gate.json"
    path.write_text(broken.to_json())
    with pytest.raises(RefusedPrecisionError, match=r"gate\.json: the gate refuses INT8: 600 of 600 margins"):
        read_gate(path, SUBJECT)


def test_a_record_of_another_engine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(record().to_json())
    with pytest.raises(RefusedPrecisionError, match="is of source bundle 555555555555, and this is 666666666666"):
        read_gate(path, dataclasses.replace(SUBJECT, source="6" * 64))
    with pytest.raises(RefusedPrecisionError, match="is of INT8 engine eeeeeeeeeeee, and this is ffffffffffff"):
        read_gate(path, dataclasses.replace(SUBJECT, engine="f" * 64))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is damaged: JSONDecodeError"),
        (b"{}", "is damaged: KeyError: 'format'"),
        (b"[]", "is damaged: TypeError"),
        (b"\xff", "cannot be read: it is not UTF-8"),
        (record().to_json().encode()[:-40], "is damaged: JSONDecodeError"),
        (record().to_json().replace('"format": 1', '"format": 2').encode(), "is of format 2, not 1"),
        (record().to_json().replace('"max_flips": 0.08', '"max_flips": 0.09').encode(), "its own SHA-256"),
    ],
)
def test_a_missing_or_damaged_record_is_refused(tmp_path: Path, contents: bytes | None, message: str) -> None:
    path = tmp_path / "gate.json"
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(RefusedPrecisionError, match=message) as caught:
        read_gate(path, SUBJECT)
    assert caught.value.item == str(path)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("report", "total", "difference", "mean"), 0.0, "the figures contradict each other"),
        (("report", "total", "non_finite"), 3, "3 of 600 margins are not finite"),
        (("report", "total", "correlation"), math.nan, "not a number: correlation"),
        (("report", "total", "flips"), "none", "is damaged: ValueError: flips must be of type float"),
        (("report", "splits"), [], "the figures contradict each other"),
        (("report", "splits"), None, "is damaged: ValueError: splits must be of type list"),
        (("thresholds", "max_flips"), math.inf, "is damaged: SettingsError: max_flips"),
        (("thresholds", "max_flips"), "many", "is damaged: TypeError"),
        (("verdict", "passed"), False, "says that it refused"),
        (("verdict",), None, "is damaged: TypeError"),
    ],
)
def test_an_edited_record_with_a_right_digest_is_judged_by_its_figures(
    tmp_path: Path, keys: tuple[str, ...], value: object, message: str
) -> None:
    edited = json.loads(record().to_json())
    inner = edited
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path = tmp_path / "gate.json"
    path.write_text(signed(edited))
    with pytest.raises(RefusedPrecisionError, match=message):
        read_gate(path, SUBJECT)


def test_an_engine_is_known_by_what_it_computes_with() -> None:
    files = {name: FileEntry(name[0] * 64, 1, "") for name in ("model.safetensors", "text.onnx", "config.json")}
    digest = engine_digest(files)
    assert engine_digest(dict(reversed(files.items()))) == digest
    assert engine_digest({**files, GATE_FILE: FileEntry("0" * 64, 1, "")}) == digest
    assert engine_digest({**files, "text.onnx": FileEntry("0" * 64, 1, "")}) != digest
    assert engine_digest({**files, "vision.onnx": FileEntry("0" * 64, 1, "")}) != digest


def test_limits_looser_than_the_usual_are_told() -> None:
    assert GateThresholds().loosened == ()
    assert GateThresholds(max_ndcg_loss=0.001, min_correlation=0.999, min_queries=80).loosened == ()
    loose = GateThresholds(max_ndcg_loss=0.1, min_correlation=0.9, min_queries=10)
    assert loose.loosened == ("max_ndcg_loss", "min_correlation", "min_queries")
