"""What a model would be on a board: whether it fits, how fast it can be at best, and which model to take.

Nothing is downloaded or built for it. Memory comes from the same plan that guards a start (`engines.memory_planner`),
times from `engines.roofline`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.footprint import EngineKind, stored_bytes
from orin_rerank.engines.memory_plan import MemoryBudget, MemoryNeeds, gib
from orin_rerank.engines.memory_planner import TOKEN_BUDGET, PolicyPlan, Residency, plan_policies
from orin_rerank.engines.roofline import request_runs, seconds
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.published import REQUESTS
from orin_rerank.lifecycle.sizes import VISION_PATCHES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.engines.memory_plan import ModelSize
    from orin_rerank.engines.roofline import ChipLimits, RequestShape
    from orin_rerank.prompt.profile import ImageProfile, PromptFamily

__all__ = ["GOAL_S", "BoardPlan", "Candidate", "ModelPlan", "RequestTime", "Target", "plan_board", "policy_needs"]

GOAL_S: Final = 5.0
"""A model is recommended only if a top-50 request of texts takes no longer."""

_FEW_TOKENS: Final = 4096
"""A way to serve that cuts pairs shorter than this is taken only where no other fits."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a model would run on.

    Attributes:
        name: For people.
        kind: What would compute.
        memory_bytes: What the system has.
        modes: Power modes whose limits are known, the fastest first; none for processors.
        serving_bytes: What serving may take, where a person has set that.
    """

    name: str
    kind: EngineKind
    memory_bytes: int
    modes: tuple[ChipLimits, ...]
    serving_bytes: int | None = None

    @property
    def usable_bytes(self) -> int:
        """What serving may take."""
        return self.serving_bytes or self.budget.usable_bytes

    @property
    def on_processor(self) -> Target:
        """The same where the processor is to compute, whatever else could."""
        if not self.kind.on_gpu:
            return self
        name = f"{self.name}, on its processor"
        return dataclasses.replace(self, name=name, kind=EngineKind.PROCESSOR, modes=())

    @property
    def budget(self) -> MemoryBudget:
        """Its memory, less what the system needs."""
        of = MemoryBudget.of_machine if self.kind.on_gpu else MemoryBudget.of_processor
        return of(self.memory_bytes)

    @property
    def precisions(self) -> tuple[Precision, Precision]:
        """What is served as a rule, and what is there to step down to."""
        if self.kind.on_gpu:
            return Precision.INT8_FP16, Precision.FP16
        return Precision.INT8, Precision.FP32


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be taken.

    Attributes:
        key: Short name, or a bundle's folder.
        name: Its own name.
        family: Which prompt it takes.
        size: Its dimensions and limits.
        download_bytes: Of its published weights; None for a bundle that is there.
        quality: As published; None if it is not.
    """

    key: str
    name: str
    family: PromptFamily
    size: ModelSize
    download_bytes: int | None = None
    quality: float | None = None


