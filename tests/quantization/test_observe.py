"""The observing engine on ONNX Runtime: margins as without it, ranges as of other runs, alike however it is driven."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from engines.running import make_encoder, make_engine, make_runner, random_requests
from orin_rerank.engines.graph_files import model_weights, write_graph_pair
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.port import Probe
from orin_rerank.engines.runner import Runner
from orin_rerank.errors import CalibrationError, InternalError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.places import model_places
from orin_rerank.graph.probes import TAIL, ObservedForm
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.packing.pack import plan_packs
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.quantization.magnitudes import bin_counts
from orin_rerank.quantization.observe import ObservingEngine
from orin_rerank.quantization.ranges import Provenance, RangeCollector, Ranges

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.graph.places import Place
    from orin_rerank.packing.pack import Pack
    from orin_rerank.prompt.content import ImagePart
    from orin_rerank.prompt.encoder import PromptEncoder

SOURCE = Provenance("a" * 64, "b" * 64, "c" * 64)


def write_observed(
    folder: Path, bundle: Bundle, dialect: Dialect, smoothing: Mapping[str, np.ndarray] | None = None
) -> list[Path]:
    architecture = bundle.manifest.architecture
    places = model_places(architecture)
    forms = [ObservedForm([p for p in places if p.vision == vision], smoothing or {}) for vision in (False, True)]
    has_vision = architecture.vision is not None
    entry = write_graph_pair(
        folder,
        architecture,
        model_weights(architecture, "F16"),
        dialect,
        Precision.FP32,
        text_form=forms[0],
        vision_form=forms[1] if has_vision else None,
    )
    return [folder / name for name in (entry.text, entry.vision) if name is not None]


def observed_engine(bundle: Bundle, files: list[Path], threads: int = 1) -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(
        files[0],
        files[1] if len(files) > 1 else None,
        bundle.manifest.prompt.image,
        PackCapacity.of_model(bundle.manifest.architecture, tokens=2048, documents=64),
        threads=threads,
        precision="fp32",
        pool_timeout_s=30.0,
        weights=bundle.folder,
    )


def packs_of(encoder: PromptEncoder, pictures: list[ImagePart], count: int = 6) -> list[Pack]:
    requests = random_requests(encoder, random.Random(5), count, 5, pictures)
    return [pack for request in requests for pack in plan_packs(request, TokenBudget.fixed(300), 64)]


def observe(
    bundle: Bundle,
    files: list[Path],
    packs: list[Pack],
    *,
    threads: int = 1,
    remember_images: bool = False,
    places: list[Place] | None = None,
) -> tuple[Ranges, list[np.ndarray]]:
    collector = RangeCollector(places or model_places(bundle.manifest.architecture), kept_rows=24)
    engine = ObservingEngine(observed_engine(bundle, files, threads), collector, rows_per_run=8)
    text = bundle.manifest.architecture.text
    runner = Runner(
        engine,
        RotaryTable(text.head_dim, text.rope_theta, text.mrope_section, 2048),
        feature_bytes=1 << 26 if remember_images else 0,
        prefix_bytes=0,
        vision_patches=1024,
    )
    try:
        with ThreadPoolExecutor(threads) as pool:
            margins = [result.margins for result in pool.map(runner.run, packs)]
    finally:
        runner.close()
    return collector.ranges(SOURCE), margins


def contents(ranges: Ranges, folder: Path) -> bytes:
    """All of some ranges, to the last bit."""
    ranges.save(folder / "ranges")
    return (folder / "ranges").read_bytes()


@pytest.mark.parametrize("dialect", list(Dialect))
def test_order_threads_and_remembered_images_do_not_matter(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, pictures: list[ImagePart], tmp_path: Path, dialect: Dialect
) -> None:
    files = write_observed(tmp_path, vl_bundle, dialect)
    packs = packs_of(vl_encoder, pictures)
    expected = contents(observe(vl_bundle, files, packs)[0], tmp_path)
    assert contents(observe(vl_bundle, files, packs[::-1])[0], tmp_path) == expected
    assert contents(observe(vl_bundle, files, packs, threads=2)[0], tmp_path) == expected
    assert contents(observe(vl_bundle, files, packs, threads=2, remember_images=True)[0], tmp_path) == expected
    assert contents(observe(vl_bundle, files, packs[1:])[0], tmp_path) != expected


@pytest.mark.parametrize("dialect", list(Dialect))
def test_margins_are_those_of_the_engine_beneath(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, pictures: list[ImagePart], tmp_path: Path, dialect: Dialect
) -> None:
    packs = packs_of(vl_encoder, pictures)
    plain = make_runner(vl_bundle, make_engine(vl_bundle, dialect), remember=False)
    _, margins = observe(vl_bundle, write_observed(tmp_path, vl_bundle, dialect), packs)
    for pack, found in zip(packs, margins, strict=True):
        np.testing.assert_allclose(found, plain.run(pack).margins, atol=1e-5)
    plain.close()


def test_a_text_model_is_observed_too(text_bundle: Bundle, tmp_path: Path) -> None:
    packs = packs_of(make_encoder(text_bundle), [])
    files = write_observed(tmp_path, text_bundle, Dialect.FUSED)
    ranges, _ = observe(text_bundle, files, packs)
    assert ranges["layers.0.qkv"].rows == sum(pack.tokens for pack in packs)
    # the last layer works on a document's last token alone
    assert ranges["layers.1.down"].rows == sum(pack.documents for pack in packs)


class Spying:
    """An engine that also returns every activation in full, through further outputs of the same graph."""

    def __init__(self, engine: OnnxRuntimeEngine, names: Mapping[str, str]) -> None:
        self._engine, self._names = engine, names
        self.seen: dict[str, list[np.ndarray]] = {name: [] for name in names}

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def run(self, arrays: object, probe: Probe) -> None:
        wider = Probe(probe.inputs, (*probe.outputs, *self._names.values()), probe.results)
        self._engine.run(arrays, wider)
        for place, output in self._names.items():
            self.seen[place].append(probe.results.pop(output))


def test_ranges_equal_what_numpy_finds_in_the_whole_activations(text_bundle: Bundle, tmp_path: Path) -> None:
    (file,) = write_observed(tmp_path, text_bundle, Dialect.PRIMITIVE)
    model = onnx.load(file, load_external_data=False)
    gemms = {node.name: node.input[0] for node in model.graph.node if node.op_type == "Gemm"}
    places = [p for p in model_places(text_bundle.manifest.architecture) if p.name.endswith((".down", ".output"))]
    names = {}
    for place in places:
        (value,) = {gemms[name] for name in gemms if _belongs(name, place.name)}
        names[place.name] = f"whole/{place.name}"
        model.graph.node.append(onnx.helper.make_node("Identity", [value], [names[place.name]]))
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(names[place.name], onnx.TensorProto.FLOAT, ["n", place.channels])
        )
    onnx.save(model, file)
    every = model_places(text_bundle.manifest.architecture)
    collector = RangeCollector(every, kept_rows=24)
    spy = Spying(observed_engine(text_bundle, [file]), names)
    runner = make_runner(text_bundle, ObservingEngine(spy, collector, rows_per_run=8), remember=False)
    for pack in packs_of(make_encoder(text_bundle), []):
        runner.run(pack)
    runner.close()
    ranges = collector.ranges(SOURCE)
    for place in places:
        whole = np.concatenate(spy.seen[place.name])
        found = ranges[place.name]
        magnitudes = np.abs(whole)
        assert found.rows == len(whole)
        assert np.array_equal(found.maxima, magnitudes.max(axis=0))
        largest = -np.sort(-magnitudes, axis=1)[:, :TAIL]
        assert np.array_equal(found.tail, bin_counts(largest))
        assert found.tail_floor == largest[:, -1].max()
        assert {row.tobytes() for row in found.samples} <= {row.tobytes() for row in whole}
        assert len(found.samples) == 24


def _belongs(node: str, place: str) -> bool:
    layer, _, part = place.rpartition(".")
    return node.startswith(f"{layer}/") and part in node


def test_smoothed_activations_are_divided_by_their_scales(text_bundle: Bundle, tmp_path: Path) -> None:
    packs = packs_of(make_encoder(text_bundle), [], 2)
    (tmp_path / "plain").mkdir()
    plain, _ = observe(text_bundle, write_observed(tmp_path / "plain", text_bundle, Dialect.FUSED), packs)
    places = model_places(text_bundle.manifest.architecture)
    rng = np.random.default_rng(1)
    scales = {p.name: rng.uniform(0.5, 4, p.channels).astype(np.float32) for p in places[:2]}
    smoothed, _ = observe(text_bundle, write_observed(tmp_path, text_bundle, Dialect.FUSED, scales), packs)
    for place in places:
        divisor = scales.get(place.name, np.float32(1))
        np.testing.assert_allclose(smoothed[place.name].maxima, plain[place.name].maxima / divisor, rtol=1e-6)


def test_only_the_places_of_the_collector_are_observed(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, pictures: list[ImagePart], tmp_path: Path
) -> None:
    """The vision encoder's graph is then the bundle's own, which takes no probe."""
    files = write_observed(tmp_path, vl_bundle, Dialect.FUSED)
    files[1] = vl_bundle.folder / (vl_bundle.graph(Dialect.FUSED, Precision.FP32).vision or "")
    places = [p for p in model_places(vl_bundle.manifest.architecture) if not p.vision]
    ranges, _ = observe(vl_bundle, files, packs_of(vl_encoder, pictures, 2), places=places)
    assert list(ranges) == [place.name for place in places]


def test_a_set_without_pictures_leaves_the_vision_encoder_unseen(
    vl_bundle: Bundle, vl_encoder: PromptEncoder, tmp_path: Path
) -> None:
    files = write_observed(tmp_path, vl_bundle, Dialect.FUSED)
    with pytest.raises(CalibrationError, match="never reached") as caught:
        observe(vl_bundle, files, packs_of(vl_encoder, [], 1))
    assert caught.value.item == "patches"


def test_another_probe_beside_its_own_is_a_bug(text_bundle: Bundle, tmp_path: Path) -> None:
    (file,) = write_observed(tmp_path, text_bundle, Dialect.FUSED)
    collector = RangeCollector(model_places(text_bundle.manifest.architecture))
    engine = ObservingEngine(observed_engine(text_bundle, [file]), collector)
    assert engine.info.name == "onnxruntime-cpu"

    class Arrays:
        ids = document_id = np.zeros(1, np.int32)

    with pytest.raises(InternalError, match="no other probe"):
        engine.run(Arrays(), Probe())
    engine.close()
