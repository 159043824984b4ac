"""Which plans to try when the gate refuses one: the same with more and more of its costliest places wide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orin_rerank.graph.scheme import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.quantization.plan import PlacePlan, QuantizationPlan

__all__ = ["widening"]

_WHY: Final = "stays wide: among those that cost the margins most, and the gate asked for it"


def widening(plan: QuantizationPlan, most: float) -> Iterator[QuantizationPlan]:
    """Yields the plan as it is, then with more and more of its costliest places wide.

    Each time as many are added as there are already, so that few plans are tried where many places must go. A place
    that would exceed the limit is passed over for cheaper ones.

    Args:
        plan: What was made without regard to a gate.
        most: Largest share of a graph's multiply-adds that may be wide, the decoder's and the vision encoder's each on
            its own. What the plan itself leaves wide counts.
    """
    yield plan
    shares = {
        vision: sum(place.share for place in plan.places if place.vision is vision and place.mode is not Mode.INT8)
        for vision in (False, True)
    }
    candidates = [place for place in plan.ranking if place.mode is Mode.INT8]
    wide: list[str] = []
    while added := _fitting(candidates, shares, most, at_most=max(1, len(wide))):
        wide += added
        yield plan.widened(wide, _WHY)


def _fitting(candidates: list[PlacePlan], shares: dict[bool, float], most: float, *, at_most: int) -> list[str]:
    """Takes the first candidates that fit out of the list, with those before them that do not."""
    taken: list[str] = []
    while candidates and len(taken) < at_most:
        place = candidates.pop(0)
        if shares[place.vision] + place.share <= most:
            shares[place.vision] += place.share
            taken.append(place.place)
    return taken
