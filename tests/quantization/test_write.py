"""Weights and graphs of INT8 bundles."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from engines.running import make_encoder, random_requests
from graph.checkpoints import TEXT, VL, random_tensor, write_checkpoint, write_safetensors
from orin_rerank.engines.bulk import score_requests
from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle, GraphEntry
from orin_rerank.engines.graph_files import model_weights, write_graph_pair
from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import CalibrationError, CheckpointError, InternalError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.places import Place, model_places
from orin_rerank.graph.probes import SwitchedForm
from orin_rerank.graph.quantized import QuantizedForm
from orin_rerank.graph.scheme import ROW_SCALE, Mode, PlaceScheme, Scheme, scale_name
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.runners import build_runner
from orin_rerank.lifecycle.sizes import GraphFiles, processor_plan
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.quantization.rounding import weight_steps
from orin_rerank.quantization.sensitivity import SwitchingEngine
from orin_rerank.quantization.write import quantized_layout, write_graphs, write_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.engines.port import Engine
    from orin_rerank.prompt.content import ImagePart
    from orin_rerank.prompt.encoded import EncodedRequest

MINI = Path(__file__).parents[2] / "engines" / "mini"
SETTINGS = EngineSettings(threads=1, prefix_cache_bytes=0, feature_cache_bytes=0)
EMBEDDING = "model.language_model.embed_tokens.weight"
UP = "model.language_model.layers.1.mlp.up_proj.weight"
QKV = "model.visual.blocks.1.attn.qkv.weight"


@pytest.fixture(scope="module", params=["vl", "text", "mini"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    if request.param == "mini":
        return Bundle.open(MINI)
    return _export(tmp_path_factory.mktemp(request.param), {"vl": VL, "text": TEXT}[request.param], "F32")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return _export(tmp_path_factory.mktemp("tiny"), VL, "F32")


def _export(folder: Path, config: dict[str, Any], dtype: str) -> Bundle:
    checkpoint = write_checkpoint(folder / "checkpoint", config, dtype)
    return export_checkpoint(checkpoint, folder / "bundle", ExportOptions(max_tokens=1024, min_pixels=1)).bundle


def _requests(bundle: Bundle, pictures: list[ImagePart]) -> list[EncodedRequest]:
    vision = bundle.manifest.prompt.image is not None
    return random_requests(make_encoder(bundle), random.Random(6), 5, 3, pictures if vision else [])


def _margins(
    bundle: Bundle,
    files: GraphFiles,
    requests: list[EncodedRequest],
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
) -> np.ndarray:
    precision = Precision(files.precision)
    memory = processor_plan(bundle, make_encoder(bundle), precision, read_host_memory(), SETTINGS)
    runner = build_runner(files, memory, SETTINGS, wrap=wrap)
    margins = np.concatenate(score_requests(runner, requests, TokenBudget.fixed(256)).margins)
    runner.close()
    return margins


def _full(bundle: Bundle, requests: list[EncodedRequest]) -> np.ndarray:
    return _margins(bundle, GraphFiles.of_bundle(bundle, Dialect.FUSED, Precision.FP32), requests)


def _smoothing(places: list[Place], spread: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Random scales, of each place's producers one a row."""
    rng = np.random.default_rng(seed)
    found = {}
    for place in places:
        outer, _, inner = place.layout
        scales = np.exp(rng.normal(0, spread, (outer, 1, inner)))
        if place.producers:
            found[place.name] = np.broadcast_to(scales, place.layout).reshape(-1).astype(np.float32)
    return found


def _everywhere(bundle: Bundle, scheme: PlaceScheme, *, embedding: bool, spread: float = 0.0) -> Scheme:
    places = model_places(bundle.manifest.architecture)
    return Scheme({p.name: scheme for p in places}, embedding, _smoothing(places, spread) if spread else {})


def _written(
    bundle: Bundle,
    scheme: Scheme,
    out: Path,
    wide: Any,
    dialect: Dialect = Dialect.FUSED,
    precision: Precision = Precision.INT8,
) -> GraphFiles:
    architecture = bundle.manifest.architecture
    weights = write_weights(Checkpoint.open(bundle.folder), architecture, scheme, out, wide=wide)
    forms = {"text_form": QuantizedForm(scheme), "vision_form": QuantizedForm(scheme)}
    return _files(out, write_graph_pair(out, architecture, weights, dialect, precision, **forms))


def _files(folder: Path, entry: GraphEntry, weights: Path | None = None) -> GraphFiles:
    vision = None if entry.vision is None else folder / entry.vision
    return GraphFiles(folder / entry.text, vision, entry.precision.value, weights)


