"""Products in INT8: explicit QuantizeLinear and DequantizeLinear around them.

Codes are symmetric, per output channel for weights and per tensor for activations; sums, and everything between
products, are wide. The weight file holds the codes, already smoothed, under the weights' own names, and their scales
beside them.

A GPU's compiler wants signed codes with zero point 0, and takes INT8 constants into DequantizeLinear only, which it
then fuses into what follows: a lookup reads the rows it needs, a product widens weights as it loads them. A processor's
fast kernels multiply unsigned by signed bytes, so there activations' codes are written with 128 added, and 128 as their
zero point; constants are cast and multiplied, which its runtime does once, at start. The numbers are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from onnx import TensorProto

from orin_rerank.graph.builder import RUNTIME_DOMAIN
from orin_rerank.graph.product import FloatForm, Product, row_reach
from orin_rerank.graph.scheme import Mode, PlaceScheme, Scheme, scale_name

if TYPE_CHECKING:
    from orin_rerank.graph.builder import GraphBuilder

__all__ = ["QuantizedForm"]


@dataclass(slots=True)
class QuantizedForm(FloatForm):
    """Writes each place as its scheme says.

    Attributes:
        scheme: What is INT8.
    """

    narrow: ClassVar[bool] = False
    scheme: Scheme
    _rounded: dict[str, str] = field(default_factory=dict)
    _reaches: dict[str, str] = field(default_factory=dict)

    def linear(self, b: GraphBuilder, product: Product) -> str:
        """Writes a product."""
        place = self.scheme.places[product.place]
        if place.scale is not None:
            return self._integer(b, product, place, place.scale)
        if place.mode is Mode.WEIGHTS:
            weight = self._widened(b, product)
            kind = b.precision.onnx_type
            return self.gemm(b, product, b.cast(product.value, kind), b.cast(weight, kind))
        return FloatForm.linear(self, b, product)

    def rows(self, b: GraphBuilder, table: str, index: str, name: str) -> str:
        """Writes a lookup; each row of an INT8 table has a scale."""
        if not self.scheme.embedding:
            return FloatForm.rows(self, b, table, index, name)
        if b.precision.half:
            weights = self._dequantized(b, (table,), None, f"{name}/table")
            return b.op("Gather", weights, index, axis=0, name=name)
        codes = b.op("Cast", b.op("Gather", b.weight(table), index, axis=0), to=TensorProto.FLOAT)
        scales = b.op("Unsqueeze", b.op("Gather", b.weight(scale_name(table)), index, axis=0), b.shape(1))
        return b.op("Mul", codes, scales, name=name)

    def _integer(self, b: GraphBuilder, product: Product, place: PlaceScheme, scale: float) -> str:
        reach = self._reach(b, product.value) if place.by_row else None
        value = self._activation(b, product.value, scale, reach)
        weight = self._dequantized(b, product.weights, product.shape, f"{product.name}/weight")
        result = b.op("Gemm", value, weight, transB=1, name=product.name)
        if reach is not None:
            result = b.op("Mul", result, reach)
        return result if product.bias is None else b.op("Add", result, b.weight(product.bias, to=TensorProto.FLOAT))

    def _reach(self, b: GraphBuilder, value: str) -> str:
        if value not in self._reaches:
            self._reaches[value] = row_reach(b, value)
        return self._reaches[value]

    def _activation(self, b: GraphBuilder, value: str, scale: float, reach: str | None) -> str:
        """The value rounded to its codes; products of one value share that."""
        if value not in self._rounded:
            exact = value if reach is None else b.op("Div", value, reach)
            step = b.constant(scale, np.float32)
            zero = b.constant(0, np.int8) if b.precision.half else b.constant(128, np.uint8)
            codes = b.op("QuantizeLinear", exact, step, zero, name="quantize", **_domain(b))
            self._rounded[value] = b.op("DequantizeLinear", codes, step, zero, name="dequantize", **_domain(b))
        return self._rounded[value]

    def _widened(self, b: GraphBuilder, product: Product) -> str:
        """float32 weights from their codes."""
        name = f"{product.name}/weight"
        if b.precision.half:
            return self._dequantized(b, product.weights, product.shape, name)
        codes, scales, _ = self._codes(b, product.weights, product.shape)
        return b.op("Mul", b.op("Cast", codes, to=TensorProto.FLOAT), b.op("Unsqueeze", scales, b.shape(1)), name=name)

    def _dequantized(self, b: GraphBuilder, weights: tuple[str, ...], shape: tuple[int, int] | None, name: str) -> str:
        codes, scales, outputs = self._codes(b, weights, shape)
        # ONNX Runtime takes the pattern for an integer product only where the weights' zero points are written out, and
        # fails where two products share them and it makes their codes unsigned, as it must on processors without VNNI.
        zeros = b.constant(np.zeros(outputs), np.int8, owner=f"{'+'.join(weights)}/zeros")
        return b.op("DequantizeLinear", codes, scales, zeros, axis=0, name=name, **_domain(b))

    @staticmethod
    def _codes(b: GraphBuilder, weights: tuple[str, ...], shape: tuple[int, int] | None) -> tuple[str, str, int]:
        """The codes `[out, in]`, their scales `[out]` and how many outputs that is."""
        names = [scale_name(weight) for weight in weights]
        return b.weight(*weights, shape=shape), b.weight(*names), b.weights.slice(*names).shape[0]


def _domain(b: GraphBuilder) -> dict[str, str]:
    """For processors, the two operators as ONNX Runtime has always had them.

    Those of opset 23, which the fused dialect is in, came to it only after 1.23, the last release for Python 3.10.
    """
    return {} if b.precision.half else {"domain": RUNTIME_DOMAIN}
