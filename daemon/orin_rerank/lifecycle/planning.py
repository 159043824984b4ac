"""Makes a plan for INT8 from a calibration set: ranges, smoothing, steps, sensitivity."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.engines.bulk import score_requests
from orin_rerank.errors import CalibrationError, InvalidRequestError
from orin_rerank.graph.scheme import ROW_SCALE, Mode, PlaceScheme, Scheme
from orin_rerank.quantization.calibration_set import dataset_digest, read_calibration_set
from orin_rerank.quantization.plan import PlacePlan, QuantizationPlan
from orin_rerank.quantization.ranges import Provenance, RangeCollector, Ranges
from orin_rerank.quantization.rounding import weight_steps
from orin_rerank.quantization.sensitivity import Sensitivity, measure_sensitivity
from orin_rerank.quantization.smoothing import PlaceSmoothing, even_columns, read_place_weights, search_smoothing
from orin_rerank.quantization.steps import activation_step
from orin_rerank.quantization.survey import CoverageBuilder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from orin_rerank.graph.places import Place
    from orin_rerank.lifecycle.ledger import Ledger
    from orin_rerank.lifecycle.workbench import Workbench
    from orin_rerank.prompt.encoded import EncodedRequest, Float32Array
    from orin_rerank.quantization.calibration_set import CalibrationRequest

__all__ = ["MadePlan", "Observations", "PlanOptions", "encode", "even_scales", "make_plan", "observe"]

_WEIGHTS_WHY = "the vision encoder computes in full precision; its weights are stored as INT8"
_WIDE_WHY = "the vision encoder stays in full precision"
_FINAL_WHY = (
    "sees a document's last token only, so that INT8 would save next to nothing; its weights are stored as INT8"
)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a person may choose about a plan.

    Attributes:
        vision: What the vision encoder computes in: INT8, weights stored as INT8 (`Mode.WEIGHTS`), or wide.
        embedding: Whether the embedding is stored as INT8.
        sensitivity_pairs: About how many pairs to try each place on.
    """

    vision: Mode = Mode.WEIGHTS
    embedding: bool = True
    sensitivity_pairs: int = 48


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """What a first pass over a calibration set gave.

    Attributes:
        ranges: Of the activations as they are.
        coverage: Counts what the set covers; None where the ranges were read from a file.
    """

    ranges: Ranges
    coverage: CoverageBuilder | None


@dataclass(frozen=True, slots=True, eq=False)
class MadePlan:
    """A plan and what it is carried out with.

    Attributes:
        plan: The plan.
        scales: The smoothing float32 `[channels]` of the places that may be INT8, where they can have one.
        weight_steps: For each weight of the places that may be INT8 float32 `[out]`: the steps of its smoothed rows.
    """

    plan: QuantizationPlan
    scales: dict[str, Float32Array]
    weight_steps: dict[str, Float32Array]


def calibrated_places(bench: Workbench, options: PlanOptions) -> list[Place]:
    """The places whose activations may become INT8: those where that saves something."""
    vision = bench.vision_places if options.vision is Mode.INT8 else []
    return [place for place in (*bench.text_places, *vision) if not place.final]