@dataclass(frozen=True, slots=True)
class RequestTime:
    """What a request takes.

    Attributes:
        request: The request.
        mode: The power mode.
        precision: What the decoder computes in.
        limit_s: At the chip's limits; no engine that computes attention dense within a pack can be faster.
        expected_s: At the share of them that is counted on.
    """

    request: RequestShape
    mode: ChipLimits
    precision: Precision
    limit_s: float
    expected_s: float


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model on a target.

    Attributes:
        candidate: The model.
        target: The target.
        policies: Both precisions in memory, one at a time, or INT8 alone: which of these fit, and with what limits.
        times: Of requests, in every mode and both precisions.
    """

    candidate: Candidate
    target: Target
    policies: tuple[PolicyPlan, ...]
    times: tuple[RequestTime, ...]

    @property
    def best(self) -> PolicyPlan | None:
        """What a start does, which loads one precision: one at a time, or INT8 alone where nothing else fits.

        INT8 alone, too, where with full precision to step down to pairs would be cut short.
        """
        fitting = [policy for policy in self.policies if policy.fits and policy.residency is not Residency.BOTH]
        roomy = [policy for policy in fitting if policy.plans[0].max_tokens >= self._enough_tokens]
        return next(iter((*roomy, *fitting)), None)

    @property
    def _enough_tokens(self) -> int:
        return min(_FEW_TOKENS, self.candidate.size.max_tokens)

    @property
    def build_swap_bytes(self) -> int:
        """What compiling needs beyond the memory that there is."""
        return 0 if self.best is None else max(0, self.best.build_bytes - self.target.budget.usable_bytes)

    @property
    def text_time(self) -> RequestTime | None:
        """Of a top-50 request of texts, in the fastest mode, in what is served as a rule."""
        return next(iter(self.times), None)

    @property
    def disk_bytes(self) -> int:
        """Of a bundle, the INT8 bundle made from it, and plans of both; without the checkpoint."""
        wide, quantized = (
            stored_bytes(self.candidate.size.architecture, p) for p in (Precision.FP16, Precision.INT8_FP16)
        )
        return (2 if self.target.kind is EngineKind.TENSORRT else 1) * (wide + quantized)

    @property
    def objections(self) -> tuple[str, ...]:
        """Why it is not recommended, for people; none if it may be."""
        best = self.best
        if best is None:
            return (f"needs {gib(self.policies[-1].needed_bytes)} even in INT8 alone",)
        reasons = []
        if best.residency is Residency.ONE:
            reasons.append("full precision does not fit, so there is nothing to step down to")
        if best.plans[0].max_tokens < self._enough_tokens:
            reasons.append(f"pairs are cut at {best.plans[0].max_tokens:,} tokens")
        if self.build_swap_bytes:
            reasons.append(f"compiling needs {gib(self.build_swap_bytes)} of swap")
        if self.text_time is not None and self.text_time.expected_s > GOAL_S:
            reasons.append(f"{REQUESTS[0].name} take more than {GOAL_S:g} s")
        return tuple(reasons)


@dataclass(frozen=True, slots=True)
class BoardPlan:
    """Models on a target.

    Attributes:
        target: The target.
        share: Of the chip's limits that is counted on.
        models: The models.
    """

    target: Target
    share: float
    models: tuple[ModelPlan, ...]

    def recommended(self, family: PromptFamily) -> ModelPlan | None:
        """The best model of a family, as published, to which there is no objection."""
        fine = [m for m in self.models if m.candidate.family is family and not m.objections]
        return max(fine, key=lambda model: model.candidate.quality or 0.0, default=None)


def plan_board(
    target: Target, candidates: Sequence[Candidate], share: float, settings: EngineSettings | None = None
) -> BoardPlan:
    """Plans models on a target.

    Args:
        target: The target.
        candidates: The models.
        share: Of the chip's limits that is counted on, above 0 and up to 1.
        settings: What a person would set.
    """
    settings = settings or EngineSettings()
    return BoardPlan(target, share, tuple(_plan(target, candidate, share, settings) for candidate in candidates))


def policy_needs(policy: PolicyPlan) -> MemoryNeeds:
    """What a policy that fits takes at most at a time, part by part; the parts add up to its `needed_bytes`."""
    needs = [plan.needs for plan in policy.plans]
    if policy.residency is not Residency.BOTH:
        return max(needs, key=lambda one: one.total)
    return MemoryNeeds(
        weights=sum(one.weights for one in needs),
        buffers=sum(one.buffers for one in needs),
        scratch=sum(one.scratch for one in needs),
        caches=sum(one.caches for one in needs) - min(one.caches for one in needs),
        overhead=needs[0].overhead,
        process=needs[0].process,
    )


def _plan(target: Target, candidate: Candidate, share: float, settings: EngineSettings) -> ModelPlan:
    policies = plan_policies(candidate.size, target.kind, target.budget, settings, target.precisions)
    times = []
    shapes = (
        [REQUESTS[0]] if candidate.size.image is None else [_as_seen(one, candidate.size.image) for one in REQUESTS]
    )
    for request in shapes:
        for mode in target.modes:
            for precision in target.precisions:
                runs = request_runs(
                    candidate.size.architecture,
                    request,
                    quantized=precision.quantized,
                    pack_tokens=settings.token_budget or TOKEN_BUDGET,
                    image_patches=VISION_PATCHES,
                )
                limit = seconds(runs, mode)
                times.append(RequestTime(request, mode, precision, limit, limit / share))
    return ModelPlan(candidate, target, policies, tuple(times))


def _as_seen(request: RequestShape, image: ImageProfile) -> RequestShape:
    """A request with its pictures as small as a model makes them."""
    most = image.max_pixels // (image.patch_size * image.merge_size) ** 2
    query, document = (max(0, tokens - most) for tokens in (request.query_image_tokens, request.document_image_tokens))
    return dataclasses.replace(
        request,
        prefix_tokens=request.prefix_tokens - query,
        query_image_tokens=request.query_image_tokens - query,
        document_tokens=request.document_tokens - document,
        document_image_tokens=request.document_image_tokens - document,
    )
