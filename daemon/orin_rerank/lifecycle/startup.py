"""From a bundle on disk to a model that is ready to serve."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import TOKENIZER_FILE, Bundle
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.runner import Runner
from orin_rerank.engines.settings import DeviceChoice, PrecisionChoice
from orin_rerank.engines.store import EngineStore, default_state_folder
from orin_rerank.errors import (
    BundleError,
    DeviceLostError,
    EngineError,
    GpuMissingError,
    RefusedPrecisionError,
    StoreError,
    TensorRtMissingError,
)
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.lifecycle.accelerators import Accelerators, installed_plans, onnxruntime_engine, tensorrt_engine
from orin_rerank.lifecycle.model import LoadedModel
from orin_rerank.lifecycle.pack_timing import measure_budget
from orin_rerank.lifecycle.precision import HOW_TO_GET_INT8, find_int8, passed_reason, read_plan_gate
from orin_rerank.lifecycle.self_test import HALF_TOLERANCE, TOLERANCE, read_golden_pairs, self_test
from orin_rerank.lifecycle.sizes import LADDER, VISION_PATCHES, GraphFiles, capacity_of
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.engines.plans import PlanSet
    from orin_rerank.engines.pool import PackCapacity
    from orin_rerank.engines.port import Engine
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.lifecycle.compile_target import CompileTarget
    from orin_rerank.lifecycle.precision import TrustedInt8
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["LADDER", "VISION_PATCHES", "GraphFiles", "build_runner", "capacity_of", "load_model", "measure_budget"]

_log = logging.getLogger(__name__)

_REFUSED: Final = "an INT8 engine is installed, but refused"

_ASKED: Final = {DeviceChoice.CPU: "the processor was asked for", DeviceChoice.CUDA: "a GPU was asked for"}


def load_model(
    folder: Path,
    settings: EngineSettings,
    report: Callable[[str], None] = lambda _: None,
    *,
    store: EngineStore | None = None,
    accelerators: Accelerators | None = None,
) -> LoadedModel:
    """Verifies a bundle, builds its engine, measures the token budget and runs the self-test.

    ::

        TensorRT, from plans for this machine   in INT8, else float16
        ONNX Runtime on a GPU                   in float16
        ONNX Runtime on the processor           in INT8, else float32

    The first that can be had, that the settings allow, and that reproduces its golden pairs is it. INT8 is an engine
    that is installed for the bundle and can be trusted (`lifecycle.precision`). The model and the journal say why it is
    none of those above. A GPU that is lost meanwhile ends it all.

    Args:
        folder: The full-precision bundle's.
        settings: The engine's.
        report: Told what is being done.
        store: Where INT8 engines and plans are installed; None means in this user's own place.
        accelerators: What computes beside the processor; None means what this machine has.

    Raises:
        BundleError: If the bundle is missing, altered, malformed or an INT8 one itself.
        RefusedPrecisionError: If INT8 was asked for and there is none that can be trusted.
        GpuMissingError: If a GPU was asked for, and none of its engines can be had.
        SelfTestError: If the engine does not reproduce the bundle's golden pairs.
        EngineError: If the engine fails.
        DeviceLostError: If the GPU is lost; only another process can use it.
    """
    bundle = Bundle.open(folder)
    if bundle.manifest.source is not None:
        raise BundleError(
            "is an INT8 engine; name the bundle that it was made from, and it is found where it was installed",
            item=str(folder),
        )
    return _Startup(bundle, settings, report, store, accelerators or Accelerators()).load()


class _Startup:
    """Goes down the ladder of engines until one serves."""

    def __init__(
        self,
        bundle: Bundle,
        settings: EngineSettings,
        report: Callable[[str], None],
        store: EngineStore | None,
        accelerators: Accelerators,
    ) -> None:
        self._bundle = bundle
        self._settings = settings
        self._report = report
        self._store = store
        self._accelerators = accelerators
        self._int8: TrustedInt8 | None = None
        self._not_int8 = "full precision was asked for"
        self._int8_on_gpu = ""
        self._verified = False
        self._problems: list[str] = []

    def load(self) -> LoadedModel:
        """Finds INT8, tries the GPU, then the processor."""
        choice = self._settings
        if choice.precision is not PrecisionChoice.FULL:
            self._find_int8()
        if choice.device is not DeviceChoice.CPU and (model := self._on_gpu()) is not None:
            return model
        if choice.device is DeviceChoice.CUDA:
            raise GpuMissingError(f"a GPU was asked for, and none can be used: {self._skipped}")
        return self._on_processor()

    @property
    def _skipped(self) -> str:
        """Why the engines before were not taken."""
        return "; ".join(self._problems)

    def _engines(self) -> EngineStore:
        """Where engines are installed; a machine without such a place is a problem only for who looks there."""
        return self._store or EngineStore(default_state_folder())

    def _find_int8(self) -> None:
        refused: Exception | None = None
        self._not_int8 = f"no INT8 engine is installed for this bundle; {HOW_TO_GET_INT8}"
        try:
            self._int8 = find_int8(self._bundle, self._engines(), self._report)
        except StoreError as error:
            self._not_int8, refused = f"INT8 engines cannot be looked for: {error}", error
        except (BundleError, EngineError) as error:
            self._not_int8, refused = f"{_REFUSED}: {error}", error
        if self._int8 is None:
            self._without_int8(refused)

    def _without_int8(self, refused: Exception | None) -> None:
        """Makes sure that INT8 may be left out, and says so where something is wrong with it."""
        if self._settings.precision is PrecisionChoice.INT8:
            how = f"; {HOW_TO_GET_INT8}" if isinstance(refused, (BundleError, EngineError)) else ""
            raise RefusedPrecisionError(f"{self._not_int8}{how}") from refused
        if isinstance(refused, StoreError):
            _log.warning("serving full precision", extra=fields(reason=self._not_int8))
        elif refused is not None:
            _log.warning("serving full precision though INT8 is installed", extra=fields(reason=self._not_int8))

    def _on_gpu(self) -> LoadedModel | None:
        """The best engine on a GPU, None if there is none."""
        int8, full = self._int8, self._bundle
        if int8 is not None:
            tolerance = max(HALF_TOLERANCE, int8.tolerance)
            model = self._try("TensorRT", int8.bundle, Precision.INT8_FP16, lambda: self._int8_on_gpu, tolerance)
            if model is not None or self._settings.precision is PrecisionChoice.INT8:
                return model
        reason = (
            self._not_int8 if int8 is None else f"an INT8 engine is installed, but not on this GPU: {self._skipped}"
        )
        return self._try("TensorRT", full, Precision.FP16, lambda: reason, HALF_TOLERANCE) or self._try(
            "ONNX Runtime", full, Precision.FP16, lambda: reason, HALF_TOLERANCE
        )

    def _try(
        self, where: str, bundle: Bundle, precision: Precision, reason: Callable[[], str], tolerance: float
    ) -> LoadedModel | None:
        """An engine on a GPU; None where it cannot be had, and the reason is kept and said."""
        settings, machine, find = self._settings, self._accelerators, self._plans

        def build(longest_pair: int) -> tuple[Engine, PackCapacity]:
            if where == "TensorRT":
                return tensorrt_engine(
                    bundle, precision, settings, longest_pair, lambda target: find(bundle, precision, target), machine
                )
            return onnxruntime_engine(bundle, precision, settings, longest_pair, machine)

        try:
            return self._load(bundle, build, reason, tolerance)
        except DeviceLostError:
            raise  # in this process nothing of it can be used any more, nor is it known what went wrong before
        except (BundleError, StoreError, EngineError) as error:
            # Not the error itself: its traceback would keep what it took to make the engine.
            self._problems.append(f"{where} ({precision.value}): {error}")
            absent = isinstance(error, (TensorRtMissingError, GpuMissingError))
            _log.log(
                logging.INFO if absent else logging.WARNING,
                "an engine on the GPU cannot be had",
                extra=fields(engine=where, precision=precision.value, reason=str(error)),
            )
            return None

    def _plans(self, bundle: Bundle, precision: Precision, target: CompileTarget) -> PlanSet:
        """The plans for this machine; of INT8, only ones that passed a gate of their own on it."""
        plans = installed_plans(bundle, precision, self._settings, target, PlanStore(self._engines().root))
        if bundle.manifest.source is not None:
            self._int8_on_gpu = passed_reason(read_plan_gate(plans, bundle.manifest.source), "on this GPU")
        return plans

    def _on_processor(self) -> LoadedModel:
        int8 = self._int8
        if int8 is not None:
            try:
                return self._load(
                    int8.bundle,
                    self._processor(int8.bundle, Precision.INT8),
                    lambda: int8.reason,
                    int8.tolerance,
                )
            except (BundleError, StoreError, EngineError) as error:
                self._not_int8 = f"{_REFUSED}: {error}"
                self._without_int8(error)
        processor = self._processor(self._bundle, Precision.FP32)
        return self._load(self._bundle, processor, lambda: self._not_int8, TOLERANCE)

    def _processor(self, bundle: Bundle, precision: Precision) -> Callable[[int], tuple[Engine, PackCapacity]]:
        def build(longest_pair: int) -> tuple[Engine, PackCapacity]:
            settings, manifest = self._settings, bundle.manifest
            capacity = capacity_of(manifest.architecture, settings, longest_pair)
            graphs = GraphFiles.of_bundle(bundle, settings.dialect or Dialect.FUSED, precision)
            return processor_engine(manifest.prompt.image, graphs, capacity, settings), capacity

        return build

    def _load(
        self,
        bundle: Bundle,
        build: Callable[[int], tuple[Engine, PackCapacity]],
        reason: Callable[[], str],
        tolerance: float,
    ) -> LoadedModel:
        """Loads a bundle with the engine that `build` makes, given the longest query with one document in tokens.

        Why it is served in this precision is asked once there is an engine.
        """
        if bundle is self._bundle and not self._verified:
            bundle.verify(self._report)
            self._verified = True
        manifest, settings = bundle.manifest, self._settings
        self._report("building the engine")
        encoder = PromptEncoder(manifest.prompt, PromptTokenizer.from_file(bundle.folder / TOKENIZER_FILE))
        engine, capacity = build(encoder.longest_pair)
        runner = runner_over(engine, manifest.architecture, capacity, settings)
        model: LoadedModel | None = None
        try:
            if settings.token_budget is not None:
                budget = TokenBudget.fixed(settings.token_budget)
            else:
                self._report("measuring how long packs should be")
                budget = measure_budget(runner, manifest.architecture)
            model = LoadedModel(
                manifest.name,
                bundle.digest,
                manifest.prompt,
                encoder,
                runner,
                budget,
                reason(),
                manifest.source,
                engine_reason=self._skipped or _ASKED.get(settings.device, "plans for this machine are installed"),
            )
            self._report("comparing golden pairs")
            self_test(model, read_golden_pairs(bundle), tolerance)
        except BaseException:
            (model or runner).close()
            raise
        return model


def build_runner(
    architecture: Architecture,
    image: ImageProfile | None,
    graphs: GraphFiles,
    capacity: PackCapacity,
    settings: EngineSettings,
    *,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
) -> Runner:
    """Builds an engine on the processor over two graphs, and what feeds it packs.

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
    return runner_over(wrap(processor_engine(image, graphs, capacity, settings)), architecture, capacity, settings)


def processor_engine(
    image: ImageProfile | None, graphs: GraphFiles, capacity: PackCapacity, settings: EngineSettings
) -> OnnxRuntimeEngine:
    """Builds an engine on the processor; `build_runner` explains the arguments.

    Raises:
        BundleError: If it does not take a graph.
    """
    return OnnxRuntimeEngine(
        graphs.text,
        graphs.vision,
        image,
        capacity,
        threads=settings.effective_threads,
        precision=graphs.precision,
        pool_timeout_s=settings.pool_timeout_s,
        weights=graphs.weights,
    )


def runner_over(engine: Engine, architecture: Architecture, capacity: PackCapacity, settings: EngineSettings) -> Runner:
    """What feeds packs to an engine, which it owns from then on; `build_runner` explains the arguments."""
    text = architecture.text
    return Runner(
        engine,
        # No position is past the end of the longest sequence.
        RotaryTable(text.head_dim, text.rope_theta, text.mrope_section, capacity.tokens),
        feature_bytes=64 << 20 if settings.feature_cache_bytes is None else settings.feature_cache_bytes,
        prefix_bytes=64 << 20 if settings.prefix_cache_bytes is None else settings.prefix_cache_bytes,
        vision_patches=VISION_PATCHES,
    )
