"""Which place costs the margins most, on arithmetic that is known and on real graphs."""

from __future__ import annotations

import random
from collections.abc import Collection

import numpy as np
import pytest

from engines.running import make_encoder, make_engine, make_runner, random_requests
from orin_rerank.engines.bulk import score_requests
from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.pool import PackCapacity
from orin_rerank.errors import InternalError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.places import text_places, vision_places
from orin_rerank.graph.probes import SwitchedForm
from orin_rerank.graph.scheme import Mode, PlaceScheme, Scheme
from orin_rerank.graph.text import text_graph, text_weights
from orin_rerank.graph.vision import vision_graph, vision_weights
from orin_rerank.graph.weights import WeightFile
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.quantization.sensitivity import SwitchingEngine, measure_sensitivity


def test_places_are_ranked_by_what_they_move() -> None:
    exact = np.array([1.0, -2.0, 4.0], np.float32)
    moves = {"a": 0.5, "b": 2.0, "c": 0.0, "d": 0.5}
    seen = []

    def score(on: Collection[str]) -> np.ndarray:
        return (exact + sum(moves[name] for name in on)).astype(np.float32)

    found = measure_sensitivity(score, list(moves), lambda done, total: seen.append((done, total)))
    assert found.shifts == pytest.approx(moves)
    assert found.ranking == ["b", "a", "d", "c"]
    assert found.together == pytest.approx(3.0)
    assert found.spread == pytest.approx(float(exact.std()))
    assert seen == [(n, 6) for n in range(1, 7)]


@pytest.fixture(scope="module")
def switching(vl_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory):
    """The tiny model with coarse steps at two places of each graph."""
    folder = tmp_path_factory.mktemp("switched")
    arch = vl_bundle.manifest.architecture
    assert arch.vision is not None
    weights = WeightFile(WEIGHTS_FILE, [*text_weights(arch.text, vl=True), *vision_weights(arch.vision)])
    if weights.slice("model.language_model.norm.weight").offset >= (vl_bundle.folder / WEIGHTS_FILE).stat().st_size:
        pytest.fail("the layout is not the bundle's")
    every = text_places(arch.text, vl=True), vision_places(arch.vision)
    text = [p for p in every[0] if p.name in {"layers.0.qkv", "layers.1.down"}]
    vision = [p for p in every[1] if p.name in {"patches", "blocks.0.fc2"}]
    checkpoint = Checkpoint.open(vl_bundle.folder)
    steps = {}
    for place in [*text, *vision]:
        for name in place.weights:
            tensor = checkpoint.read(name).astype(np.float32).reshape(-1, place.channels)
            steps[name] = np.abs(tensor).max(1) / 127
    scheme = Scheme({p.name: PlaceScheme(Mode.INT8, 0.25) for p in (*text, *vision)})
    options = {"dialect": Dialect.FUSED, "precision": Precision.FP32}
    taps = len(arch.vision.deepstack_layers)
    models = {
        "text": text_graph(
            arch.text, weights, vl=True, taps=taps, merged=False, form=SwitchedForm(text, scheme, steps), **options
        ),
        "vision": vision_graph(arch.vision, weights, form=SwitchedForm(vision, scheme, steps), **options),
    }
    for name, model in models.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    engine = OnnxRuntimeEngine(
        folder / "text.onnx",
        folder / "vision.onnx",
        vl_bundle.manifest.prompt.image,
        PackCapacity.of_model(arch, tokens=2048, documents=64),
        threads=1,
        precision="switched",
        pool_timeout_s=5.0,
        weights=vl_bundle.folder,
    )
    made = SwitchingEngine(engine, text, vision)
    yield made
    made.close()


def test_switches_reach_both_graphs(switching: SwitchingEngine, vl_bundle: Bundle, pictures) -> None:
    requests = random_requests(make_encoder(vl_bundle), random.Random(1), 6, 3, pictures)
    plain = make_runner(vl_bundle, make_engine(vl_bundle, Dialect.FUSED), remember=False)
    switched = make_runner(vl_bundle, switching, remember=False)

    def score(runner) -> np.ndarray:
        return np.concatenate(score_requests(runner, requests, TokenBudget.fixed(256)).margins)

    exact = score(plain)
    switching.switch_on(())
    assert score(switched) == pytest.approx(exact, abs=1e-5)
    moved = {}
    for name in ("layers.0.qkv", "layers.1.down", "patches", "blocks.0.fc2"):
        switching.switch_on([name])
        moved[name] = score(switched)
        assert np.abs(moved[name] - exact).max() > 1e-4, name
    assert len({values.tobytes() for values in moved.values()}) == 4
    switching.switch_on(())
    assert score(switched) == pytest.approx(exact, abs=1e-5)
    with pytest.raises(InternalError, match="no such switch"):
        switching.switch_on(["layers.9.qkv"])
