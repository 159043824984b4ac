"""A plan is read back as it was written, and by no other model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from orin_rerank.errors import CalibrationError
from orin_rerank.graph.places import Place
from orin_rerank.graph.scheme import Mode
from orin_rerank.quantization.plan import PlacePlan, QuantizationPlan

PLACES = [Place(name, 8, 4, (f"{name}.weight",), (), (1, 1, 8)) for name in ("a", "b", "c")]
PLAN = QuantizationPlan(
    "digest",
    "ranges",
    embedding=True,
    places=(
        PlacePlan("a", Mode.INT8, "fits", 0.125, 0.5, 1e-4, 2e-4, 0.01, 0.5),
        PlacePlan("b", Mode.INT8, "fits", 0.25, 0.75, 1e-3, 2e-3, 0.02, 0.3),
        PlacePlan("c", Mode.WEIGHTS, "the vision encoder computes in full precision", share=0.4, vision=True),
    ),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(PLAN.to_json())
    return path


def _load(path: Path, bundle: str = "digest", places: list[Place] = PLACES) -> QuantizationPlan:
    return QuantizationPlan.load(path, bundle=bundle, places=places)


def test_it_is_read_as_it_was_written(path: Path) -> None:
    assert _load(path) == PLAN
    assert PLAN.to_json() == _load(path).to_json()


def test_the_costliest_place_comes_first_and_can_be_left_wide() -> None:
    assert [place.place for place in PLAN.ranking] == ["b", "a"]
    wider = PLAN.widened(["b"], "costs the most")
    assert (wider.places[1].mode, wider.places[1].step, wider.places[1].why) == (Mode.WEIGHTS, None, "costs the most")
    assert wider.wide_share == pytest.approx(0.3)
    assert PLAN.wide_share == 0
    assert wider.counts() == {Mode.INT8: 1, Mode.WEIGHTS: 2, Mode.WIDE: 0}
    ones = {name: np.ones(8, np.float32) for name in "abc"}
    # What is computed wide is smoothed all the same: else small columns would be rounded away in its INT8 weights.
    assert set(wider.scheme(ones).smoothing) == {"a", "b", "c"}
    full = dataclasses.replace(PLAN, places=(*PLAN.places[:2], dataclasses.replace(PLAN.places[2], mode=Mode.WIDE)))
    assert set(full.scheme(ones).smoothing) == {"a", "b"}
    assert wider.scheme(ones).embedding


def test_a_plan_of_another_bundle_is_refused(path: Path) -> None:
    with pytest.raises(CalibrationError, match="made for bundle digest"):
        _load(path, bundle="another")


def test_a_plan_of_other_places_is_refused(path: Path) -> None:
    with pytest.raises(CalibrationError, match="does not name this model's places"):
        _load(path, places=PLACES[:2])


@pytest.mark.parametrize("size", [0, 1, 40, -3])
def test_a_truncated_plan_is_refused(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CalibrationError, match="damaged"):
        _load(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [('"step": 0.125', '"step": 0.126'), ('"int8"', '"wide"'), ('"embedding": true', '"embedding": false')],
)
def test_an_edited_plan_is_refused(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(CalibrationError, match="SHA-256"):
        _load(path)


def test_a_missing_file_and_another_format_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot be read"):
        _load(tmp_path / "none.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
    with pytest.raises(CalibrationError, match="format 9"):
        _load(path)


@pytest.mark.parametrize(
    "change",
    [{"step": None}, {"step": 0.0}, {"step": -1.0}, {"step": float("inf")}, {"step": "0.125"}, {"mode": "weights"}],
)
def test_a_plan_by_hand_that_makes_no_sense_is_refused(path: Path, change: dict[str, object]) -> None:
    """Its own SHA-256 is right."""
    value = json.loads(PLAN.to_json())
    del value["sha256"]
    value["places"][0].update(change)
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**value, "sha256": digest}))
    with pytest.raises(CalibrationError, match="a step if and only if it is INT8") as caught:
        _load(path)
    assert (caught.value.item or "").endswith("plan.json: a")