def observe(
    bench: Workbench,
    data: Path,
    ledger: Ledger,
    options: PlanOptions,
    recorded: Path | None = None,
) -> Observations:
    """Runs a calibration set through the full-precision model, or reads what an earlier run of it recorded.

    Args:
        bench: The model.
        data: Folder of the set, whose pictures have been checked.
        ledger: Keeps account.
        options: Which places matter.
        recorded: A file that `Ranges.save` wrote; read if it exists.

    Raises:
        DatasetError: If the set is malformed.
        CalibrationError: If an activation is not finite, a place is never reached, or what was recorded is damaged or
            of another model or set.
    """
    collector = RangeCollector(calibrated_places(bench, options))
    builder = CoverageBuilder()
    waiting: dict[int, tuple[CalibrationRequest, EncodedRequest]] = {}

    def requests() -> Iterator[EncodedRequest]:
        for number, request in enumerate(read_calibration_set(data, decode=False)):
            encoded = encode(bench, request)
            waiting[number] = request, encoded
            yield encoded

    def count(number: int, margins: Float32Array) -> None:
        request, encoded = waiting.pop(number)
        builder.add(request, encoded, margins)
        stage.pairs += len(margins)
        ledger.tell(stage, stage.pairs, 0)

    with ledger.stage("observing activations") as stage:
        dataset = dataset_digest(data)
        runner, graph = bench.observed(collector)
        provenance = Provenance(bench.bundle.digest, dataset, graph)
        try:
            if recorded is not None and recorded.exists():
                return Observations(Ranges.load(recorded, provenance), None)
            scores = score_requests(runner, requests(), bench.budget, count)
        finally:
            runner.close()
        stage.tokens, stage.images = scores.tokens, scores.images
    return Observations(collector.ranges(provenance), builder)


def make_plan(bench: Workbench, data: Path, seen: Observations, ledger: Ledger, options: PlanOptions) -> MadePlan:
    """Decides strengths and steps, and measures what each place costs; every place that may be INT8 is.

    Args:
        bench: The model.
        data: Folder of the calibration set.
        seen: What `observe` gave for it.
        ledger: Keeps account.
        options: What is wanted.

    Raises:
        CheckpointError: If a weight is not finite; the item names its tensor.
        CalibrationError: As `observe`.
    """
    places = calibrated_places(bench, options)
    smoothings = _smooth(bench, places, seen.ranges, ledger)
    scales = {p.name: smoothings[p.name].scales for p in places if p.producers}
    smoothed = _observe_smoothed(bench, data, places, scales, ledger)
    steps = {
        p.name: ROW_SCALE if smoothings[p.name].by_row else activation_step(smoothed[p.name], p.name) for p in places
    }
    scheme = Scheme(
        {
            p.name: PlaceScheme(Mode.INT8, steps[p.name], smoothings[p.name].by_row)
            if p.name in steps
            else PlaceScheme(Mode.WIDE)
            for p in bench.places
        },
        smoothing=scales,
    )
    weights, sensitivity = _try_places(bench, data, places, scheme, ledger, options.sensitivity_pairs)
    planned = [
        _int8_plan(place, steps[place.name], smoothings[place.name], sensitivity)
        if place.name in steps
        else _float_plan(place, options)
        for place in bench.places
    ]
    totals = {vision: sum(_work(p) for p in bench.places if p.vision is vision) for vision in (False, True)}
    planned = [
        dataclasses.replace(plan, vision=place.vision, share=_work(place) / totals[place.vision])
        for place, plan in zip(bench.places, planned, strict=True)
    ]
    plan = QuantizationPlan(bench.bundle.digest, "", options.embedding, tuple(planned))
    return MadePlan(plan, scales, weights)


def even_scales(bench: Workbench, plan: QuantizationPlan, ledger: Ledger) -> dict[str, Float32Array]:
    """The smoothing of places that were not searched and are stored as INT8; it follows from their weights alone.

    Args:
        bench: The model.
        plan: What is INT8.
        ledger: Keeps account.
    """
    planned = zip(bench.places, plan.places, strict=True)
    stored = [place for place, how in planned if how.mode is Mode.WEIGHTS and how.strength is None and place.producers]
    with ledger.stage("evening out columns"):
        return {place.name: even_columns(place, read_place_weights(bench.checkpoint, place)) for place in stored}


def encode(bench: Workbench, request: CalibrationRequest) -> EncodedRequest:
    """A request of a calibration set as packs take it.

    Raises:
        CalibrationError: If the model does not take it; the item names file and line.
    """
    try:
        return bench.encoder.encode(request.request)
    except InvalidRequestError as error:
        raise CalibrationError(error.message, item=f"{request.where}: {error.item}") from error


