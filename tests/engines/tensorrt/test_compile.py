"""Every graph through NVIDIA's own compiler, for the nearest sibling of Orin's GPU."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engines.tensorrt.compiling import (
    TARGET,
    compile_graph,
    compile_here,
    needs_compiler,
    serving_plan,
    serving_profiles,
    text_ladder,
    vision_ladder,
)
from fakes.published import MODELS
from fakes.random_models import VL_2B, VL_8B, all_int8, cut, write_random_model
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.footprint import scratch_bytes
from orin_rerank.engines.graph_files import model_weights, write_graph_pair
from orin_rerank.engines.tensorrt.builder import PlanBuilder
from orin_rerank.engines.tensorrt.job import BuildJob, PhaseFinished, PhaseStarted, StepDone
from orin_rerank.engines.tensorrt.progress import BuildProgress
from orin_rerank.errors import BuildCancelledError, BuildError, GraphRefusedError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.places import text_places, vision_places
from orin_rerank.graph.probes import ObservedForm, SwitchedForm

if TYPE_CHECKING:
    from orin_rerank.engines.bundle import GraphEntry
    from orin_rerank.engines.memory_plan import MemoryPlan
    from orin_rerank.engines.tensorrt.job import BuildEvent
    from orin_rerank.engines.tensorrt.profiles import ShapeProfile
    from orin_rerank.graph.architecture import Architecture

pytestmark = needs_compiler

MINI = Path(__file__).parents[3] / "engines" / "mini"
PRECISIONS = (Precision.FP16, Precision.INT8_FP16)
SIZES = {"2b": VL_2B, "8b": VL_8B}


@pytest.fixture(scope="module")
def mini() -> Architecture:
    return Bundle.open(MINI).manifest.architecture


@pytest.fixture(scope="module")
def mini_int8(mini: Architecture, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[GraphEntry]]:
    folder = tmp_path_factory.mktemp("mini-int8")
    return folder, write_random_model(folder, mini, Precision.INT8_FP16, [Dialect.PRIMITIVE])


def planned_scratch(served: MemoryPlan, architecture: Architecture, profile: ShapeProfile) -> int:
    """What is reckoned for a profile, if the model had the layers of this architecture."""
    most = {name: extent.most for name, extent in profile.extents.items()}
    rows, images = {"tokens": 1, "known_rows": 1, "keep_rows": 1}, None
    if "tokens" in most:
        rows = {"tokens": most["tokens"], "known_rows": most["known"], "keep_rows": most["keep"]}
    else:
        assert served.images is not None
        images = dataclasses.replace(served.images, patches=most["patches"], outputs=2)
    capacity = dataclasses.replace(served.capacity, layers=architecture.text.layers, taps=1, **rows)
    return scratch_bytes(architecture, capacity, images, served.precision, served.kind)


def compile_pair(folder: Path, entry: GraphEntry, architecture: Architecture, weights: Path | None = None) -> int:
    """Compiles text and vision; returns the bytes of both plans, which do not stay."""
    assert entry.vision is not None
    total = 0
    for name, profiles in ((entry.text, text_ladder(architecture)), (entry.vision, vision_ladder(architecture))):
        report = compile_graph(folder / name, folder, profiles, weights=weights)
        plan = folder / f"{name}.plan"
        assert plan.stat().st_size == report.done.plan_bytes
        total += report.done.plan_bytes
        plan.unlink()
    return total


def test_the_mini_in_float16_and_int8(
    mini: Architecture, mini_int8: tuple[Path, list[GraphEntry]], tmp_path: Path
) -> None:
    folder, (int8,) = mini_int8
    half = Bundle.open(MINI).graph(Dialect.PRIMITIVE, Precision.FP16)
    # The graphs here, their weights there
    stored, plans = [], []
    for entry, weights in ((half, MINI), (int8, folder)):
        for name in (entry.text, entry.vision):
            assert name is not None
            shutil.copy(weights / name, tmp_path)
        stored.append((weights / "model.safetensors").stat().st_size)
        plans.append(compile_pair(tmp_path, entry, mini, weights))
    # Plans hold the weights once and as they are stored; what is compiled comes on top.
    assert stored[0] < plans[0]
    assert stored[1] < plans[1] < plans[0] - (stored[0] - stored[1]) / 2


SOFTMAX = "Setting softmax precision is not supported in TensorRT Attention"
FUSED = (
    (Precision.FP32, "text", "layers.0/attention/fused", "Attention", SOFTMAX),
    (Precision.FP32, "vision", "blocks.0/attention/fused", "Attention", SOFTMAX),
    (Precision.FP16, "text", "layers.0/attention/paged", "PagedAttention", "Plugin not found"),
    (Precision.FP16, "vision", "blocks.0/attention/fused", "Attention", SOFTMAX),
)
"""What NVIDIA's compiler says of the fused dialect, which is ONNX Runtime's: the first node that it refuses."""


@pytest.mark.parametrize(("precision", "kind", "node", "operator", "why"), FUSED)
def test_the_fused_dialect_is_not_for_tensorrt(
    mini: Architecture, tmp_path: Path, precision: Precision, kind: str, node: str, operator: str, why: str
) -> None:
    entry = write_graph_pair(tmp_path, mini, model_weights(mini, "F16"), Dialect.FUSED, precision)
    name, ladder = (entry.text, text_ladder(mini)) if kind == "text" else (entry.vision, vision_ladder(mini))
    assert name is not None
    with pytest.raises(GraphRefusedError) as caught:
        compile_graph(tmp_path / name, tmp_path, ladder, weights=MINI)
    assert caught.value.item == f"{name}: {node}"
    assert f"does not take the graph at its {operator} node: " in caught.value.message
    assert why in caught.value.message


def _say_by_standard_operators(graph: onnx.GraphProto) -> None:
    """Sums with their norms, which ONNX Runtime has as one operator, as those that they stand for."""
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if node.op_type != "SkipLayerNormalization":
            graph.node.append(node)
            continue
        value, skip, scale, shift, bias = node.input
        normed, _, _, total = node.output
        (epsilon,) = (attribute.f for attribute in node.attribute if attribute.name == "epsilon")
        graph.node.extend(
            [
                onnx.helper.make_node("Add", [value, bias], [f"{total}/biased"], name=f"{node.name}/bias"),
                onnx.helper.make_node("Add", [f"{total}/biased", skip], [total], name=f"{node.name}/sum"),
                onnx.helper.make_node(
                    "LayerNormalization", [total, scale, shift], [normed], name=f"{node.name}/norm", epsilon=epsilon
                ),
            ]
        )


@pytest.mark.parametrize(("precision", "compiles"), [(Precision.FP16, True), (Precision.FP32, False)])
def test_fused_attention_is_a_matter_of_precision(
    mini: Architecture, tmp_path: Path, precision: Precision, compiles: bool
) -> None:
    """Where nobody asks for softmax in float32 there is a kernel in float16, and none for float32 throughout."""
    entry = write_graph_pair(tmp_path, mini, model_weights(mini, "F16"), Dialect.FUSED, precision)
    assert entry.vision is not None
    model = onnx.load(tmp_path / entry.vision, load_external_data=False)
    _say_by_standard_operators(model.graph)
    for node in model.graph.node:
        kept = [attribute for attribute in node.attribute if attribute.name != "softmax_precision"]
        del node.attribute[:]
        node.attribute.extend(kept)
    path = tmp_path / "vision.onnx"
    path.write_bytes(model.SerializeToString())
    if compiles:
        assert compile_graph(path, tmp_path, vision_ladder(mini), weights=MINI).done.layers > 100
    else:
        with pytest.raises(BuildError, match="Attention operation was not supported"):
            compile_graph(path, tmp_path, vision_ladder(mini), weights=MINI)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", SIZES)
def test_true_widths_with_two_layers(size: str, precision: Precision, tmp_path: Path) -> None:
    """As the largest board serves them: packs within the budget, and the longest pair that the model takes."""
    architecture = cut(SIZES[size], layers=2, vocabulary=1024)
    (entry,) = write_random_model(tmp_path, architecture, precision, [Dialect.PRIMITIVE])
    weights = (tmp_path / "model.safetensors").stat().st_size
    served = serving_plan(MODELS[f"vl-{size}"], precision)
    text, vision = (ladder[-2:] for ladder in serving_profiles(served))
    assert [profile.name for profile in text] == ["1024 tokens", "10245 tokens"]
    assert entry.vision is not None
    plans = 0
    for graph, profiles in ((entry.text, text), (entry.vision, vision)):
        compiled = compile_here(tmp_path / graph, profiles)
        plans += compiled.plan_bytes
        # One kernel of attention in each layer, for each profile. If it were three, scores would take 4 GB and more.
        assert sum("mha" in kernel for kernel in compiled.kernels) == 2 * len(profiles)
        # The largest is what memory is planned for, with an eighth more than is reckoned.
        planned = planned_scratch(served, architecture, profiles[-1])
        smaller, largest = compiled.scratch
        assert smaller < largest < planned * 9 / 8, graph
        assert largest > planned / 2, graph
    assert weights < plans < weights * 1.25 + (64 << 20)
    (tmp_path / "model.safetensors").unlink()  # up to a gigabyte, which pytest would keep for three runs


@pytest.mark.parametrize("form", ["observed", "switched"])
def test_graphs_that_calibration_runs(mini: Architecture, tmp_path: Path, form: str) -> None:
    assert mini.vision is not None
    places = (text_places(mini.text, vl=True), vision_places(mini.vision))
    weights = model_weights(mini, "F16")
    if form == "observed":
        forms = [ObservedForm(some) for some in places]
    else:
        scheme = all_int8(mini)
        steps = {spec.name: np.full(spec.shape[0], 0.01, np.float32) for spec in weights.specs}
        forms = [SwitchedForm(some, scheme, steps) for some in places]
    entry = write_graph_pair(
        tmp_path, mini, weights, Dialect.PRIMITIVE, Precision.FP16, text_form=forms[0], vision_form=forms[1]
    )
    stored = (MINI / "model.safetensors").stat().st_size
    # Beside the weights, kernels of four profiles. A weight that is folded is there again as float32.
    assert stored < compile_pair(tmp_path, entry, mini, weights=MINI) < 2.75 * stored


def test_a_whole_ladder_reports_its_progress(mini: Architecture, tmp_path: Path) -> None:
    seen: list[BuildEvent] = []
    ladder = text_ladder(mini, tokens=512, budget=128)
    assert [profile.name for profile in ladder] == ["64 tokens", "128 tokens", "512 tokens"]
    graph = MINI / "text.primitive.fp16.onnx"
    progress = BuildProgress()
    fractions = [0.0]

    def watch(event: BuildEvent) -> None:
        seen.append(event)
        progress(event)
        fractions.append(progress.fraction)

    report = compile_graph(graph, tmp_path, ladder, watch=watch)
    assert report.done.runtime.startswith("tensorrt_rtx ")
    assert report.done.layers > 500
    assert 0 < report.done.seconds < 600
    assert report.done.peak_bytes > (MINI / "model.safetensors").stat().st_size
    started = [event.phase for event in seen if isinstance(event, PhaseStarted)]
    finished = [event.phase for event in seen if isinstance(event, PhaseFinished)]
    assert started[0] == finished[-1] == "Building engine"
    assert sorted(started) == sorted(finished)
    assert sum(isinstance(event, StepDone) for event in seen) > 100
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert len(set(fractions)) > 50


def test_cancelling_a_real_build(mini: Architecture, tmp_path: Path) -> None:
    cancelled = threading.Event()
    asked: list[float] = []

    def watch(event: object) -> None:
        if isinstance(event, StepDone) and not asked:
            asked.append(time.monotonic())
            cancelled.set()

    job = BuildJob(MINI / "text.primitive.fp16.onnx", tmp_path / "x.plan", text_ladder(mini), 1 << 30, target=TARGET)
    with pytest.raises(BuildCancelledError):
        PlanBuilder().build(job, watch, cancelled.is_set)
    assert time.monotonic() - asked[0] < 5
    assert list(tmp_path.iterdir()) == []


def write_graph(folder: Path, operator: str) -> Path:
    node = helper.make_node(operator, ["x"], ["y"], name="layers.0/attention/scores")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", 4]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    path = folder / "bad.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


@pytest.mark.parametrize("operator", ["Unheard", "StringNormalizer"])
def test_a_refused_graph_names_node_and_operator(mini: Architecture, tmp_path: Path, operator: str) -> None:
    with pytest.raises(GraphRefusedError, match=operator) as caught:
        compile_graph(write_graph(tmp_path, operator), tmp_path, text_ladder(mini))
    assert caught.value.item == "bad.onnx: layers.0/attention/scores"
    assert f"at its {operator} node" in caught.value.message


@pytest.mark.parametrize("contents", [None, b"", b"no graph at all"])
def test_a_file_that_is_no_graph(mini: Architecture, tmp_path: Path, contents: bytes | None) -> None:
    path = tmp_path / "bad.onnx"
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(GraphRefusedError, match=r"^bad\.onnx|/bad\.onnx"):
        compile_graph(path, tmp_path, text_ladder(mini))


def test_missing_weights(mini: Architecture, tmp_path: Path) -> None:
    with pytest.raises(GraphRefusedError):
        compile_graph(MINI / "text.primitive.fp16.onnx", tmp_path, text_ladder(mini), weights=tmp_path)


def test_a_gpu_that_the_compiler_does_not_know(mini: Architecture, tmp_path: Path) -> None:
    job = BuildJob(MINI / "text.primitive.fp16.onnx", tmp_path / "x.plan", text_ladder(mini), 1 << 30, target="SM1")
    with pytest.raises(BuildError, match="SM1"):
        PlanBuilder().build(job)


def test_a_plan_that_cannot_be_written(tmp_path: Path, mini: Architecture) -> None:
    ladder = vision_ladder(mini)
    with pytest.raises(BuildError, match="cannot be written"):
        compile_graph(MINI / "vision.primitive.fp16.onnx", tmp_path / "nowhere", ladder)
