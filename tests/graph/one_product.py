"""A graph of one product, written in any form, and what ONNX Runtime makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from orin_rerank.graph.builder import Dialect, GraphBuilder, Precision
from orin_rerank.graph.weights import WeightFile, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import onnx

    from orin_rerank.graph.product import ProductForm

PLACE = "place"


class Arrays:
    """Tensors that are at hand."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._tensors = tensors

    def pieces(self, spec: WeightSpec) -> Iterator[np.ndarray]:
        """A tensor in one piece."""
        yield self._tensors[spec.name]


def write_weights(folder: Path, tensors: Mapping[str, np.ndarray]) -> WeightFile:
    """Writes a weight file that stores the tensors in the types that they have."""
    kinds = {"float16": "F16", "float32": "F32", "int8": "I8"}
    file = WeightFile("w.safetensors", [WeightSpec(n, kinds[str(t.dtype)], t.shape) for n, t in tensors.items()])
    file.write(folder, Arrays(tensors), lambda _done, _total: None)
    return file


def product_graph(
    weights: WeightFile,
    names: tuple[str, ...],
    channels: int,
    precision: Precision,
    form: ProductForm,
    dialect: Dialect = Dialect.PRIMITIVE,
) -> onnx.ModelProto:
    """`y = x @ weights.T`."""
    builder = GraphBuilder("product", weights, dialect, precision, form)
    value = builder.input("x", TensorProto.FLOAT, ["rows", channels])
    product = builder.linear(value, *names, place=PLACE)
    builder.output(product, "y", TensorProto.FLOAT, ["rows", weights.slice(*names).shape[0]])
    return builder.model()


def run(folder: Path, model: onnx.ModelProto, **inputs: np.ndarray) -> Any:
    """The graph's one output."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def random_weight(seed: int, outputs: int, channels: int) -> np.ndarray:
    """float16 weights whose rows differ in size."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(outputs, channels)) * rng.uniform(0.1, 3, (outputs, 1))).astype(np.float16)