@pytest.mark.parametrize("dialect", Dialect)
def test_smoothing_alone_changes_nothing(
    model: Bundle, tmp_path: Path, pictures: list[ImagePart], dialect: Dialect
) -> None:
    scheme = _everywhere(model, PlaceScheme(Mode.WIDE), embedding=False, spread=1.5)
    requests = _requests(model, pictures)
    exact = _full(model, requests)
    assert exact.std() > 0.1
    moved = _margins(model, _written(model, scheme, tmp_path, "F32", dialect), requests) - exact
    assert 0 < np.abs(moved).max() < 1e-4
    stored = load_file(tmp_path / WEIGHTS_FILE)
    source = Checkpoint.open(model.folder)
    changed = {name for name, values in stored.items() if not np.array_equal(values, source.read(name))}
    assert changed >= {p.tensor for place in model_places(model.manifest.architecture) for p in place.producers}


@pytest.mark.parametrize("by_row", [False, True])
def test_graphs_compute_what_switches_try_out(
    tiny: Bundle, tmp_path: Path, pictures: list[ImagePart], by_row: bool
) -> None:
    """Two ways to one number: codes in the file and integer products, and rounding in between of what is exact.

    One place at a time: with several, a last bit decides between two codes here and there, and soon everywhere.
    """
    places = model_places(tiny.manifest.architecture)
    int8 = PlaceScheme(Mode.INT8, ROW_SCALE if by_row else 0.25, by_row)  # reaches 32, so clips nothing
    every = _everywhere(tiny, int8, embedding=False, spread=0.3)
    requests = _requests(tiny, pictures)[:2]
    exact = _full(tiny, requests)
    files, switch = _switched(tiny, every, tmp_path)
    for place in places:
        modes = {p.name: int8 if p is place else PlaceScheme(Mode.WIDE) for p in places}
        scheme = Scheme(modes, smoothing=every.smoothing)
        stored = _margins(tiny, _written(tiny, scheme, tmp_path, "F32"), requests)
        tried = _margins(tiny, files, requests, lambda engine, name=place.name: switch(engine, name))
        cost = np.abs(tried - exact).max()
        assert cost > 1e-4, place.name
        assert np.abs(stored - tried).max() < 0.05 * cost, place.name


def _switched(bundle: Bundle, scheme: Scheme, folder: Path) -> tuple[GraphFiles, Callable[[Engine, str], Engine]]:
    """Graphs in which each place can be switched on, and what switches one on."""
    architecture = bundle.manifest.architecture
    source = Checkpoint.open(bundle.folder)
    places = model_places(architecture)
    text, vision = ([p for p in places if p.vision is which] for which in (False, True))
    steps = weight_steps(source, places, scheme.smoothing)
    (folder / "switched").mkdir()
    entry = write_graph_pair(
        folder / "switched",
        architecture,
        model_weights(architecture, source.entry(EMBEDDING).dtype),
        Dialect.FUSED,
        Precision.FP32,
        text_form=SwitchedForm(text, scheme, steps),
        vision_form=SwitchedForm(vision, scheme, steps),
    )

    def switch(engine: Engine, name: str) -> Engine:
        switching = SwitchingEngine(engine, text, vision)
        switching.switch_on([name])
        return switching

    return _files(folder / "switched", entry, bundle.folder), switch


def test_processors_and_gpus_get_the_same_numbers(model: Bundle, tmp_path: Path, pictures: list[ImagePart]) -> None:
    """Codes with 128 added against signed ones, and single products against one of weights that lie side by side.

    At one place, for the reason above: here it is float16 in between that differs in the last bits.
    """
    places = model_places(model.manifest.architecture)
    int8 = {"layers.0.qkv": PlaceScheme(Mode.INT8, ROW_SCALE, by_row=True)}
    scheme = Scheme({p.name: int8.get(p.name, PlaceScheme(Mode.WEIGHTS)) for p in places}, embedding=True)
    requests = _requests(model, pictures)
    processor, gpu = (
        _margins(model, _written(model, scheme, tmp_path, "F16", dialect, precision), requests)
        # Signed codes in the fused dialect need a newer ONNX Runtime than the last one for Python 3.10.
        for dialect, precision in ((Dialect.FUSED, Precision.INT8), (Dialect.PRIMITIVE, Precision.INT8_FP16))
    )
    assert gpu == pytest.approx(processor, abs=0.1 * float(processor.std()))


