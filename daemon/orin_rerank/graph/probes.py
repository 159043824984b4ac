"""Forms of a graph that serve its quantisation: one reports what activations are like, one tries INT8 out.

`ObservedForm` adds, over the places in their order, with R places to sample and C channels of all places together:

==================  =====================  ====================================================================
input `sample`      int32 `[R]`            rows to return; taken modulo the rows that a place has
output `maxima`     float32 `[C]`          largest magnitude of every channel
output `tails`      float32 `[rows, T]`    the T largest magnitudes of every row, place after place
output `samples`    float32 `[R, C]`       the sampled rows
output `rows`       int32 `[P]`            how many rows each of the P places has
==================  =====================  ====================================================================

All of it is of activations divided by the scales of a smoothing, where one is given. What comes out does not grow
with a model's width times its tokens, so it can be read back from a device.

`SwitchedForm` adds the input `active`, float32 `[places]`: at 1 a place computes what it would in INT8, at 0 what it
does in full precision. One graph thus tells what each place alone does to the margins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import numpy as np
from onnx import TensorProto

from orin_rerank.graph.product import FloatForm, Product, maxima, row_reach
from orin_rerank.graph.scheme import INT8_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from orin_rerank.graph.builder import GraphBuilder
    from orin_rerank.graph.places import Place
    from orin_rerank.graph.scheme import Scheme

_Scales: TypeAlias = "npt.NDArray[np.float32]"

__all__ = ["TAIL", "ObservedForm", "SwitchedForm"]

TAIL: Final = 8
"""How many of a row's largest magnitudes are returned."""

_FINE: Final = 2.0**-20
"""By how much steps shrink that are to change nothing: to some 27 bits of a row's largest weight."""


@dataclass(slots=True)
class ObservedForm(FloatForm):
    """Floating-point products whose activations are reported.

    Attributes:
        places: Those to report, in order.
        smoothing: float32 `[channels]` of a place: what its activation is divided by before it is looked at.
    """

    narrow: ClassVar[bool] = False
    places: Sequence[Place]
    smoothing: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    _seen: dict[str, str] = field(default_factory=dict)

    def linear(self, b: GraphBuilder, product: Product) -> str:
        """Writes a product, and notes what goes in: where a place has several, the first, which has all rows."""
        self._seen.setdefault(product.place, product.value)
        return FloatForm.linear(self, b, product)

    def finish(self, b: GraphBuilder) -> None:
        """Writes the outputs."""
        sample = b.input("sample", TensorProto.INT32, ["samples"])
        reached, tails, samples, counts = [], [], [], []
        for place in self.places:
            with b.scope(f"observed/{place.name}"):
                value = _divided(b, self._seen[place.name], self.smoothing.get(place.name))
                magnitude = b.op("Abs", value)
                reached.append(maxima(b, magnitude, 0, keep=False))
                count = b.shape(min(TAIL, place.channels))
                largest, _ = b.ops("TopK", 2, magnitude, count, axis=1)
                if place.channels < TAIL:
                    missing = TAIL - place.channels
                    largest = b.op("Pad", largest, b.shape(0, 0, 0, missing))
                tails.append(largest)
                rows = b.op("Cast", b.op("Shape", value, end=1), to=TensorProto.INT32)
                counts.append(rows)
                samples.append(b.op("Gather", value, b.op("Mod", sample, rows), axis=0))
        channels = sum(place.channels for place in self.places)
        b.output(b.op("Concat", *reached, axis=0), "maxima", TensorProto.FLOAT, [channels])
        b.output(b.op("Concat", *tails, axis=0), "tails", TensorProto.FLOAT, ["tail_rows", TAIL])
        b.output(b.op("Concat", *samples, axis=1), "samples", TensorProto.FLOAT, ["samples", channels])
        b.output(b.op("Concat", *counts, axis=0), "rows", TensorProto.INT32, [len(self.places)])


