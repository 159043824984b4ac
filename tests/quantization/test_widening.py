"""Which plans are tried after a refusal: the costliest places first, more each time, never beyond the limit."""

from __future__ import annotations

import pytest

from orin_rerank.graph.scheme import Mode
from orin_rerank.quantization.plan import PlacePlan, QuantizationPlan
from orin_rerank.quantization.widening import widening


def place(name: str, shift: float | None, share: float, *, vision: bool = False) -> PlacePlan:
    """INT8 with a measured cost, or stored as INT8 only where there is none."""
    mode = Mode.WEIGHTS if shift is None else Mode.INT8
    return PlacePlan(name, mode, "", None if shift is None else 1.0, margin_shift=shift, share=share, vision=vision)


def plan(*places: PlacePlan) -> QuantizationPlan:
    return QuantizationPlan("bundle", "scales", embedding=True, places=places)


def wide(one: QuantizationPlan) -> list[str]:
    return [p.place for p in one.places if p.mode is Mode.WEIGHTS]


def tried(one: QuantizationPlan, most: float) -> list[list[str]]:
    return [wide(attempt) for attempt in widening(one, most)]


def test_as_many_are_added_as_there_are() -> None:
    one = plan(*(place(name, shift, 0.01) for shift, name in enumerate("abcdefghij")))
    assert [len(names) for names in tried(one, 1)] == [0, 1, 2, 4, 8, 10]
    assert tried(one, 1)[3] == ["g", "h", "i", "j"], "the costliest"


def test_the_plan_itself_comes_first_and_is_not_changed() -> None:
    one = plan(place("a", 1.0, 0.5), place("b", 2.0, 0.5))
    first, second, third = widening(one, 1)
    assert first is one
    assert (wide(one), wide(second), wide(third)) == ([], ["b"], ["a", "b"])


@pytest.mark.parametrize(
    ("most", "attempts"),
    [
        (0.0, [[]]),
        (0.09, [[]]),
        (0.1, [[], ["small"]]),
        (0.4, [[], ["large"]]),
        (0.5, [[], ["large"], ["large", "small"]]),
        (1.0, [[], ["large"], ["large", "middle"], ["large", "middle", "small"]]),
    ],
)
def test_what_does_not_fit_is_passed_over(most: float, attempts: list[list[str]]) -> None:
    one = plan(place("large", 3.0, 0.4), place("middle", 2.0, 0.3), place("small", 1.0, 0.1))
    assert tried(one, most) == attempts


def test_what_is_wide_already_counts_and_is_not_added() -> None:
    one = plan(place("last", None, 0.2), place("a", 2.0, 0.4), place("b", 1.0, 0.1)).widened(["b"], "earlier")
    assert tried(one, 0.3) == [["last", "b"]]
    assert tried(one, 0.75) == [["last", "b"], ["last", "a", "b"]]


def test_the_vision_encoder_has_a_share_of_its_own() -> None:
    one = plan(place("a", 3.0, 0.5), place("v", 2.0, 0.5, vision=True), place("w", 1.0, 0.5, vision=True))
    assert tried(one, 0.5) == [[], ["a"], ["a", "v"]]
    assert [attempt.wide_share for attempt in widening(one, 0.5)] == [0, 0.5, 0.5]


def test_a_plan_says_why() -> None:
    *_, last = widening(plan(place("a", 1.0, 0.5)), 1)
    assert "the gate asked for it" in last.places[0].why
