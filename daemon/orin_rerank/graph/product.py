"""How a graph writes its products with weights.

The graphs say where a product stands and what goes in; a form says what nodes that becomes. `FloatForm` is the plain
one. `quantized` and `probes` hold the others: INT8 with Q/DQ, a form that reports what its activations are like, and
one in which every place can be switched to INT8 while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import numpy as np
from onnx import TensorProto

if TYPE_CHECKING:
    from orin_rerank.graph.builder import GraphBuilder

__all__ = ["FloatForm", "Product", "ProductForm", "maxima", "row_reach"]


_LEAST_REACH: Final = 2.0**-100
"""Stands for the largest magnitude of a row that is all zeros, by which it is divided."""


@dataclass(frozen=True, slots=True)
class Product:
    """`value @ weight.T (+ bias)`.

    Attributes:
        value: `[rows, in]`, float32 unless the product is narrow.
        weights: Names of tensors `[out, in]`; several side by side are one product.
        place: Name of the `Place`.
        bias: Name of a tensor `[out]`.
        shape: The weight's, where it is stored with more axes.
        name: Of the node.
        narrow: Whether value and result are in the graph's precision rather than float32.
    """

    value: str
    weights: tuple[str, ...]
    place: str
    bias: str | None
    shape: tuple[int, int] | None
    name: str
    narrow: bool = False


class ProductForm(Protocol):
    """How products are written."""

    @property
    def narrow(self) -> bool:
        """Whether narrow products can be written."""

    def linear(self, b: GraphBuilder, product: Product) -> str:
        """Writes a product."""

    def rows(self, b: GraphBuilder, table: str, index: str, name: str) -> str:
        """Writes the lookup of rows in a table of weights; float32 out."""

    def finish(self, b: GraphBuilder) -> None:
        """Writes what remains, such as outputs, once the whole graph is there."""


class FloatForm:
    """Floating point, in the graph's precision."""

    narrow: ClassVar[bool] = True

    def linear(self, b: GraphBuilder, product: Product) -> str:
        """Writes a product."""
        kind = b.precision.onnx_type
        weight = b.weight(*product.weights, to=kind, shape=product.shape)
        if product.narrow:
            result = b.op("Gemm", product.value, weight, transB=1, name=product.name)
            # As an input of Gemm it would be spread over the result first, which takes three times as long.
            return result if product.bias is None else b.op("Add", result, b.weight(product.bias, to=kind))
        return self.gemm(b, product, b.cast(product.value, kind), weight)

    def rows(self, b: GraphBuilder, table: str, index: str, name: str) -> str:
        """Writes a lookup."""
        # Gathered as stored and widened after: casting the whole table would double or quadruple it in memory.
        return b.op("Cast", b.op("Gather", b.weight(table), index, axis=0), to=TensorProto.FLOAT, name=name)

    def finish(self, b: GraphBuilder) -> None:
        """Writes nothing."""

    def gemm(self, b: GraphBuilder, product: Product, value: str, weight: str) -> str:
        """The product itself, of operands that are in the graph's precision; float32 out."""
        if product.bias is None:
            return b.cast(b.op("Gemm", value, weight, transB=1, name=product.name), TensorProto.FLOAT)
        bias = b.weight(product.bias, to=TensorProto.FLOAT)
        if not b.precision.half:
            return b.op("Gemm", value, weight, bias, transB=1, name=product.name)
        wide = b.cast(b.op("Gemm", value, weight, transB=1, name=product.name), TensorProto.FLOAT)
        return b.op("Add", wide, bias)


def maxima(b: GraphBuilder, values: str, axis: int, *, keep: bool) -> str:
    """The largest values along an axis, which stays as 1 where it is kept."""
    if b.dialect.opset < 18:  # the axes became an input in opset 18
        return b.op("ReduceMax", values, axes=[axis], keepdims=int(keep))
    return b.op("ReduceMax", values, b.shape(axis), keepdims=int(keep))


def row_reach(b: GraphBuilder, value: str) -> str:
    """The largest magnitude of every row, float32 `[rows, 1]`; above 0."""
    return b.op("Max", maxima(b, b.op("Abs", value), 1, keep=True), b.constant(_LEAST_REACH, np.float32), name="reach")
