"""SwitchedForm in both precisions: what INT8 would give where a place is on, full precision where it is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from graph.one_product import PLACE, product_graph, random_weight, run, write_weights
from orin_rerank.graph.builder import Precision
from orin_rerank.graph.places import Place
from orin_rerank.graph.probes import SwitchedForm
from orin_rerank.graph.product import FloatForm
from orin_rerank.graph.scheme import ROW_SCALE, Mode, PlaceScheme, Scheme

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

CHANNELS = 24
NAMES = ("a", "b")
STEP = 0.03


def _codes(values: np.ndarray, step: float | np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values / step), -127, 127) * step


@pytest.fixture(params=[False, True], ids=["plain", "smoothed"])
def smoothing(request: pytest.FixtureRequest) -> np.ndarray | None:
    return np.geomspace(0.1, 8, CHANNELS, dtype=np.float32) if request.param else None


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_on_is_int8_and_off_is_full_precision(
    tmp_path: Path, precision: Precision, smoothing: np.ndarray | None, by_row: bool
) -> None:
    tensors = {name: random_weight(seed, 16 + seed, CHANNELS) for seed, name in enumerate(NAMES)}
    file = write_weights(tmp_path, tensors)
    weight = np.concatenate([tensors[name] for name in NAMES]).astype(np.float32)
    scales = np.ones(CHANNELS, np.float32) if smoothing is None else smoothing
    place = Place(PLACE, CHANNELS, len(weight), NAMES, (), (1, 1, CHANNELS))
    int8 = PlaceScheme(Mode.INT8, ROW_SCALE, by_row=True) if by_row else PlaceScheme(Mode.INT8, STEP)
    scheme = Scheme({PLACE: int8}, smoothing={} if smoothing is None else {PLACE: smoothing})
    steps = {name: np.abs(t.astype(np.float32) * scales).max(1) / 127 for name, t in tensors.items()}
    x = np.random.default_rng(5).normal(size=(9, CHANNELS)).astype(np.float32) * 2
    if by_row:
        x[np.arange(9), np.arange(9)] *= 20

    def compute(model: onnx.ModelProto, **inputs: np.ndarray) -> np.ndarray:
        return np.asarray(run(tmp_path, model, x=x, **inputs))

    switched = product_graph(file, NAMES, CHANNELS, precision, SwitchedForm([place], scheme, steps))
    plain = compute(product_graph(file, NAMES, CHANNELS, precision, FloatForm()))
    each = np.concatenate([steps[name] for name in NAMES])[:, None]
    step = np.abs(x / scales).max(1, keepdims=True) / 127 if by_row else STEP
    rounded = _codes(x / scales, step) @ _codes(weight * scales, each).T
    tolerance = 2e-6 if precision is Precision.FP32 else 3e-3
    size = float(np.abs(plain).max())
    assert compute(switched, active=np.zeros(1, np.float32)) == pytest.approx(plain, abs=1e-6 * size)
    assert compute(switched, active=np.ones(1, np.float32)) == pytest.approx(rounded, abs=tolerance * size)
    assert np.abs(rounded - plain).max() > (2 if by_row else 10) * tolerance * size


def test_nothing_that_touches_weights_folds_in_half_precision(tmp_path: Path) -> None:
    """A compiler would keep what it folds beside the weights: every node that takes them has to depend on an input."""
    file = write_weights(tmp_path, {"a": random_weight(0, 16, CHANNELS)})
    place = Place(PLACE, CHANNELS, 16, ("a",), (), (1, 1, CHANNELS))
    smoothing = {PLACE: np.full(CHANNELS, 2, np.float32)}
    form = SwitchedForm(
        [place], Scheme({PLACE: PlaceScheme(Mode.INT8, STEP)}, smoothing=smoothing), {"a": np.ones(16, np.float32)}
    )
    graph = product_graph(file, ("a",), CHANNELS, Precision.FP16, form).graph
    fixed = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in graph.node:
        if all(name in fixed for name in node.input):
            sizes = [np.prod(fixed[name]) for name in node.input]
            assert max(sizes) < 16 * CHANNELS, node.name
            fixed[node.output[0]] = fixed[node.input[int(np.argmax(sizes))]]
