"""INT8 bundles made the plain way: steps from the largest activations seen, nothing smoothed, every decoder place INT8.

They are what the pipeline's bundles are to a loader, and made in a fraction of the time.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engines.running import make_encoder
from evaluation.scored import reference, with_noise
from orin_rerank.engines.bundle import (
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    Bundle,
    FileEntry,
    Manifest,
    hash_file,
    write_manifest,
)
from orin_rerank.engines.graph_files import model_weights, write_graph_pair
from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.engines.port import Probe
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.evaluation.paired import compare
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.places import Place, model_places
from orin_rerank.graph.probes import ObservedForm
from orin_rerank.graph.scheme import Mode, PlaceScheme, Scheme
from orin_rerank.graph.text import embedding_name
from orin_rerank.lifecycle.model import LoadedModel
from orin_rerank.lifecycle.precision import PLAN_GATE_FILE, subject_of
from orin_rerank.lifecycle.runners import build_runner
from orin_rerank.lifecycle.self_test import record_golden_pairs
from orin_rerank.lifecycle.sizes import GraphFiles, processor_plan
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.quantization.gate import GATE_FILE, GateRecord, GateSubject, GateThresholds, engine_digest
from orin_rerank.quantization.write import write_graphs, write_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orin_rerank.engines.plans import PlanSet
    from orin_rerank.engines.port import Engine
    from orin_rerank.prompt.content import RerankInput

SETTINGS = EngineSettings(threads=1, token_budget=256, prefix_cache_bytes=0)


def model_of(
    bundle: Bundle,
    files: GraphFiles,
    settings: EngineSettings = SETTINGS,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
) -> LoadedModel:
    """A model over any graphs, without the checks of `load_model`."""
    manifest = bundle.manifest
    encoder = make_encoder(bundle)
    memory = processor_plan(bundle, encoder, Precision.FP32, read_host_memory(), settings)
    runner = build_runner(files, memory, settings, wrap=wrap)
    budget = TokenBudget.fixed(settings.token_budget or 256)
    return LoadedModel(manifest.name, bundle.digest, manifest.prompt, encoder, runner, budget, "made by hand")


class PeakEngine:
    """Runs an observed graph and remembers the largest magnitude at each place."""

    def __init__(self, engine: Engine, places: list[Place]) -> None:
        self._engine = engine
        self._places = places
        self.peaks = {place.name: 0.0 for place in places}

    def run(self, arrays, probe=None):
        probe = Probe({"sample": np.zeros(1, np.int32)}, ("maxima",))
        self._engine.run(arrays, probe)
        begin = 0
        for place in self._places:
            peak = float(probe.results["maxima"][begin : begin + place.channels].max())
            self.peaks[place.name] = max(self.peaks[place.name], peak)
            begin += place.channels

    def __getattr__(self, name: str):
        return getattr(self._engine, name)


def plain_scheme(bundle: Bundle, requests: Iterable[RerankInput]) -> Scheme:
    """Every place of the decoder INT8, clipped at the largest value seen; the vision encoder in full precision."""
    places = model_places(bundle.manifest.architecture)
    text = [place for place in places if not place.vision]
    architecture = bundle.manifest.architecture
    kind = Checkpoint.open(bundle.folder).entry(embedding_name(vl=architecture.vision is not None)).dtype
    made: list[PeakEngine] = []
    with tempfile.TemporaryDirectory() as folder:
        entry = write_graph_pair(
            Path(folder),
            architecture,
            model_weights(architecture, kind),
            Dialect.FUSED,
            Precision.FP32,
            text_form=ObservedForm(text),
        )
        vision = None if entry.vision is None else Path(folder) / entry.vision
        files = GraphFiles(Path(folder) / entry.text, vision, "observed", bundle.folder)
        model = model_of(bundle, files, wrap=lambda engine: made.append(PeakEngine(engine, text)) or made[0])
        for request in requests:
            model.rerank(request)
        model.close()
    schemes = {place.name: PlaceScheme(Mode.WIDE) for place in places}
    schemes |= {name: PlaceScheme(Mode.INT8, peak / 127) for name, peak in made[0].peaks.items()}
    return Scheme(schemes, embedding=True)


def write_int8_bundle(bundle: Bundle, out: Path, requests: Iterable[RerankInput]) -> Bundle:
    """Derives an INT8 bundle, golden pairs with its own margins included; its gate is for `add_gate`.

    Args:
        bundle: The full-precision bundle.
        out: The folder, made if missing.
        requests: What to take ranges from.
    """
    out.mkdir(parents=True, exist_ok=True)
    architecture = bundle.manifest.architecture
    scheme = plain_scheme(bundle, requests)
    weights = write_weights(Checkpoint.open(bundle.folder), architecture, scheme, out)
    graphs = write_graphs(out, architecture, weights, scheme)
    names = [WEIGHTS_FILE, "config.json", TOKENIZER_FILE]
    for name in names[1:]:
        shutil.copyfile(bundle.folder / name, out / name)
    names += [name for graph in graphs for name in (graph.text, graph.vision) if name is not None]
    graph = next(g for g in graphs if (g.dialect, g.precision) == (Dialect.FUSED, Precision.INT8))
    files = GraphFiles(out / graph.text, None if graph.vision is None else out / graph.vision, "int8")
    model = model_of(bundle, files)
    names += record_golden_pairs(bundle, out, lambda request: model.rerank(request).margins)
    model.close()
    manifest = dataclasses.replace(bundle.manifest, graphs=tuple(graphs), source=bundle.digest)
    return seal(out, manifest, names)


def seal(folder: Path, manifest: Manifest, names: Iterable[str]) -> Bundle:
    """Writes a manifest over files as they are now."""
    files = {name: FileEntry(hash_file(folder / name), (folder / name).stat().st_size, "Apache-2.0") for name in names}
    write_manifest(folder, dataclasses.replace(manifest, files=files))
    return Bundle.open(folder)


def add_gate(bundle: Bundle, noise: float = 0.1) -> Bundle:
    """Adds a gate's record with figures that noise of this size on the margins gives; up to 0.1 it passes."""
    manifest = bundle.manifest
    assert manifest.source is not None
    path = bundle.folder / GATE_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(noisy_record(GateSubject(manifest.source, engine_digest(manifest.files)), noise).to_json())
    return seal(bundle.folder, manifest, {*manifest.files, GATE_FILE})


def add_plan_gate(plans: PlanSet, source: str, noise: float = 0.1) -> None:
    """The same for a set of INT8 plans."""
    record = noisy_record(subject_of(plans.manifest, source), noise)
    (plans.folder / PLAN_GATE_FILE).write_text(record.to_json())


def noisy_record(subject: GateSubject, noise: float) -> GateRecord:
    """A gate's record with figures that noise of this size on the margins gives."""
    return GateRecord(subject, "d" * 64, GateThresholds(), compare(reference(), with_noise(reference(), noise)))
