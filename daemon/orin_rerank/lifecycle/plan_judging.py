"""Holds freshly compiled INT8 plans to the gate, on the GPU that they are for.

The gate of `lifecycle.calibrate` judges the graphs as ONNX Runtime computes them on the processor. A compiler makes
another engine of them, and not the same one in every build, with the same timing cache too. So every set of INT8 plans
scores the judged set before it is installed, and the result is recorded beside it (`lifecycle.precision` reads it).

Set, margins of full precision and thresholds are those that the INT8 engine itself was judged by: what differs is the
engine alone, and the 16 GB of full precision need not be loaded again. All of the set is scored, since half a point of
NDCG is near the noise of 200 queries already. With the 8B on an AGX Orin that is 44 to 189 s, on paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.engines.bundle import TOKENIZER_FILE
from orin_rerank.errors import CalibrationError, DatasetError, NonFiniteScoreError
from orin_rerank.evaluation.paired import compare
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.accelerators import tensorrt_engine
from orin_rerank.lifecycle.judging import REFERENCE_FILE, JudgedSet, without_scores
from orin_rerank.lifecycle.model import LoadedModel
from orin_rerank.lifecycle.pack_timing import measure_budget
from orin_rerank.lifecycle.precision import subject_of
from orin_rerank.lifecycle.runners import runner_over
from orin_rerank.lifecycle.self_test import golden_margin, read_golden_pairs
from orin_rerank.lifecycle.sizes import limited_prompt
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer
from orin_rerank.quantization.gate import GateRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.engines.plans import PlanSet
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.evaluation.scoring import ScoredQuery
    from orin_rerank.lifecycle.accelerators import Accelerators
    from orin_rerank.lifecycle.precision import TrustedInt8

__all__ = ["PlanJudge"]


@dataclass(frozen=True, slots=True)
class PlanJudge:
    """Judges plans of one INT8 engine; `open` makes it.

    Attributes:
        int8: The engine.
        judged: The set that it was judged by.
        reference: What full precision gave that set.
        settings: What the plans will be served with.
        accelerators: What this machine has.
    """

    int8: TrustedInt8
    judged: JudgedSet
    reference: tuple[ScoredQuery, ...]
    settings: EngineSettings
    accelerators: Accelerators

    @classmethod
    def open(
        cls, int8: TrustedInt8, evaluation: Path | None, settings: EngineSettings, accelerators: Accelerators
    ) -> PlanJudge:
        """Makes sure, before hours go into compiling, that there is something to judge by.

        Args:
            int8: The engine whose plans are to be judged.
            evaluation: Folder of the set that it was judged by; None if there is none on this machine.
            settings: What the plans will be served with.
            accelerators: What this machine has.

        Raises:
            DatasetError: If there is no set, it is malformed, or not the one that the engine was judged by.
            CalibrationError: If the engine keeps no margins of full precision.
        """
        if evaluation is None:
            raise DatasetError(
                "INT8 plans are judged on this machine, and there is no judged set; name the folder of the one that "
                "the INT8 engine was judged by",
                item="--evaluation",
            )
        judged = JudgedSet.open(evaluation, least=int8.gate.thresholds.min_queries)
        if judged.digest != int8.gate.dataset:
            raise DatasetError(
                f"is not the set that the INT8 engine was judged by ({judged.digest[:12]}, not "
                f"{int8.gate.dataset[:12]}); name that one, or calibrate with this one",
                item=str(evaluation),
            )
        if REFERENCE_FILE not in int8.bundle.manifest.files:
            raise CalibrationError(
                "keeps no margins of full precision to hold plans against; `orin-rerank calibrate --reuse` with this "
                "folder makes an engine that does",
                item=str(int8.bundle.folder),
            )
        reference = judged.reference(int8.bundle.folder / REFERENCE_FILE, int8.gate.subject.source)
        return cls(int8, judged, reference, settings, accelerators)

    def judge(self, plans: PlanSet, tell: Callable[[int, int], None]) -> GateRecord:
        """Loads plans as serving does, and scores golden pairs and the judged set.

        The golden margins of the INT8 engine are the processor's. What a GPU gives may be as good and further from them
        than kernels of one kind are from each other, so these plans are held to full precision here, and to their own
        golden margins at every start.

        Args:
            plans: The plans, of this machine's key.
            tell: Told how many queries are done, and of how many.

        Returns:
            What the gate saw; it need not have passed.

        Raises:
            TensorRtMissingError: If TensorRT is missing.
            PlanError: If the plans are damaged, or TensorRT does not take what it has made.
            EngineError: If the GPU cannot be used, or memory runs out.
            DeviceLostError: If the GPU is lost; only another process can use it.
        """
        tell(0, self.judged.queries)
        model = self._load(plans)
        golden: tuple[float, ...] | None
        try:
            golden = tuple(golden_margin(model, pair) for pair in read_golden_pairs(self.int8.bundle))
            candidate = self.judged.score(model.runner, model.encoder, model.budget, tell).queries
        except NonFiniteScoreError:
            candidate, golden = without_scores(self.reference), None
        finally:
            model.close()
        return GateRecord(
            subject_of(plans.manifest, self.int8.gate.subject.source),
            self.judged.digest,
            self.int8.gate.thresholds,
            compare(self.reference, candidate),
            golden,
        )

    def _load(self, plans: PlanSet) -> LoadedModel:
        bundle, settings = self.int8.bundle, self.settings
        manifest = bundle.manifest
        tokenizer = PromptTokenizer.from_file(bundle.folder / TOKENIZER_FILE)
        unlimited = PromptEncoder(manifest.prompt, tokenizer)
        engine, memory = tensorrt_engine(
            bundle, Precision.INT8_FP16, settings, unlimited, lambda _target, _memory: plans, self.accelerators
        )
        runner = runner_over(engine, memory)
        prompt = limited_prompt(manifest.prompt, memory)
        try:
            if settings.token_budget is not None:
                budget = TokenBudget.fixed(settings.token_budget)
            else:
                budget = measure_budget(runner, manifest.architecture, memory.token_budget)
        except BaseException:
            runner.close()
            raise
        encoder = PromptEncoder(prompt, tokenizer)
        return LoadedModel(manifest.name, bundle.digest, prompt, encoder, runner, budget, "being judged")
