"""A full-precision bundle and the engines that its quantisation needs: observed, switched, full and INT8.

Every engine computes packs of one fixed length and remembers no prefix, so that the same data always goes through in
the same packs, and every token of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.engines.bundle import TOKENIZER_FILE, Bundle
from orin_rerank.engines.graph_files import model_weights, write_graph_pair
from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.errors import CheckpointError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.places import Place, model_places
from orin_rerank.graph.probes import ObservedForm, SwitchedForm
from orin_rerank.graph.scheme import Mode
from orin_rerank.graph.text import embedding_name
from orin_rerank.graph.weights import checkpoint_pieces
from orin_rerank.lifecycle.runners import build_runner
from orin_rerank.lifecycle.sizes import GraphFiles, processor_plan
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer
from orin_rerank.quantization.observe import ObservingEngine
from orin_rerank.quantization.sensitivity import SwitchingEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import TypeAlias

    import numpy.typing as npt

    from orin_rerank.engines.port import Engine
    from orin_rerank.engines.runner import Runner
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.graph.product import ProductForm
    from orin_rerank.graph.scheme import Scheme
    from orin_rerank.graph.weights import WeightFile
    from orin_rerank.quantization.ranges import RangeCollector

    _Wrap: TypeAlias = Callable[[Engine], Engine]

__all__ = ["PACK_TOKENS", "Workbench"]

PACK_TOKENS: Final = 512
"""Length of packs: near the best on processors, and long enough for any device."""


@dataclass(slots=True)
class Workbench:
    """What is quantised, and where its probing graphs are put.

    Attributes:
        bundle: The full-precision bundle.
        scratch: A folder that exists and is removed by the caller.
        settings: Of the engines.
    """

    bundle: Bundle
    scratch: Path
    settings: EngineSettings
    encoder: PromptEncoder = field(init=False)
    checkpoint: Checkpoint = field(init=False)
    budget: TokenBudget = field(init=False)
    places: tuple[Place, ...] = field(init=False)

    def __post_init__(self) -> None:
        manifest = self.bundle.manifest
        tokenizer = PromptTokenizer.from_file(self.bundle.folder / TOKENIZER_FILE)
        self.encoder = PromptEncoder(manifest.prompt, tokenizer)
        self.checkpoint = Checkpoint.open(self.bundle.folder)
        self.budget = TokenBudget.fixed(PACK_TOKENS)
        self.places = tuple(model_places(manifest.architecture))
        self.settings = dataclasses.replace(self.settings, token_budget=PACK_TOKENS, prefix_cache_bytes=0)

    @property
    def text_places(self) -> list[Place]:
        """The decoder's places."""
        return [place for place in self.places if not place.vision]

    @property
    def vision_places(self) -> list[Place]:
        """The vision encoder's places."""
        return [place for place in self.places if place.vision]

    def check_weights(self) -> None:
        """Reads every weight once.

        Raises:
            CheckpointError: If one is NaN or infinite; the item names its tensor.
        """
        for name, entry in self.checkpoint.entries.items():
            for piece in checkpoint_pieces(self.checkpoint, name, entry.shape):
                if not np.isfinite(piece).all():
                    raise CheckpointError("holds values that are NaN or infinite", item=name)

    def full(self) -> Runner:
        """An engine over the bundle's own graphs."""
        return self._runner(GraphFiles.of_bundle(self.bundle, Dialect.FUSED, Precision.FP32))

    def quantized(self, bundle: Bundle) -> Runner:
        """An engine over a derived bundle's INT8 graphs."""
        return self._runner(GraphFiles.of_bundle(bundle, Dialect.FUSED, Precision.INT8))

    def observed(
        self, collector: RangeCollector, smoothing: Mapping[str, npt.NDArray[np.float32]] | None = None
    ) -> tuple[Runner, str]:
        """An engine that tells a collector what the activations are like, and the SHA-256 of what it runs.

        Args:
            collector: Whose places are observed.
            smoothing: float32 `[channels]` of places: what their activations are divided by first.
        """
        text, vision = (
            ObservedForm(places, smoothing or {}) if places else None
            for places in ([p for p in collector.places if p.vision is of_vision] for of_vision in (False, True))
        )
        return self._probing("observed", text, vision, lambda engine: ObservingEngine(engine, collector))

    def switched(self, scheme: Scheme, steps: Mapping[str, npt.NDArray[np.float32]]) -> tuple[Runner, SwitchingEngine]:
        """An engine in which every INT8 place of a scheme can be switched.

        Args:
            scheme: Steps and smoothing.
            steps: For each weight's name float32 `[out]`: the steps of its smoothed rows.
        """
        text, vision = (
            [p for p in places if scheme.places[p.name].mode is Mode.INT8]
            for places in (self.text_places, self.vision_places)
        )
        made: list[SwitchingEngine] = []

        def wrap(engine: Engine) -> Engine:
            made.append(SwitchingEngine(engine, text, vision))
            return made[0]

        forms = [SwitchedForm(places, scheme, steps) if places else None for places in (text, vision)]
        # Features are another matter when the vision encoder is switched, and may not be remembered then.
        runner, _ = self._probing("switched", forms[0], forms[1], wrap, remember_images=not vision)
        return runner, made[0]

    def _probing(
        self,
        name: str,
        text: ProductForm | None,
        vision: ProductForm | None,
        wrap: _Wrap,
        *,
        remember_images: bool = True,
    ) -> tuple[Runner, str]:
        folder = self.scratch / name
        folder.mkdir(exist_ok=True)
        entry = write_graph_pair(
            folder,
            self.bundle.manifest.architecture,
            self._layout(),
            Dialect.FUSED,
            Precision.FP32,
            text_form=text,
            vision_form=vision,
        )
        files = GraphFiles(
            folder / entry.text, folder / entry.vision if entry.vision else None, name, self.bundle.folder
        )
        settings = self.settings
        if not remember_images:
            settings = dataclasses.replace(settings, feature_cache_bytes=0)
        digest = hashlib.sha256(b"".join(p.read_bytes() for p in (files.text, files.vision) if p is not None))
        return self._runner(files, settings, wrap), digest.hexdigest()

    def _layout(self) -> WeightFile:
        """Where the bundle's own tensors lie."""
        architecture = self.bundle.manifest.architecture
        embedding = embedding_name(vl=architecture.vision is not None)
        return model_weights(architecture, self.checkpoint.entry(embedding).dtype)

    def _runner(self, files: GraphFiles, settings: EngineSettings | None = None, wrap: _Wrap | None = None) -> Runner:
        settings = settings or self.settings
        memory = processor_plan(self.bundle, self.encoder, Precision.FP32, read_host_memory(), settings)
        return build_runner(files, memory, settings, wrap=wrap or (lambda engine: engine))
