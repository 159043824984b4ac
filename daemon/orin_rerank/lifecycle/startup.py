"""From a bundle on disk to a model that is ready to serve."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.engines.bundle import TOKENIZER_FILE, Bundle
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.runner import Runner
from orin_rerank.engines.settings import PrecisionChoice
from orin_rerank.engines.store import EngineStore, default_state_folder
from orin_rerank.errors import BundleError, EngineError, RefusedPrecisionError, StoreError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.lifecycle.model import LoadedModel
from orin_rerank.lifecycle.precision import HOW_TO_GET_INT8, find_int8
from orin_rerank.lifecycle.self_test import TOLERANCE, read_golden_pairs, self_test
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.packing.pack import Pack, PackGroup
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.prompt.encoded import EncodedSegment
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.engines.port import Engine
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.lifecycle.precision import TrustedInt8
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["LADDER", "VISION_PATCHES", "GraphFiles", "build_runner", "capacity_of", "load_model", "measure_budget"]

_log = logging.getLogger(__name__)

LADDER: Final = (64, 128, 192, 256, 384, 512, 768, 1024)
"""Pack lengths that are tried."""

_GIVE_UP: Final = 0.93
"""Longer packs are not tried once two in a row reach only this share of the best: from there throughput falls."""

_REPEATS: Final = 3
_DOCUMENT_TOKENS: Final = 64
_MAX_DOCUMENTS: Final = 256
VISION_PATCHES: Final = 1024
"""Most patches of one run of the vision encoder, unless a single image has more."""


@dataclass(frozen=True, slots=True)
class GraphFiles:
    """What an engine runs.

    Attributes:
        text: The decoder graph.
        vision: The vision encoder graph, None for a text-only model.
        precision: What they compute in, for people, such as `fp32`.
        weights: Folder of the weight file, where it does not lie beside the graphs.
    """

    text: Path
    vision: Path | None
    precision: str
    weights: Path | None = None

    @classmethod
    def of_bundle(cls, bundle: Bundle, dialect: Dialect, precision: Precision) -> GraphFiles:
        """A pair of a bundle's own graphs.

        Raises:
            BundleError: If the bundle has none such.
        """
        graph = bundle.graph(dialect, precision)
        vision = None if graph.vision is None else bundle.folder / graph.vision
        return cls(bundle.folder / graph.text, vision, graph.precision.value)


def load_model(
    folder: Path,
    settings: EngineSettings,
    report: Callable[[str], None] = lambda _: None,
    *,
    store: EngineStore | None = None,
) -> LoadedModel:
    """Verifies a bundle, builds its engine, measures the token budget and runs the self-test.

    An INT8 engine that is installed for the bundle takes its place where the settings leave the choice, if it can be
    trusted (`lifecycle.precision`) and passes its self-test; the model and the journal say so where it does not.

    Args:
        folder: The full-precision bundle's.
        settings: The engine's.
        report: Told what is being done.
        store: Where INT8 engines are installed; None means in this user's own place.

    Raises:
        BundleError: If the bundle is missing, altered, malformed or an INT8 one itself.
        RefusedPrecisionError: If INT8 was asked for and there is none that can be trusted.
        SelfTestError: If the engine does not reproduce the bundle's golden pairs.
        EngineError: If the engine fails.
    """
    bundle = Bundle.open(folder)
    if bundle.manifest.source is not None:
        raise BundleError(
            "is an INT8 engine; name the bundle that it was made from, and it is found where it was installed",
            item=str(folder),
        )
    if settings.precision is PrecisionChoice.FULL:
        return _load_full(bundle, settings, report, "full precision was asked for")
    reason, refused = f"no INT8 engine is installed for this bundle; {HOW_TO_GET_INT8}", None
    try:
        engine = find_int8(bundle, store or EngineStore(default_state_folder()), report)
        if engine is not None:
            return _load_int8(engine, settings, report)
    except (BundleError, StoreError, EngineError) as error:
        reason, refused = f"an INT8 engine is installed, but refused: {error}", error
    if settings.precision is PrecisionChoice.INT8:
        raise RefusedPrecisionError(f"{reason}; {HOW_TO_GET_INT8}" if refused else reason) from refused
    if refused:
        _log.warning("serving full precision though INT8 is installed", extra=fields(reason=reason))
    return _load_full(bundle, settings, report, reason)


def _load_full(bundle: Bundle, settings: EngineSettings, report: Callable[[str], None], reason: str) -> LoadedModel:
    bundle.verify(report)
    return _load(bundle, Precision.FP32, settings, report, reason, TOLERANCE)


def _load_int8(engine: TrustedInt8, settings: EngineSettings, report: Callable[[str], None]) -> LoadedModel:
    return _load(engine.bundle, Precision.INT8, settings, report, engine.reason, engine.tolerance)


def _load(
    bundle: Bundle,
    precision: Precision,
    settings: EngineSettings,
    report: Callable[[str], None],
    reason: str,
    tolerance: float,
) -> LoadedModel:
    """Loads a bundle that has been verified."""
    manifest = bundle.manifest
    report("building the engine")
    encoder = PromptEncoder(manifest.prompt, PromptTokenizer.from_file(bundle.folder / TOKENIZER_FILE))
    capacity = capacity_of(manifest.architecture, settings, encoder.longest_pair)
    graphs = GraphFiles.of_bundle(bundle, settings.dialect or Dialect.FUSED, precision)
    runner = build_runner(manifest.architecture, manifest.prompt.image, graphs, capacity, settings)
    model: LoadedModel | None = None
    try:
        if settings.token_budget is not None:
            budget = TokenBudget.fixed(settings.token_budget)
        else:
            report("measuring how long packs should be")
            budget = measure_budget(runner, manifest.architecture)
        model = LoadedModel(
            manifest.name, bundle.digest, manifest.prompt, encoder, runner, budget, reason, manifest.source
        )
        report("comparing golden pairs")
        self_test(model, read_golden_pairs(bundle), tolerance)
    except BaseException:
        (model or runner).close()
        raise
    return model


def measure_budget(runner: Runner, architecture: Architecture) -> TokenBudget:
    """Times packs of each length on the ladder, as many side by side as the engine runs.

    The packs' prefix is known after the first, as it is when a request has many documents.
    """
    rng = np.random.default_rng(0)

    def segment(tokens: int, start: int) -> EncodedSegment:
        ids = rng.integers(0, architecture.text.vocabulary, tokens, dtype=np.int32)
        positions = np.tile(np.arange(start, start + tokens, dtype=np.int32), (3, 1))
        return EncodedSegment(ids, positions, np.full(tokens, -1, np.int32), (), tokens, 0)

    prefix = segment(_DOCUMENT_TOKENS, 0)

    def pack(tokens: int) -> Pack:
        documents = tuple(segment(_DOCUMENT_TOKENS, len(prefix)) for _ in range(tokens // _DOCUMENT_TOKENS))
        return Pack((PackGroup(prefix, documents),), tuple(range(len(documents))), tokens)

    runner.run(pack(LADDER[0]))
    samples = []
    slots = runner.info.slots
    with ThreadPoolExecutor(slots) as threads:
        for tokens in LADDER:
            if tokens > runner.info.max_tokens:
                break
            batch = [pack(tokens) for _ in range(slots)]
            times = []
            for _ in range(_REPEATS):
                started = time.perf_counter()
                list(threads.map(runner.run, batch))
                times.append(time.perf_counter() - started)
            # The least time: whatever else the machine does can only lengthen one.
            samples.append((tokens, min(times)))
            rates = [length / seconds for length, seconds in samples]
            if len(rates) > 2 and max(rates[-2:]) < _GIVE_UP * max(rates):
                break
    return TokenBudget.measured(samples)


def capacity_of(architecture: Architecture, settings: EngineSettings, longest_pair: int) -> PackCapacity:
    """How large an engine's buffers must be to serve a model.

    Args:
        architecture: The model's.
        settings: The engine's.
        longest_pair: Most tokens of a query with one document.
    """
    # A pack within the budget and one more prefix than planned, or a single document at the limit. Planning counts the
    # known prefixes of a pack as free; a pack that has more of them than fits is run in parts.
    # measure_budget needs room for two segments of its own, however short the model's prompts are.
    tokens = (settings.token_budget or LADDER[-1]) + max(longest_pair, 2 * _DOCUMENT_TOKENS)
    return PackCapacity.of_model(architecture, tokens=tokens, documents=_MAX_DOCUMENTS)


def build_runner(
    architecture: Architecture,
    image: ImageProfile | None,
    graphs: GraphFiles,
    capacity: PackCapacity,
    settings: EngineSettings,
    *,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
) -> Runner:
    """Builds an engine over two graphs, and what feeds it packs.

    Args:
        architecture: The model's.
        image: How it takes images, None for a text-only model.
        graphs: What to run.
        capacity: Of each of the engine's buffers; a query with one document must fit.
        settings: Threads, memory for caches, and how long to wait for a buffer.
        wrap: Put between the runner and the engine, by what wants to see or to steer its runs.

    Raises:
        BundleError: If the engine does not take a graph.
    """
    text = architecture.text
    engine = OnnxRuntimeEngine(
        graphs.text,
        graphs.vision,
        image,
        capacity,
        threads=settings.effective_threads,
        precision=graphs.precision,
        pool_timeout_s=settings.pool_timeout_s,
        weights=graphs.weights,
    )
    return Runner(
        wrap(engine),
        # No position is past the end of the longest sequence.
        RotaryTable(text.head_dim, text.rope_theta, text.mrope_section, capacity.tokens),
        feature_bytes=settings.feature_cache_bytes,
        prefix_bytes=settings.prefix_cache_bytes,
        vision_patches=VISION_PATCHES,
    )
