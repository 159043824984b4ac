"""From a bundle on disk to a model that is ready to serve."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import TOKENIZER_FILE, Bundle
from orin_rerank.engines.plan_store import PlanStore
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
from orin_rerank.lifecycle.rungs import Rung, try_any
from orin_rerank.lifecycle.runners import processor_engine, runner_over
from orin_rerank.lifecycle.self_test import (
    HALF_TOLERANCE,
    TOLERANCE,
    read_golden_pairs,
    self_test,
    unchanged_pairs,
    with_margins,
)
from orin_rerank.lifecycle.sizes import GraphFiles, limited_prompt, processor_plan
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.engines.memory_plan import MemoryPlan
    from orin_rerank.engines.plans import PlanSet
    from orin_rerank.engines.port import Engine
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.lifecycle.compile_target import CompileTarget
    from orin_rerank.lifecycle.precision import TrustedInt8
    from orin_rerank.lifecycle.rungs import Try
    from orin_rerank.quantization.gate import GateRecord

__all__ = ["load_model"]

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
    attempt: Try = try_any,
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
        attempt: Lends the context in which each engine is tried; may have it left out.

    Raises:
        BundleError: If the bundle is missing, altered, malformed or an INT8 one itself.
        RefusedPrecisionError: If INT8 was asked for and there is none that can be trusted.
        GpuMissingError: If a GPU was asked for, and none of its engines can be had.
        MemoryShortError: If the model does not fit on this machine, or not enough memory is free.
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
    return _Startup(bundle, settings, report, store, accelerators or Accelerators(), attempt).load()


@dataclass(frozen=True, slots=True)
class _Terms:
    """On what terms a model is served.

    Attributes:
        reason: Why it is computed in this precision and in no other.
        tolerance: How far its margins may be from its golden ones.
        golden: Margins of the golden pairs by this very engine; None where the bundle's own are to be met.
    """

    reason: str
    tolerance: float
    golden: tuple[float, ...] | None = None


class _Startup:
    """Goes down the ladder of engines until one serves."""

    def __init__(
        self,
        bundle: Bundle,
        settings: EngineSettings,
        report: Callable[[str], None],
        store: EngineStore | None,
        accelerators: Accelerators,
        attempt: Try,
    ) -> None:
        self._bundle = bundle
        self._settings = settings
        self._report = report
        self._store = store
        self._accelerators = accelerators
        self._attempt = attempt
        self._int8: TrustedInt8 | None = None
        self._not_int8 = "full precision was asked for"
        self._gate_of_plans: GateRecord | None = None
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

    @property
    def _why_this_engine(self) -> str:
        return self._skipped or _ASKED.get(self._settings.device, "plans for this machine are installed")

    def _engines(self) -> EngineStore:
        """Where engines are installed; a machine without such a place is a problem only for who looks there."""
        return self._store or EngineStore(default_state_folder())

    def _find_int8(self) -> None:
        refused: Exception | None = None
        self._not_int8 = f"no INT8 engine is installed for this bundle; {HOW_TO_GET_INT8}"
        try:
            with self._attempt(Rung.INT8_CHECK):
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
            model = self._try(Rung.TENSORRT_INT8, int8.bundle, lambda: self._terms_of_plans(int8))
            if model is not None or self._settings.precision is PrecisionChoice.INT8:
                return model
        reason = (
            self._not_int8 if int8 is None else f"an INT8 engine is installed, but not on this GPU: {self._skipped}"
        )
        terms = _Terms(reason, HALF_TOLERANCE)
        return self._try(Rung.TENSORRT_FULL, full, lambda: terms) or self._try(Rung.GPU_FULL, full, lambda: terms)

    def _terms_of_plans(self, int8: TrustedInt8) -> _Terms:
        """Those of INT8 plans, once `_plans` has found them."""
        gate = self._gate_of_plans
        assert gate is not None
        tolerance = HALF_TOLERANCE if gate.golden is not None else max(HALF_TOLERANCE, int8.tolerance)
        return _Terms(passed_reason(gate, "on this GPU"), tolerance, gate.golden)

    def _try(self, rung: Rung, bundle: Bundle, terms: Callable[[], _Terms]) -> LoadedModel | None:
        """An engine on a GPU; None where it cannot be had, and the reason is kept and said."""
        settings, machine, find, precision = self._settings, self._accelerators, self._plans, rung.precision

        def build(encoder: PromptEncoder) -> tuple[Engine, MemoryPlan]:
            if rung is not Rung.GPU_FULL:
                return tensorrt_engine(
                    bundle,
                    precision,
                    settings,
                    encoder,
                    lambda target, memory: find(bundle, precision, target, memory),
                    machine,
                )
            return onnxruntime_engine(bundle, precision, settings, encoder, machine)

        try:
            with self._attempt(rung):
                return self._load(bundle, build, terms)
        except DeviceLostError:
            raise  # in this process nothing of it can be used any more, nor is it known what went wrong before
        except (BundleError, StoreError, EngineError) as error:
            # Not the error itself: its traceback would keep what it took to make the engine.
            self._problems.append(f"{rung}: {error}")
            absent = isinstance(error, (TensorRtMissingError, GpuMissingError))
            _log.log(
                logging.INFO if absent else logging.WARNING,
                "an engine on the GPU cannot be had",
                extra=fields(engine=rung.engine, precision=precision.value, reason=str(error)),
            )
            return None

    def _plans(self, bundle: Bundle, precision: Precision, target: CompileTarget, memory: MemoryPlan) -> PlanSet:
        """The plans for this machine; of INT8, only ones that passed a gate of their own on it."""
        store = PlanStore(self._engines().root)
        plans = installed_plans(bundle, precision, self._settings, target, store, memory)
        if bundle.manifest.source is not None:
            self._gate_of_plans = read_plan_gate(plans, bundle.manifest.source)
        return plans

    def _on_processor(self) -> LoadedModel:
        int8 = self._int8
        if int8 is not None:
            try:
                processor = self._processor(int8.bundle, Precision.INT8)
                with self._attempt(Rung.PROCESSOR_INT8):
                    return self._load(int8.bundle, processor, lambda: _Terms(int8.reason, int8.tolerance))
            except (BundleError, StoreError, EngineError) as error:
                self._not_int8 = f"{_REFUSED}: {error}"
                self._without_int8(error)
        processor = self._processor(self._bundle, Precision.FP32)
        with self._attempt(Rung.PROCESSOR_FULL):
            return self._load(self._bundle, processor, lambda: _Terms(self._not_int8, TOLERANCE))

    def _processor(self, bundle: Bundle, precision: Precision) -> Callable[[PromptEncoder], tuple[Engine, MemoryPlan]]:
        def build(encoder: PromptEncoder) -> tuple[Engine, MemoryPlan]:
            settings, host = self._settings, self._accelerators.host_memory()
            memory = processor_plan(bundle, encoder, precision, host, settings)
            memory.check_free(host.available_bytes)
            graphs = GraphFiles.of_bundle(bundle, settings.dialect or Dialect.FUSED, precision)
            return processor_engine(graphs, memory, settings), memory

        return build

    def _load(
        self,
        bundle: Bundle,
        build: Callable[[PromptEncoder], tuple[Engine, MemoryPlan]],
        terms: Callable[[], _Terms],
    ) -> LoadedModel:
        """Loads a bundle with the engine that `build` makes, given the prompt path with the model's own limits.

        What memory does not hold is cut where requests are encoded.
        The terms are asked for once there is an engine.
        """
        if bundle is self._bundle and not self._verified:
            bundle.verify(self._report)
            self._verified = True
        manifest, settings = bundle.manifest, self._settings
        self._report("building the engine")
        tokenizer = PromptTokenizer.from_file(bundle.folder / TOKENIZER_FILE)
        own = PromptEncoder(manifest.prompt, tokenizer)
        engine, memory = build(own)
        runner = runner_over(engine, memory)
        prompt = limited_prompt(manifest.prompt, memory)
        model: LoadedModel | None = None
        try:
            agreed = terms()
            if settings.token_budget is not None:
                budget = TokenBudget.fixed(settings.token_budget)
            else:
                self._report("measuring how long packs should be")
                budget = measure_budget(runner, manifest.architecture, memory.token_budget)
            model = LoadedModel(
                manifest.name,
                bundle.digest,
                prompt,
                PromptEncoder(prompt, tokenizer),
                runner,
                budget,
                agreed.reason,
                manifest.source,
                engine_reason="; ".join(filter(None, (self._why_this_engine, memory.limits))),
                picture_bytes=memory.picture_bytes,
            )
            self._report("comparing golden pairs")
            pairs = read_golden_pairs(bundle)
            if agreed.golden is not None:
                pairs = with_margins(pairs, agreed.golden)
            elif prompt != manifest.prompt:
                pairs = unchanged_pairs(pairs, own, model.encoder)
            self_test(model, pairs, agreed.tolerance)
        except BaseException:
            (model or runner).close()
            raise
        return model
