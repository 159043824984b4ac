"""QuantizedForm: the same numbers for processors and GPUs, in the operators that each takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from graph.one_product import PLACE, product_graph, random_weight, run, write_weights
from orin_rerank.errors import InternalError
from orin_rerank.graph.builder import Dialect, GraphBuilder, Precision
from orin_rerank.graph.quantized import QuantizedForm
from orin_rerank.graph.scheme import ROW_SCALE, Mode, PlaceScheme, Scheme, scale_name

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.graph.weights import WeightFile

CHANNELS, OUTPUTS = 32, 20
STEP = 0.05


@pytest.fixture
def stored(tmp_path: Path) -> tuple[WeightFile, np.ndarray]:
    """The weights as INT8, and what they stand for."""
    weight = random_weight(3, OUTPUTS, CHANNELS).astype(np.float32)
    steps = (np.abs(weight).max(1) / 127).astype(np.float32)
    codes = np.rint(weight / steps[:, None]).astype(np.int8)
    file = write_weights(tmp_path, {scale_name("a"): steps, "a": codes})
    return file, codes * steps[:, None]


def _lookup(file: WeightFile, precision: Precision) -> onnx.ModelProto:
    builder = GraphBuilder("lookup", file, Dialect.PRIMITIVE, precision, QuantizedForm(Scheme({}, embedding=True)))
    ids = builder.input("ids", TensorProto.INT32, ["tokens"])
    builder.output(builder.rows("a", ids, "embedding"), "y", TensorProto.FLOAT, ["tokens", CHANNELS])
    return builder.model()


def _product(file: WeightFile, mode: Mode, precision: Precision) -> onnx.ModelProto:
    scheme = Scheme({PLACE: PlaceScheme(mode, STEP if mode is Mode.INT8 else None)})
    return product_graph(file, ("a",), CHANNELS, precision, QuantizedForm(scheme))


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FP16])
@pytest.mark.parametrize("mode", [Mode.INT8, Mode.WEIGHTS])
def test_products_are_of_the_rounded_numbers(
    tmp_path: Path, stored: tuple[WeightFile, np.ndarray], mode: Mode, precision: Precision
) -> None:
    file, weight = stored
    x = np.random.default_rng(1).normal(size=(7, CHANNELS)).astype(np.float32)
    x[0, 0] = 1000  # beyond the largest code
    result = np.asarray(run(tmp_path, _product(file, mode, precision), x=x))
    taken = np.clip(np.rint(x / np.float32(STEP)), -128, 127) * np.float32(STEP) if mode is Mode.INT8 else x
    half = mode is Mode.WEIGHTS and precision.half
    expected = taken @ weight.T
    assert result == pytest.approx(expected, rel=1e-3 if half else 1e-5, abs=3e-2 if half else 1e-4)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FP16])
@pytest.mark.parametrize("dialect", Dialect)
def test_rows_with_steps_of_their_own_do_not_mind_each_other(
    tmp_path: Path, stored: tuple[WeightFile, np.ndarray], precision: Precision, dialect: Dialect
) -> None:
    if dialect is Dialect.FUSED and precision.half and tuple(map(int, ort.__version__.split(".")[:2])) < (1, 24):
        pytest.skip(f"ONNX Runtime {ort.__version__} lacks QuantizeLinear of opset 23; TensorRT is who runs this graph")
    file, weight = stored
    x = np.random.default_rng(1).normal(size=(7, CHANNELS)).astype(np.float32)
    x[0, 0], x[3] = 1e4, 0
    form = QuantizedForm(Scheme({PLACE: PlaceScheme(Mode.INT8, ROW_SCALE, by_row=True)}))
    model = product_graph(file, ("a",), CHANNELS, precision, form, dialect)
    result = np.asarray(run(tmp_path, model, x=x))
    steps = np.maximum(np.abs(x).max(1, keepdims=True), 1e-30) / 127
    expected = (np.rint(x / steps) * steps) @ weight.T
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(1, keepdims=True).max())
    np.testing.assert_allclose(result[1:], expected[1:], rtol=1e-4, atol=2e-4)
    assert not result[3].any()
    # One quantisation, and the pattern around the product, as without.
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("QuantizeLinear") == 1
    assert kinds.count("DequantizeLinear") == 2


def test_a_step_by_row_is_that_of_rows_that_reach_1() -> None:
    with pytest.raises(InternalError):
        PlaceScheme(Mode.INT8, 0.05, by_row=True)
    with pytest.raises(InternalError):
        PlaceScheme(Mode.WEIGHTS, by_row=True)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FP16])
def test_lookups_are_of_the_rounded_rows(
    tmp_path: Path, stored: tuple[WeightFile, np.ndarray], precision: Precision
) -> None:
    file, weight = stored
    ids = np.array([0, 19, 3, 3], np.int32)
    np.testing.assert_array_equal(run(tmp_path, _lookup(file, precision), ids=ids), weight[ids])


def test_gpus_get_int8_constants_through_dequantize_alone(stored: tuple[WeightFile, np.ndarray]) -> None:
    """TensorRT: "Quantized constant is only allowed before DQ"; and every zero point is a signed 0."""
    file, _ = stored
    models = [_product(file, mode, Precision.INT8_FP16) for mode in (Mode.INT8, Mode.WEIGHTS)]
    for model in [*models, _lookup(file, Precision.INT8_FP16)]:
        narrow = {t.name: t for t in model.graph.initializer if t.data_type in (TensorProto.INT8, TensorProto.UINT8)}
        assert narrow
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                if name in narrow:
                    assert node.op_type == "DequantizeLinear" or (node.op_type, place) == ("QuantizeLinear", 2)
                if name in narrow and place == 2:
                    assert narrow[name].data_type == TensorProto.INT8
                    assert not onnx.numpy_helper.to_array(narrow[name]).any()


def test_products_of_one_size_load_where_a_processor_needs_unsigned_weights(tmp_path: Path) -> None:
    """ONNX Runtime then replaces codes and zero points, and fails where two products share those. `run` asks for it."""
    first, second = (random_weight(seed, CHANNELS, CHANNELS).astype(np.float32) for seed in (4, 5))
    steps = [(np.abs(weight).max(1) / 127).astype(np.float32) for weight in (first, second)]
    codes = [np.rint(w / s[:, None]).astype(np.int8) for w, s in zip((first, second), steps, strict=True)]
    tensors = {scale_name("a"): steps[0], scale_name("b"): steps[1], "a": codes[0], "b": codes[1]}
    form = QuantizedForm(Scheme({PLACE: PlaceScheme(Mode.INT8, STEP)}))
    builder = GraphBuilder("two", write_weights(tmp_path, tensors), Dialect.PRIMITIVE, Precision.INT8, form)
    value = builder.linear(builder.input("x", TensorProto.FLOAT, ["rows", CHANNELS]), "a", place=PLACE)
    builder.output(builder.linear(value, "b", place=PLACE), "y", TensorProto.FLOAT, ["rows", CHANNELS])
    x = np.random.default_rng(1).normal(size=(3, CHANNELS)).astype(np.float32)
    expected = x
    for code, step in zip(codes, steps, strict=True):
        expected = (
            np.clip(np.rint(expected / np.float32(STEP)), -128, 127) * np.float32(STEP) @ (code * step[:, None]).T
        )
    assert np.asarray(run(tmp_path, builder.model(), x=x)) == pytest.approx(expected, rel=1e-4, abs=1e-3)