def test_one_graph_for_processors_and_both_dialects_for_gpus(tiny: Bundle, tmp_path: Path) -> None:
    architecture = tiny.manifest.architecture
    scheme = _everywhere(tiny, PlaceScheme(Mode.INT8, 0.1), embedding=True)
    weights = write_weights(Checkpoint.open(tiny.folder), architecture, scheme, tmp_path)
    graphs = write_graphs(tmp_path, architecture, weights, scheme)
    assert {(g.dialect, g.precision) for g in graphs} == {
        (Dialect.FUSED, Precision.INT8),
        (Dialect.FUSED, Precision.INT8_FP16),
        (Dialect.PRIMITIVE, Precision.INT8_FP16),
    }
    for graph in graphs:
        for name in (graph.text, graph.vision):
            onnx.checker.check_model(str(tmp_path / name))


def test_codes_and_scales_are_the_smoothed_weights(tiny: Bundle, tmp_path: Path) -> None:
    """Columns times their place's scales, rows divided by those of the place that they make; the codes know no rows."""
    scheme = _everywhere(tiny, PlaceScheme(Mode.WEIGHTS), embedding=True, spread=1.0)
    source = Checkpoint.open(tiny.folder)
    write_weights(source, tiny.manifest.architecture, scheme, tmp_path)
    stored = load_file(tmp_path / WEIGHTS_FILE)

    def check(name: str, expected: np.ndarray) -> None:
        assert stored[name].dtype == np.int8
        assert stored[name].shape == source.entry(name).shape
        codes = stored[name].reshape(len(expected), -1)
        assert np.abs(codes.astype(int)).max(1).min() == 127
        steps = stored[scale_name(name)][:, None]
        assert (np.abs(codes * steps - expected) <= 0.501 * steps).all()

    check(EMBEDDING, source.read(EMBEDDING))
    smoothing = scheme.smoothing
    up = source.read(UP) * smoothing["layers.1.gate_up"] / smoothing["layers.1.down"][:, None]
    check(UP, up)
    hidden = tiny.manifest.architecture.vision.hidden
    qkv = source.read(QKV) * smoothing["blocks.1.qkv"]
    qkv[2 * hidden :] /= smoothing["blocks.1.output"][:, None]
    check(QKV, qkv)
    bias = QKV.replace("weight", "bias")
    expected = source.read(bias).copy()
    expected[2 * hidden :] /= smoothing["blocks.1.output"]
    np.testing.assert_allclose(stored[bias], expected, rtol=1e-6)
    patches = "model.visual.patch_embed.proj.weight"
    check(patches, source.read(patches).reshape(hidden, -1))


def test_only_what_the_scheme_names_is_narrow(tiny: Bundle, tmp_path: Path) -> None:
    architecture = tiny.manifest.architecture
    places = model_places(architecture)
    modes = {p.name: PlaceScheme(Mode.WIDE) for p in places}
    modes["layers.1.gate_up"] = PlaceScheme(Mode.INT8, 0.1)
    modes["blocks.0.fc2"] = PlaceScheme(Mode.WEIGHTS)
    write_weights(Checkpoint.open(tiny.folder), architecture, Scheme(modes), tmp_path)
    stored = load_file(tmp_path / WEIGHTS_FILE)
    narrow = {name for name, values in stored.items() if values.dtype == np.int8}
    assert narrow == {
        "model.language_model.layers.1.mlp.gate_proj.weight",
        UP,
        "model.visual.blocks.0.mlp.linear_fc2.weight",
    }
    assert {name for name in stored if name.endswith(".scale")} == {scale_name(name) for name in narrow}
    assert stored[EMBEDDING].dtype == np.float16


def test_every_tensor_is_aligned_to_its_type(tiny: Bundle) -> None:
    architecture = tiny.manifest.architecture
    places = model_places(architecture)
    modes = {p.name: PlaceScheme(list(Mode)[i % 3], 0.1 if i % 3 == 0 else None) for i, p in enumerate(places)}
    layout = quantized_layout(architecture, Scheme(modes, embedding=True))
    width = {"F32": 4, "F16": 2, "I8": 1}
    assert {spec.dtype for spec in layout.specs} == set(width)
    for spec in layout.specs:
        assert layout.slice(spec.name).offset % width[spec.dtype] == 0, spec.name


def test_steps_at_hand_save_reading(tiny: Bundle, tmp_path: Path) -> None:
    architecture = tiny.manifest.architecture
    scheme = _everywhere(tiny, PlaceScheme(Mode.INT8, 0.1), embedding=False, spread=0.5)
    source = Checkpoint.open(tiny.folder)
    size = sum(entry.end - entry.begin for entry in source.entries.values())
    places = model_places(architecture)
    matrices = sum(source.entry(n).end - source.entry(n).begin for p in places for n in p.weights)

    def write(name: str, **options: Any) -> tuple[int, bytes]:
        (tmp_path / name).mkdir()
        before = source.bytes_read
        write_weights(source, architecture, scheme, tmp_path / name, **options)
        return source.bytes_read - before, (tmp_path / name / WEIGHTS_FILE).read_bytes()

    steps = weight_steps(source, places, scheme.smoothing)
    twice, once = write("a"), write("b", steps=steps)
    assert twice[0] == size + matrices
    assert once[0] == size
    assert twice[1] == once[1]