def _int8_plan(place: Place, step: float, smoothing: PlaceSmoothing, sensitivity: Sensitivity) -> PlacePlan:
    shift = sensitivity.shifts[place.name]
    return PlacePlan(
        place.name,
        Mode.INT8,
        f"moves the margins by {shift:.3f}, of a spread of {sensitivity.spread:.2f}",
        step=step,
        by_row=smoothing.by_row,
        strength=smoothing.strength if place.producers else None,
        error=smoothing.error,
        plain_error=smoothing.plain_error,
        margin_shift=shift,
    )


def _float_plan(place: Place, options: PlanOptions) -> PlacePlan:
    if place.final:
        return PlacePlan(place.name, Mode.WEIGHTS, _FINAL_WHY)
    return PlacePlan(place.name, options.vision, _WEIGHTS_WHY if options.vision is Mode.WEIGHTS else _WIDE_WHY)


def _work(place: Place) -> int:
    """What a place costs for each token; next to nothing where only a document's last token passes."""
    return 0 if place.final else place.multiplications


def _smooth(bench: Workbench, places: list[Place], ranges: Ranges, ledger: Ledger) -> dict[str, PlaceSmoothing]:
    found = {}
    with ledger.stage("searching smoothing") as stage:
        for number, place in enumerate(places, start=1):
            weights = read_place_weights(bench.checkpoint, place)
            found[place.name] = search_smoothing(place, ranges[place.name], weights)
            ledger.tell(stage, number, len(places))
    return found


def _observe_smoothed(
    bench: Workbench, data: Path, places: list[Place], scales: Mapping[str, Float32Array], ledger: Ledger
) -> Ranges:
    collector = RangeCollector(places, kept_rows=0)  # steps follow from the largest values alone
    requests = (encode(bench, request) for request in read_calibration_set(data, decode=False))

    def count(_: int, margins: Float32Array) -> None:
        stage.pairs += len(margins)
        ledger.tell(stage, stage.pairs, 0)

    with ledger.stage("observing smoothed activations") as stage:
        runner, graph = bench.observed(collector, scales)
        try:
            scores = score_requests(runner, requests, bench.budget, count)
        finally:
            runner.close()
        stage.tokens, stage.images = scores.tokens, scores.images
        return collector.ranges(Provenance(bench.bundle.digest, "", graph))


def _try_places(
    bench: Workbench,
    data: Path,
    places: list[Place],
    scheme: Scheme,
    ledger: Ledger,
    pairs: int,
) -> tuple[dict[str, Float32Array], Sensitivity]:
    """The steps of the places' smoothed weights, and what each place costs with them."""
    with ledger.stage("trying each place in INT8") as stage:
        steps = weight_steps(bench.checkpoint, places, scheme.smoothing)
        requests = _spread_sample(bench, data, pairs)
        runner, switches = bench.switched(scheme, steps)

        def score(on: Collection[str]) -> Float32Array:
            switches.switch_on(on)
            scores = score_requests(runner, requests, bench.budget)
            stage.tokens += scores.tokens
            stage.images += scores.images
            stage.pairs += sum(len(margins) for margins in scores.margins)
            return np.concatenate(scores.margins)

        try:
            return steps, measure_sensitivity(
                score, [place.name for place in places], lambda done, total: ledger.tell(stage, done, total)
            )
        finally:
            runner.close()


def _spread_sample(bench: Workbench, data: Path, pairs: int) -> list[EncodedRequest]:
    """About so many pairs, from requests all over the set, so that every kind of them is there."""
    count = documents = 0
    for request in read_calibration_set(data, decode=False):
        count, documents = count + 1, documents + len(request.documents)
    wanted = max(1, round(pairs * count / documents))
    chosen = {round(number) for number in np.linspace(0, count - 1, min(wanted, count))}
    return [
        encode(bench, request)
        for number, request in enumerate(read_calibration_set(data, decode=False))
        if number in chosen
    ]
