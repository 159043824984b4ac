"""Rounding: codes and steps, whole and in pieces."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from graph.checkpoints import uniform, write_safetensors
from orin_rerank.errors import CheckpointError
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.places import Place
from orin_rerank.quantization.rounding import (
    LEAST_STEP,
    fake_quantize,
    quantize_rows,
    row_steps,
    tensor_steps,
    weight_steps,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_the_largest_weight_of_a_row_has_the_largest_code() -> None:
    weight = np.array([[0.5, -2.0, 1.0], [0.25, 0.125, -0.125], [3.0, -3.0, 0.0]], np.float32)
    steps = row_steps(weight)
    assert steps == pytest.approx(np.array([2, 0.25, 3]) / 127, rel=1e-7)
    codes = quantize_rows(weight, steps)
    assert codes.dtype == np.int8
    assert codes.tolist() == [[32, -127, 64], [127, 64, -64], [127, -127, 0]]


def test_weights_come_back_within_half_a_step() -> None:
    weight = uniform("w", (40, 300)) * np.geomspace(1e-6, 1e6, 40, dtype=np.float32)[:, None]
    steps = row_steps(weight)
    codes = quantize_rows(weight, steps).astype(np.float32)
    assert np.abs(codes).max() == 127
    assert (np.abs(codes * steps[:, None] - weight) <= 0.5001 * steps[:, None]).all()


def test_a_row_of_zeros_has_a_step_above_0() -> None:
    weight = np.zeros((2, 5), np.float32)
    weight[1] = 1e-40  # less than float32 holds in full
    steps = row_steps(weight)
    assert steps.tolist() == [np.float32(LEAST_STEP)] * 2
    assert not quantize_rows(weight, steps).any()


def test_values_round_as_a_graph_rounds_them() -> None:
    """Half goes to even; beyond the codes, values are clipped, where a graph alone would use -128 too."""
    step = 0.25
    values = np.concatenate([np.arange(-40, 40, 0.125), [1e9, -1e9, 0.0]]).astype(np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["codes"]),
        helper.make_node("DequantizeLinear", ["codes", "step", "zero"], ["y"]),
    ]
    tensors = [
        helper.make_tensor("step", TensorProto.FLOAT, [], [step]),
        helper.make_tensor("zero", TensorProto.INT8, [], [0]),
    ]
    one = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(values)]) for name in "xy"]
    graph = helper.make_graph(nodes, "round", one[:1], one[1:], initializer=tensors)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    computed = session.run(None, {"x": values})[0]
    assert computed.min() == -128 * step
    np.testing.assert_array_equal(fake_quantize(values, step), np.maximum(computed, -127 * step))


def test_steps_broadcast_over_rows() -> None:
    values = np.array([[1.0, 0.4], [10.0, 4.0]], np.float32)
    rounded = fake_quantize(values, np.array([[1.0], [10.0]], np.float32))
    assert rounded.tolist() == [[1, 0], [10, 0]]


def _checkpoint(folder: Path, tensors: dict[str, np.ndarray], dtype: str = "F16") -> Checkpoint:
    write_safetensors(folder / "model.safetensors", tensors, dtype)
    return Checkpoint.open(folder)


def test_steps_of_smoothed_weights(tmp_path: Path) -> None:
    tensors = {"a": uniform("a", (6, 4)), "b": uniform("b", (3, 2, 2)), "c": uniform("c", (5, 7))}
    source = _checkpoint(tmp_path, tensors, "F32")
    smoothing = np.array([0.1, 1, 10, 100], np.float32)
    places = [
        Place("one", 4, 9, ("a", "b"), (), (1, 1, 4)),
        Place("two", 7, 5, ("c",), (), (1, 1, 7)),
    ]
    steps = weight_steps(source, places, {"one": smoothing})
    assert set(steps) == {"a", "b", "c"}
    for name in "abc":
        flat = tensors[name].reshape(len(tensors[name]), -1)
        expected = np.abs(flat * smoothing if name != "c" else flat).max(1) / 127
        assert steps[name].dtype == np.float32
        assert steps[name] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    weight = uniform("w", (6, 4))
    weight[5, 3] = value
    source = _checkpoint(tmp_path, {"fine": uniform("f", (2, 4)), "w": weight})
    with pytest.raises(CheckpointError) as caught:
        weight_steps(source, [Place("p", 4, 8, ("fine", "w"), (), (1, 1, 4))], {})
    assert caught.value.item == "w"


def test_a_large_matrix_is_read_in_pieces(tmp_path: Path) -> None:
    shape = (20_000, 1500)  # 120 MB as float32
    source = _checkpoint(tmp_path, {"w": np.ones(shape, np.float16)})
    tracemalloc.start()
    steps = tensor_steps(source, "w")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert steps.shape == (20_000,)
    assert peak < 60e6
    assert source.bytes_read == 2 * 20_000 * 1500