def test_progress_ends_at_the_size_of_the_file(tiny: Bundle, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    scheme = _everywhere(tiny, PlaceScheme(Mode.WEIGHTS), embedding=True)
    source = Checkpoint.open(tiny.folder)
    write_weights(source, tiny.manifest.architecture, scheme, tmp_path, progress=lambda *at: seen.append(at))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    header = 8 + int.from_bytes((tmp_path / WEIGHTS_FILE).read_bytes()[:8], "little")
    assert seen[-1][0] == seen[-1][1] == (tmp_path / WEIGHTS_FILE).stat().st_size - header


@pytest.mark.parametrize(
    "name", [EMBEDDING, UP, QKV, "model.language_model.norm.weight", QKV.replace("weight", "bias")]
)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_refused_and_nothing_is_left(
    tiny: Bundle, tmp_path: Path, name: str, value: float
) -> None:
    tensors = load_file(tiny.folder / WEIGHTS_FILE)
    tensors[name] = tensors[name].copy()
    tensors[name].flat[-1] = value
    write_safetensors(tmp_path / "model.safetensors", tensors, "F32")
    out = tmp_path / "out"
    out.mkdir()
    scheme = _everywhere(tiny, PlaceScheme(Mode.INT8, 0.1), embedding=True, spread=0.1)
    with pytest.raises(CheckpointError) as caught:
        write_weights(Checkpoint.open(tmp_path), tiny.manifest.architecture, scheme, out)
    assert caught.value.item == name
    assert not list(out.iterdir())


def test_smoothing_that_cannot_be_folded_is_refused(tiny: Bundle, tmp_path: Path) -> None:
    architecture = tiny.manifest.architecture
    plain = _everywhere(tiny, PlaceScheme(Mode.WIDE), embedding=False)
    places = {p.name: p for p in model_places(architecture)}
    unequal = np.arange(1, places["layers.0.output"].channels + 1, dtype=np.float32)
    width = places["layers.0.qkv"].channels
    zero = np.ones(width, np.float32)
    zero[3] = 0
    wrong = {
        "blocks.0.fc2": np.full(places["blocks.0.fc2"].channels, 2, np.float32),  # nothing linear before it
        "layers.0.output": unequal,  # query heads that share a value head
        "layers.0.qkv": zero,
        "layers.1.qkv": np.ones(width + 1, np.float32),
        "layers.2.qkv": np.full(width, np.nan, np.float32),
    }
    for name, scales in wrong.items():
        with pytest.raises(CalibrationError) as caught:
            write_weights(
                Checkpoint.open(tiny.folder), architecture, Scheme(plain.places, smoothing={name: scales}), tmp_path
            )
        assert caught.value.item == name


def test_smoothing_beyond_float16_is_refused(tiny: Bundle, tmp_path: Path) -> None:
    plain = _everywhere(tiny, PlaceScheme(Mode.WIDE), embedding=False)
    name = "layers.0.gate_up"
    scales = np.full(tiny.manifest.architecture.text.hidden, 1e6, np.float32)
    with pytest.raises(CalibrationError, match="F16") as caught:
        write_weights(
            Checkpoint.open(tiny.folder),
            tiny.manifest.architecture,
            Scheme(plain.places, smoothing={name: scales}),
            tmp_path,
        )
    assert caught.value.item == "model.language_model.layers.0.mlp.gate_proj.weight"


def test_a_scheme_names_every_place(tiny: Bundle) -> None:
    architecture = tiny.manifest.architecture
    scheme = _everywhere(tiny, PlaceScheme(Mode.WIDE), embedding=False)
    some = {name: place for name, place in scheme.places.items() if name != "merger.fc1"}
    with pytest.raises(InternalError) as caught:
        quantized_layout(architecture, Scheme(some))
    assert caught.value.item == "merger.fc1"


def test_a_checkpoint_of_another_shape_is_refused(tiny: Bundle, tmp_path: Path) -> None:
    tensors = load_file(tiny.folder / WEIGHTS_FILE)
    tensors[UP] = random_tensor(UP, (40, 32))
    write_safetensors(tmp_path / "model.safetensors", tensors, "F32")
    scheme = _everywhere(tiny, PlaceScheme(Mode.WEIGHTS), embedding=False)
    with pytest.raises(CheckpointError) as caught:
        write_weights(Checkpoint.open(tmp_path), tiny.manifest.architecture, scheme, tmp_path)
    assert caught.value.item == UP
