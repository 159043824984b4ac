"""A thin layer over `onnx.helper`: scoped names, constants once, weights as ranges of a file."""

from __future__ import annotations

import contextlib
import enum
import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from orin_rerank import __version__
from orin_rerank.errors import InternalError
from orin_rerank.graph.product import FloatForm, Product, ProductForm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orin_rerank.graph.weights import WeightFile, WeightSlice


__all__ = ["RUNTIME_DOMAIN", "Dialect", "GraphBuilder", "Precision"]

RUNTIME_DOMAIN: Final = "com.microsoft"
"""Of ONNX Runtime's own operators; graphs that use them run nowhere else."""


class Dialect(enum.Enum):
    """Which operators a graph may use."""

    PRIMITIVE = "primitive"
    """Operators of opset 17, which TensorRT 10.3 reads."""
    FUSED = "fused"
    """RMSNormalization, RotaryEmbedding and Attention of opset 23 as single operators."""

    @property
    def opset(self) -> int:
        """The ONNX operator set."""
        return 17 if self is Dialect.PRIMITIVE else 23


class Precision(enum.Enum):
    """What matrix products are computed in; everything else is float32."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    """INT8 where the scheme says so, else float32: for processors."""
    INT8_FP16 = "int8-fp16"
    """INT8 where the scheme says so, else float16: for GPUs."""

    @property
    def quantized(self) -> bool:
        """Whether products may be INT8."""
        return self in {Precision.INT8, Precision.INT8_FP16}

    @property
    def half(self) -> bool:
        """Whether products that are not INT8 are float16, rather than float32."""
        return self in {Precision.FP16, Precision.INT8_FP16}

    @property
    def onnx_type(self) -> int:
        """The ONNX element type of products that are not INT8."""
        return int(TensorProto.FLOAT16 if self.half else TensorProto.FLOAT)


_STORED: Final = {"F16": TensorProto.FLOAT16, "F32": TensorProto.FLOAT, "I8": TensorProto.INT8}
_IR_VERSION: Final = 10


class GraphBuilder:
    """Collects nodes, weights and constants of one graph.

    Values are named after the scope in which they were made, such as `layers.3/attention/scores`, so that an error
    of a runtime or compiler points at a place in the model.

    Args:
        name: Of the graph.
        weights: The file that holds the weights.
        dialect: Which operators may be used.
        precision: What matrix products are computed in.
        form: How they are written; None writes them as plain floating-point products.
    """

    def __init__(
        self,
        name: str,
        weights: WeightFile,
        dialect: Dialect,
        precision: Precision,
        form: ProductForm | None = None,
    ) -> None:
        self.name = name
        self.weights = weights
        self.dialect = dialect
        self.precision = precision
        self.form = form or FloatForm()
        self._scope: list[str] = []
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._taken: dict[str, int] = {}

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names everything made inside after `name`."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        """Declares an input; a dimension that is a string is dynamic."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, value: str, name: str, dtype: int, shape: Sequence[int | str]) -> None:
        """Declares `value` as the output `name`."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def op(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Adds a node with one output and returns that."""
        return self.ops(kind, 1, *inputs, name=name, **attributes)[0]

    def ops(
        self,
        kind: str,
        outputs: int,
        *inputs: str,
        name: str | None = None,
        unwanted: tuple[int, ...] = (),
        **attributes: Any,
    ) -> list[str]:
        """Adds a node and returns its outputs; those that are unwanted are not computed, and have no names."""
        label = self._unique(name or kind.lower())
        values = [label] if outputs == 1 else [f"{label}:{i}" for i in range(outputs)]
        values = ["" if i in unwanted else value for i, value in enumerate(values)]
        self._nodes.append(helper.make_node(kind, list(inputs), values, name=label, **attributes))
        return values

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike, *, owner: str = "constant") -> str:
        """A small constant; equal ones of one owner are stored once."""
        array = np.asarray(value, dtype=dtype)
        contents = array.tobytes()
        digest = contents.hex() if len(contents) <= 64 else hashlib.sha256(contents).hexdigest()
        key = f"{owner}/{array.dtype}{list(array.shape)}/{digest}"
        if key not in self._initializers:
            self._initializers[key] = numpy_helper.from_array(array, key)
        return key

    def shape(self, *dimensions: int) -> str:
        """A constant for Reshape, Slice and the like."""
        return self.constant(dimensions, np.int64)

    def weight(self, *names: str, to: int | None = None, shape: tuple[int, ...] | None = None) -> str:
        """A tensor of the weight file, or several side by side as one.

        Args:
            names: Tensors of the file.
            to: ONNX element type in which it is needed; None leaves it as it is stored.
            shape: Another shape for the same numbers.
        """
        where = self.weights.slice(*names, shape=shape)
        name = "+".join(names)
        if name not in self._initializers:
            self._initializers[name] = self._external(name, where)
        elif tuple(self._initializers[name].dims) != where.shape:
            raise InternalError("one graph uses a tensor in two shapes", item=name)
        stored = int(_STORED[where.dtype])
        return name if to is None or to == stored else self.op("Cast", name, name=f"{names[0]}/cast", to=to)

    @property
    def narrow(self) -> bool:
        """Whether values stay in float16 between products: all but the residual stream and what is summed up.

        ONNX Runtime computes on a GPU operator by operator, each of which reads and writes the GPU's memory: what is
        twice as wide takes twice as long (docs/decisions/0010-fused-float16.md). A compiler joins operators, and what
        lies between them costs it nothing.
        """
        return self.dialect is Dialect.FUSED and self.precision is Precision.FP16

    def linear(
        self,
        value: str,
        *names: str,
        place: str,
        bias: str | None = None,
        shape: tuple[int, int] | None = None,
        name: str = "linear",
    ) -> str:
        """`value @ weight.T (+ bias)`, as the graph's form has it.

        In and out it is float32, or float16 where the graph is narrow.

        Args:
            value: `[rows, in]`.
            names: Weights `[out, in]`; several side by side are one product.
            place: Name of the `Place`.
            bias: Name of a tensor `[out]`.
            shape: The weight's, where it is stored with more axes.
            name: Of the product.
        """
        if not self.narrow or self.form.narrow:
            return self.form.linear(self, Product(value, names, place, bias, shape, name, narrow=self.narrow))
        return self.narrowed(self.form.linear(self, Product(self.widened(value), names, place, bias, shape, name)))

    def narrowed(self, value: str) -> str:
        """What `linear` takes, from what is float32."""
        return self.cast(value, self.precision.onnx_type) if self.narrow else value

    def widened(self, value: str) -> str:
        """What `linear` gave, as float32."""
        return self.cast(value, TensorProto.FLOAT) if self.narrow else value

    def rows(self, table: str, index: str, name: str) -> str:
        """float32 rows of a table of weights, as the graph's form has it."""
        return self.form.rows(self, table, index, name)

    def split(self, value: str, *widths: int) -> list[str]:
        """Cuts `[rows, sum of widths]` into columns.

        What was just widened is cut first and its parts are widened: a compiler stores what it cuts, and of gate and up
        at 11,000 tokens that is 1 GB in float32.
        """
        last = self._nodes[-1]
        if last.op_type != "Cast" or last.output[0] != value:
            return self.ops("Split", len(widths), value, self.shape(*widths), axis=1)
        self._nodes.pop()
        (kind,) = (attribute.i for attribute in last.attribute)
        narrow = self.ops("Split", len(widths), last.input[0], self.shape(*widths), axis=1)
        return [self.op("Cast", part, to=kind) for part in narrow]

    def matmul(self, left: str, right: str, name: str) -> str:
        """A product of two activations in the graph's precision; float32 in and out."""
        kind = self.precision.onnx_type
        return self.cast(self.op("MatMul", self.cast(left, kind), self.cast(right, kind), name=name), TensorProto.FLOAT)

    def cast(self, value: str, kind: int) -> str:
        """Casts from float32 or to it; nothing where the graph is float32 throughout."""
        return self.op("Cast", value, to=kind) if self.precision.half else value

    def model(self) -> onnx.ModelProto:
        """The finished model; its weights are references into the weight file."""
        self.form.finish(self)
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, initializer=list(self._initializers.values())
        )
        versions = {"": self.dialect.opset, RUNTIME_DOMAIN: 1}
        domains = sorted({"", *(node.domain for node in self._nodes)})
        return helper.make_model(
            graph,
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid(domain, versions[domain]) for domain in domains],
            producer_name="orin-rerank",
            producer_version=__version__,
        )

    def _external(self, name: str, where: WeightSlice) -> onnx.TensorProto:
        tensor = TensorProto(name=name, data_type=_STORED[where.dtype], dims=where.shape)
        tensor.data_location = TensorProto.EXTERNAL
        entries = (("location", self.weights.name), ("offset", str(where.offset)), ("length", str(where.nbytes)))
        for key, value in entries:
            tensor.external_data.add(key=key, value=value)
        return tensor

    def _unique(self, name: str) -> str:
        label = "/".join([*self._scope, name])
        count = self._taken.get(label, 0)
        self._taken[label] = count + 1
        return label if count == 0 else f"{label}.{count}"
