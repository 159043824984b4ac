"""The plan: what of a model is INT8, what stays wide, and why; a file that a person can read.

It names the bundle that it was made for and carries a digest of itself, so that neither a plan of another model nor a
damaged one is ever applied.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.sealed import json_digest
from orin_rerank.errors import CalibrationError
from orin_rerank.graph.scheme import Mode, PlaceScheme, Scheme

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from orin_rerank.graph.places import Place

__all__ = ["PLAN_FILE", "SMOOTHING_FILE", "PlacePlan", "QuantizationPlan"]

PLAN_FILE: Final = "quantization/plan.json"
SMOOTHING_FILE: Final = "quantization/smoothing.safetensors"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class PlacePlan:
    """One place.

    Attributes:
        place: Its name.
        mode: What it is computed in.
        why: A few words for a person.
        step: Size of an activation's INT8 step, after smoothing; None unless the mode is INT8.
        strength: Strength of its smoothing, from 0 for none to 1; None where it was not searched.
        error: Relative squared error of the place's output on calibration data, in INT8.
        plain_error: The same without smoothing.
        margin_shift: Root mean square by which margins move when this place alone is INT8; None if not measured.
        share: Its share of the multiply-adds that a token costs in its graph.
        vision: Whether it is of the vision encoder.
        by_row: Whether rows are divided by their largest magnitudes first, and the step is of the quotients.
    """

    place: str
    mode: Mode
    why: str
    step: float | None = None
    strength: float | None = None
    error: float | None = None
    plain_error: float | None = None
    margin_shift: float | None = None
    share: float = 0.0
    vision: bool = False
    by_row: bool = False


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """How a whole model is quantised.

    Attributes:
        bundle: Digest of the full-precision bundle.
        smoothing: SHA-256 of the file with the scales that go with it, `SMOOTHING_FILE`.
        embedding: Whether the embedding is stored as INT8.
        places: Every place of the model.
    """

    bundle: str
    smoothing: str
    embedding: bool
    places: tuple[PlacePlan, ...]

    @property
    def wide_share(self) -> float:
        """Share of the decoder's multiply-adds that are not INT8."""
        return sum(p.share for p in self.places if p.mode is not Mode.INT8 and not p.vision)

    @property
    def ranking(self) -> list[PlacePlan]:
        """The places that are INT8 or might be, by what they cost the margins, the costliest first."""
        measured = [p for p in self.places if p.margin_shift is not None]
        return sorted(measured, key=lambda p: (-(p.margin_shift or 0.0), p.place))

    def counts(self) -> dict[Mode, int]:
        """How many places there are of each mode."""
        return {mode: sum(p.mode is mode for p in self.places) for mode in Mode}

    def widened(self, names: Collection[str], why: str) -> QuantizationPlan:
        """The plan with some places computed wide.

        It is activations that INT8 ruins; smoothed weights with a step for each row hardly lose, and stay INT8.
        """
        places = tuple(
            dataclasses.replace(p, mode=Mode.WEIGHTS, step=None, by_row=False, why=why) if p.place in names else p
            for p in self.places
        )
        return dataclasses.replace(self, places=places)

    def scheme(self, scales: Mapping[str, npt.NDArray[np.float32]]) -> Scheme:
        """What graphs and weights are written by.

        Args:
            scales: float32 `[channels]` of places; used for those whose weights are INT8.
        """
        places = {p.place: PlaceScheme(p.mode, p.step, p.by_row) for p in self.places}
        return Scheme(
            places,
            self.embedding,
            {p.place: scales[p.place] for p in self.places if p.mode is not Mode.WIDE and p.place in scales},
        )

    def to_json(self) -> str:
        """The plan's text."""
        value = {
            "format": _FORMAT,
            "bundle": self.bundle,
            "smoothing": self.smoothing,
            "embedding": self.embedding,
            "places": [{**dataclasses.asdict(p), "mode": p.mode.value} for p in self.places],
        }
        return json.dumps({**value, "sha256": json_digest(value)}, indent=1) + "\n"

    @classmethod
    def load(cls, path: Path, *, bundle: str, places: Sequence[Place]) -> QuantizationPlan:
        """Reads a plan and checks that it is whole and made for this model.

        Args:
            path: The file.
            bundle: Digest of the full-precision bundle to which it is to be applied.
            places: That model's places.

        Raises:
            CalibrationError: If the file cannot be read, is damaged, or belongs to another model.
        """
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if value["format"] != _FORMAT:
                raise CalibrationError(f"is of format {value['format']!r}, not {_FORMAT}", item=str(path))
            if value.pop("sha256") != json_digest(value):
                raise CalibrationError("does not have the contents that its own SHA-256 names", item=str(path))
            plan = cls(
                str(value["bundle"]),
                str(value["smoothing"]),
                bool(value["embedding"]),
                tuple(PlacePlan(**{**p, "mode": Mode(p["mode"])}) for p in value["places"]),
            )
        except OSError as error:
            raise CalibrationError(f"the plan cannot be read: {error.strerror}", item=str(path)) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CalibrationError(f"the plan is damaged: {type(error).__name__}: {error}", item=str(path)) from error
        if plan.bundle != bundle:
            raise CalibrationError(
                f"the plan was made for bundle {plan.bundle[:12]}, and this is {bundle[:12]}", item=str(path)
            )
        if [p.place for p in plan.places] != [p.name for p in places]:
            raise CalibrationError("the plan does not name this model's places", item=str(path))
        for place in plan.places:
            if (place.mode is Mode.INT8) != (isinstance(place.step, float) and 0 < place.step < float("inf")):
                raise CalibrationError("a place has a step if and only if it is INT8", item=f"{path}: {place.place}")
        return plan