@dataclass(slots=True)
class SwitchedForm(FloatForm):
    """Products that compute, place by place, what INT8 would give or what full precision gives.

    Attributes:
        places: Those that can be switched, in the order of `active`; each must be INT8 in the scheme.
        scheme: Steps and smoothing.
        weight_scales: For each weight's name float32 `[out]`: the steps of its smoothed rows.
    """

    narrow: ClassVar[bool] = False
    places: Sequence[Place]
    scheme: Scheme
    weight_scales: Mapping[str, npt.NDArray[np.float32]]
    _active: str = ""
    _order: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._order = {place.name: i for i, place in enumerate(self.places)}

    def linear(self, b: GraphBuilder, product: Product) -> str:
        """Writes a product."""
        number = self._order.get(product.place)
        place = None if number is None else self.scheme.places[product.place]
        if number is None or place is None or place.scale is None:
            return FloatForm.linear(self, b, product)
        if not self._active:
            self._active = b.input("active", TensorProto.FLOAT, [len(self.places)])
        on = b.op("Gather", self._active, b.constant([number], np.int64), axis=0, name="on")
        smoothing = self.scheme.smoothing.get(product.place)
        smoothed = _divided(b, product.value, smoothing)
        step = b.constant(place.scale, np.float32)
        if place.by_row:
            step = b.op("Mul", row_reach(b, smoothed), step)
        rounded = self._rounded(b, smoothed, step)
        value = self._blend(b, on, product.value, _multiplied(b, rounded, smoothing))
        steps = np.concatenate([self.weight_scales[name] for name in product.weights])[:, None]
        write = self._weight_that_runs if b.precision.half else self._weight_that_folds
        weight = write(b, product, steps, smoothing, on)
        kind = b.precision.onnx_type
        return self.gemm(b, product, b.cast(value, kind), b.cast(weight, kind))

    @staticmethod
    def _rounded(b: GraphBuilder, value: str, step: str) -> str:
        """The nearest multiples of a step, clipped where codes end."""
        codes = b.op("Round", b.op("Div", value, step))
        low, high = (b.constant(bound, np.float32) for bound in (-INT8_MAX, INT8_MAX))
        return b.op("Mul", b.op("Clip", codes, low, high), step)

    def _weight_that_folds(
        self, b: GraphBuilder, product: Product, steps: _Scales, smoothing: _Scales | None, on: str
    ) -> str:
        """float32 weights, rounded where the place is on; all but that last choice is of constants.

        A processor's runtime thus computes the difference once, at start.
        """
        weight = b.weight(*product.weights, to=TensorProto.FLOAT, shape=product.shape)
        codes = self._rounded(b, _multiplied(b, weight, smoothing), b.constant(steps, np.float32))
        return self._blend(b, on, weight, _divided(b, codes, smoothing))

    @staticmethod
    def _weight_that_runs(b: GraphBuilder, product: Product, steps: _Scales, smoothing: _Scales | None, on: str) -> str:
        """float32 weights, rounded in every run: where the place is off, to steps so fine that nothing changes.

        A compiler for GPUs would store what folds beside the weights, and all of it as float32: four times the memory
        of a model that barely fits. So whatever touches the weights depends on an input, if only in appearance.
        """
        weight = b.weight(*product.weights, shape=product.shape)
        if b.weights.slice(*product.weights).dtype == "F16":
            ceiling = b.op("Max", on, b.constant(np.finfo(np.float16).max, np.float32))
            held = b.op("Min", weight, b.op("Cast", ceiling, to=TensorProto.FLOAT16))
            weight = b.op("Cast", held, to=TensorProto.FLOAT)
        step = b.op("Mul", b.constant(steps, np.float32), b.op("Max", on, b.constant(_FINE, np.float32)))
        codes = b.op("Round", _multiplied(b, b.op("Div", weight, step), smoothing))
        return b.op("Mul", _divided(b, codes, smoothing), step)

    @staticmethod
    def _blend(b: GraphBuilder, on: str, exact: str, rounded: str) -> str:
        return b.op("Add", exact, b.op("Mul", b.op("Sub", rounded, exact), on))


def _divided(b: GraphBuilder, value: str, scales: npt.NDArray[np.float32] | None) -> str:
    return value if scales is None else b.op("Mul", value, b.constant(1.0 / scales, np.float32), name="divided")


def _multiplied(b: GraphBuilder, value: str, scales: npt.NDArray[np.float32] | None) -> str:
    return value if scales is None else b.op("Mul", value, b.constant(scales, np.float32), name="multiplied")
