"""What the graphs are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import TensorProto

from graph.on_processor import with_functions
from orin_rerank.graph.builder import Dialect, GraphBuilder, Precision
from orin_rerank.graph.weights import WeightFile, WeightSpec

if TYPE_CHECKING:
    from orin_rerank.engines.bundle import Bundle, GraphEntry

PRIMITIVE = {
    "Add", "And", "Cast", "Concat", "Div", "Equal", "Erf", "Expand", "Gather", "Gemm", "Identity", "LayerNormalization",
    "LessOrEqual", "MatMul", "Mul", "Or", "Range", "ReduceMean", "Reshape", "Shape", "Sigmoid", "Slice", "Softmax",
    "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
FUSED = {"Attention", "Gelu", "RMSNormalization", "RotaryEmbedding"}
NARROW = {"Expand", "GatedRMSNorm", "PagedAttention", "SkipLayerNormalization"}


def _is_narrow(entry: GraphEntry) -> bool:
    return (entry.dialect, entry.precision) == (Dialect.FUSED, Precision.FP16)


def _graphs(bundle: Bundle) -> list[tuple[GraphEntry, onnx.ModelProto]]:
    return [
        (entry, onnx.load(bundle.folder / name, load_external_data=False))
        for entry in bundle.manifest.graphs
        for name in (entry.text, entry.vision)
        if name is not None
    ]


def test_every_dialect_in_every_precision(golden_bundle: tuple[str, Bundle]) -> None:
    _, bundle = golden_bundle
    kinds = [(entry.dialect, entry.precision) for entry in bundle.manifest.graphs]
    floating = [p for p in Precision if not p.quantized]
    assert sorted(kinds, key=str) == sorted(((d, p) for d in Dialect for p in floating), key=str)


def test_operators_and_opset(golden_bundle: tuple[str, Bundle]) -> None:
    _, bundle = golden_bundle
    for entry, model in _graphs(bundle):
        narrow = _is_narrow(entry)
        opsets = [(opset.domain, opset.version) for opset in model.opset_import]
        assert opsets == [("", entry.dialect.opset), *([("com.microsoft", 1)] if narrow else [])]
        kinds = {node.op_type for node in model.graph.node}
        allowed = PRIMITIVE if entry.dialect is Dialect.PRIMITIVE else PRIMITIVE | FUSED
        assert kinds <= (allowed | NARROW if narrow else allowed)
        if entry.dialect is Dialect.FUSED:
            assert ("PagedAttention" if narrow and model.graph.name == "text" else "Attention") in kinds


def test_shapes_and_types_infer_strictly(golden_bundle: tuple[str, Bundle]) -> None:
    _, bundle = golden_bundle
    for entry, graph in _graphs(bundle):
        model = with_functions(graph)
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        kinds = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
        kinds |= {value.name: value.type.tensor_type.elem_type for value in inferred.graph.input}
        kinds |= {tensor.name: tensor.data_type for tensor in inferred.graph.initializer}
        wide = ("Softmax", "ReduceMean", "Sqrt", "LayerNormalization", "RMSNormalization", "Sigmoid", "Tanh", "Erf")
        for node in inferred.graph.node:
            heads = _is_narrow(entry) and any("q_norm" in name or "k_norm" in name for name in node.input)
            if node.op_type in wide and not heads:
                assert kinds[node.input[0]] == TensorProto.FLOAT, node.name
            if node.name.endswith("/residual"):
                assert kinds[node.output[-1]] == TensorProto.FLOAT, node.name
            if node.op_type == "Gemm":
                assert kinds[node.input[0]] == kinds[node.input[1]] == entry.precision.onnx_type, node.name
        margin = [value for value in inferred.graph.output if value.name == "margin"]
        assert all(value.type.tensor_type.elem_type == TensorProto.FLOAT for value in margin)


def test_names_are_unique_and_say_where(golden_bundle: tuple[str, Bundle]) -> None:
    _, bundle = golden_bundle
    for _, model in _graphs(bundle):
        names = [node.name for node in model.graph.node]
        assert all(names)
        assert len(set(names)) == len(names)
    text = next(model for _, model in _graphs(bundle) if model.graph.name == "text")
    assert "layers.1/attention/output" in {node.name for node in text.graph.node}


def test_weights_are_ranges_of_one_file(golden_bundle: tuple[str, Bundle]) -> None:
    _, bundle = golden_bundle
    weights = bundle.manifest.files["model.safetensors"].bytes
    for entry, model in _graphs(bundle):
        inside = external = 0
        for tensor in model.graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                where = {item.key: item.value for item in tensor.external_data}
                assert where["location"] == "model.safetensors"
                assert int(where["offset"]) + int(where["length"]) <= weights
                external += int(where["length"])
            else:
                inside += tensor.ByteSize()
        assert external <= weights, entry
        assert inside < 20_000, entry
    graphs = sum(
        bundle.manifest.files[name].bytes for g in bundle.manifest.graphs for name in (g.text, g.vision) if name
    )
    assert graphs < 600_000


def test_wrong_external_ranges_would_be_noticed() -> None:
    weights = WeightFile("w", [WeightSpec("a", "F16", (4, 2)), WeightSpec("b", "F16", (3, 2))])
    first, both = weights.slice("a"), weights.slice("a", "b")
    assert (both.shape, both.nbytes) == ((7, 2), 28)
    assert both.offset == first.offset
    assert weights.slice("b").offset == first.offset + first.nbytes


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_what_was_just_widened_is_cut_before_it_is(precision: Precision) -> None:
    builder = GraphBuilder("g", WeightFile("w", []), Dialect.PRIMITIVE, precision)
    product = builder.op("Identity", builder.input("x", precision.onnx_type, ["rows", 5]))
    parts = builder.split(builder.cast(product, TensorProto.FLOAT), 2, 3)
    for part, width in zip(parts, (2, 3), strict=True):
        builder.output(part, f"of {width}", TensorProto.FLOAT, ["rows", width])
    model = builder.model()
    onnx.checker.check_model(model, full_check=True)
    casts = ["Cast", "Cast"] if precision.half else []
    assert [node.op_type for node in model.graph.node] == ["Identity", "Split", *casts, "Identity", "Identity"]


def test_what_has_another_reader_stays_whole() -> None:
    builder = GraphBuilder("g", WeightFile("w", []), Dialect.PRIMITIVE, Precision.FP16)
    wide = builder.cast(builder.input("x", TensorProto.FLOAT16, ["rows", 2]), TensorProto.FLOAT)
    builder.output(builder.op("Abs", wide), "all", TensorProto.FLOAT, ["rows", 2])
    for i, part in enumerate(builder.split(wide, 1, 1)):
        builder.output(part, f"part {i}", TensorProto.FLOAT, ["rows", 1])
    model = builder.model()
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node][:2] == ["Cast", "Abs"]


@pytest.mark.parametrize("precision", Precision)
def test_equal_constants_are_stored_once(precision: Precision) -> None:
    builder = GraphBuilder("g", WeightFile("w", []), Dialect.PRIMITIVE, precision)
    assert builder.shape(1, 2) == builder.shape(1, 2)
    assert builder.shape(1, 2) != builder.shape(2, 1)
    assert builder.constant(1, "float32") != builder.constant(1, "int32")
    with builder.scope("a"):
        names = [builder.op("Add", "x", "y") for _ in range(2)]
    assert names == ["a/add", "a/add.1"]
