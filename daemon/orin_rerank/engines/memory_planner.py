"""Chooses the memory plan of a model on a machine.

Where a model does not fit with its own limit and two packs in flight, pairs are cut shorter, down to 4,096 tokens; then
there is one pack in flight; then pairs are cut shorter still, down to 1,024. What does not fit then either is refused,
with the numbers. The same model on the same machine always comes to the same plan.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.engines.capacity import VISION_PATCHES, ImageCapacity, PackCapacity, slot_bytes
from orin_rerank.engines.devices import CUDA_SLOTS
from orin_rerank.engines.footprint import EngineKind, overhead_bytes, scratch_bytes, weight_bytes
from orin_rerank.engines.memory_plan import MemoryBudget, MemoryNeeds, MemoryPlan, ModelSize, gib
from orin_rerank.errors import MemoryShortError
from orin_rerank.graph.builder import Dialect, Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["MAX_DOCUMENTS", "PREFIX_ROWS", "TOKEN_BUDGET", "PolicyPlan", "Residency", "plan_memory", "plan_policies"]

TOKEN_BUDGET: Final = 1024
"""Most tokens of a pack, but for one that a long prefix or document makes longer."""
_DISCRETE_TOKEN_BUDGET: Final = 2048
"""The same of ONNX Runtime on a GPU: a large one is fastest with longer packs."""
PREFIX_ROWS: Final = 2048
"""Longest prefix whose keys and values are remembered: more than the largest picture and an instruction take."""
MAX_DOCUMENTS: Final = 256
"""Most documents of a pack."""

_LIMITS: Final = (8192, 6144, 4096)
"""Tokens of a pair that are tried where the model's own limit is too much."""
_SHORT_LIMITS: Final = (3072, 2048, 1536, 1024)
"""What is tried where nothing else helps."""
_MIB: Final = 1 << 20
_PROCESS: Final = 512 * _MIB
"""The daemon itself: interpreter, libraries and tokenizer, 375 MB as measured with Qwen3's, and messages that wait."""
_DECODING: Final = 304 * _MIB
"""What the largest picture takes while it is decoded, of which `prompt.images` decodes one at a time, and a usual one
that another thread decodes: measured."""
_PICTURES: Final = (16 * _MIB, 512 * _MIB)
_PICTURES_SHARE: Final = 128
"""Decoded pictures that wait get a 128th of the memory, within those bounds. Of 8 GB that is 10 of the largest, five
pieces of a request (`serving.lookahead`): seconds of work for a board."""
_LEAST_CACHE: Final = 64 * _MIB
_LEAST_WORKSPACE: Final = 256 * _MIB
_LEAST_TOKENS: Final = 128
"""Of a pack: measuring how long packs should be takes so many."""


class Residency(enum.Enum):
    """Which of two precisions of a model are in memory."""

    BOTH = "both"
    """INT8 and full precision, so that a step down the ladder would take no time; no start does it yet."""
    SWAPPED = "swapped"
    """One at a time, as a start does it; a step down the ladder frees one and loads the other."""
    ONE = "one"
    """INT8 alone: full precision does not fit, so there is nothing to step down to."""


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """Whether a machine can keep to a policy.

    Attributes:
        residency: The policy.
        plans: Of each engine, with equal limits; none where it cannot be kept to.
        problem: Why not; None where it can.
    """

    residency: Residency
    plans: tuple[MemoryPlan, ...]
    problem: MemoryShortError | None = None

    @property
    def fits(self) -> bool:
        """Whether it can be kept to."""
        return self.problem is None

    @property
    def needed_bytes(self) -> int:
        """Most memory that is taken at a time; of the least that was tried, where it does not fit."""
        if self.problem is not None:
            return self.problem.needed_bytes
        return _together(self.plans) if self.residency is Residency.BOTH else max(p.needed_bytes for p in self.plans)

    @property
    def build_bytes(self) -> int:
        """What compiling takes at its peak; 0 where nothing is compiled."""
        return max((plan.build_bytes for plan in self.plans), default=0)


def plan_memory(
    model: ModelSize, precision: Precision, kind: EngineKind, budget: MemoryBudget, settings: EngineSettings
) -> MemoryPlan:
    """Plans one engine.

    Args:
        model: What is served.
        precision: What it is computed in.
        kind: What computes it.
        budget: The machine's memory.
        settings: What a person has set: threads, tokens, caches and memory.

    Raises:
        MemoryShortError: If the machine has not the memory, with the least that is needed.
    """
    return _Planner(model, (precision,), kind, budget, settings).plan()[0]


def plan_policies(
    model: ModelSize,
    kind: EngineKind,
    budget: MemoryBudget,
    settings: EngineSettings,
    precisions: tuple[Precision, Precision] = (Precision.INT8_FP16, Precision.FP16),
) -> tuple[PolicyPlan, ...]:
    """Plans two precisions of a model in each of the three ways.

    Args:
        model: What is served.
        kind: What computes it.
        budget: The machine's memory.
        settings: What a person has set; limits found for one engine bind the other.
        precisions: The one that is served as a rule, and the one to step down to.
    """
    return (
        _policy(Residency.BOTH, lambda: _Planner(model, precisions, kind, budget, settings).plan()),
        _policy(Residency.SWAPPED, lambda: _swapped(model, precisions, kind, budget, settings)),
        _policy(Residency.ONE, lambda: (plan_memory(model, precisions[0], kind, budget, settings),)),
    )


def _policy(residency: Residency, plan: Callable[[], tuple[MemoryPlan, ...]]) -> PolicyPlan:
    try:
        return PolicyPlan(residency, plan())
    except MemoryShortError as error:
        return PolicyPlan(residency, (), error)


def _swapped(
    model: ModelSize, precisions: Sequence[Precision], kind: EngineKind, budget: MemoryBudget, settings: EngineSettings
) -> tuple[MemoryPlan, ...]:
    """Both engines, each as if it were alone, and both with the limits of the larger one."""
    alone = [plan_memory(model, precision, kind, budget, settings) for precision in precisions]
    limits = dataclasses.replace(settings, max_tokens=min(plan.max_tokens for plan in alone))
    return tuple(plan_memory(model, precision, kind, budget, limits) for precision in precisions)


def _together(plans: Sequence[MemoryPlan]) -> int:
    """What engines take that are loaded at the same time: process, caches and CUDA's overhead are there once."""
    first = plans[0]
    shared = first.needs.overhead
    if first.budget.shared:
        shared += first.needs.process + min(plan.needs.caches for plan in plans)
    return sum(plan.needed_bytes for plan in plans) - (len(plans) - 1) * shared


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans engines of one model that are loaded at the same time, each with its own buffers, all with one limit."""

    model: ModelSize
    precisions: tuple[Precision, ...]
    kind: EngineKind
    budget: MemoryBudget
    settings: EngineSettings

    def plan(self) -> tuple[MemoryPlan, ...]:
        """The best plans that fit."""
        settings = self.settings
        # Threads are the processor's. More packs in flight make a GPU slower, and plans are compiled for its limits.
        slots = CUDA_SLOTS if self.kind.on_gpu else settings.effective_threads
        own = min(self.model.max_tokens, settings.max_tokens or self.model.max_tokens)
        for count, max_tokens in _candidates(own, slots):
            plans = self._plans(count, max_tokens)
            if _together(plans) <= self._usable:
                break
        else:
            raise self._refusal(plans)
        return plans

    @property
    def _usable(self) -> int:
        return self.settings.memory_bytes or self.budget.usable_bytes

    def _plans(self, slots: int, max_tokens: int) -> tuple[MemoryPlan, ...]:
        return tuple(self._plan(precision, slots, max_tokens) for precision in self.precisions)

    def _plan(self, precision: Precision, slots: int, max_tokens: int) -> MemoryPlan:
        """What serving takes with these limits, whether it fits or not."""
        model, kind, settings = self.model, self.kind, self.settings
        longest = max_tokens + model.suffix_tokens
        usual = _DISCRETE_TOKEN_BUDGET if kind is EngineKind.ONNXRUNTIME_CUDA else TOKEN_BUDGET
        token_budget = settings.token_budget or usual
        if kind is EngineKind.TENSORRT:
            token_budget = max(token_budget, TOKEN_BUDGET)  # so that the usual plans serve any smaller one too
        rows = min(longest, PREFIX_ROWS)
        capacity = PackCapacity.of_model(
            model.architecture,
            # One document at the limit; or a pack within the budget, and one more prefix than planned since it was
            # forgotten meanwhile. What turns out longer is run in parts.
            tokens=max(longest, token_budget + rows, _LEAST_TOKENS),
            documents=MAX_DOCUMENTS,
            prefix_rows=rows,
            product_dtype=np.float16 if precision.half else np.float32,
        )
        image = _limited_image(model.image, max_tokens)
        images = None if image is None else ImageCapacity.of_model(image, capacity, _patches(image, token_budget, kind))
        masked = settings.dialect is Dialect.PRIMITIVE
        scratch = scratch_bytes(model.architecture, capacity, images, precision, kind, masked=masked)
        if kind is EngineKind.TENSORRT:
            scratch = max(_LEAST_WORKSPACE, (scratch + scratch // 8) // _MIB * _MIB)
        feature_cache, prefix_cache = self._caches(capacity, images, 2 if slots > 1 else 1)
        pictures = 0 if images is None else self._picture_bytes()
        needs = MemoryNeeds(
            weights=weight_bytes(model.architecture, precision, kind, model.stored_bytes.get(precision)),
            buffers=slots * slot_bytes(capacity, images),
            scratch=slots * scratch,
            caches=feature_cache + prefix_cache,
            overhead=overhead_bytes(kind),
            process=_PROCESS + (0 if images is None else pictures + _DECODING),
        )
        plan = MemoryPlan(
            model=model,
            precision=precision,
            kind=kind,
            budget=self.budget,
            max_tokens=max_tokens,
            slots=slots,
            token_budget=token_budget,
            image=image,
            capacity=capacity,
            images=images,
            workspace_bytes=0,
            feature_cache_bytes=feature_cache,
            prefix_cache_bytes=prefix_cache,
            picture_bytes=pictures,
            needs=needs,
        )
        if kind is not EngineKind.TENSORRT:
            return plan
        left = (self._usable - _together([plan] * len(self.precisions))) // (slots * len(self.precisions))
        spare = min(left, self._usable - plan.build_bytes)
        return dataclasses.replace(plan, workspace_bytes=(scratch + max(0, spare)) // _MIB * _MIB)

    def _caches(self, capacity: PackCapacity, images: ImageCapacity | None, each: int) -> tuple[int, int]:
        """Bytes for features and for prefixes: as they are set, else for `each` of the largest and many usual ones."""
        features, prefixes = self.settings.feature_cache_bytes, self.settings.prefix_cache_bytes
        if features is None:
            largest = 0 if images is None else images.feature_bytes
            features = max(_LEAST_CACHE, each * largest)
        if prefixes is None:
            prefixes = max(_LEAST_CACHE, each * capacity.keep_rows * capacity.prefix_row_bytes)
        return features, prefixes

    def _picture_bytes(self) -> int:
        """Bytes for decoded pictures that wait: as they are set, else a share of the memory."""
        if self.settings.picture_bytes is not None:
            return self.settings.picture_bytes
        least, most = _PICTURES
        return min(max(self.budget.total_bytes // _PICTURES_SHARE, least), most)

    def _refusal(self, plans: Sequence[MemoryPlan]) -> MemoryShortError:
        """Why the least that was tried does not fit."""
        needed, usable = _together(plans), self._usable
        least = plans[-1]
        what = " and ".join(plan.precision.value for plan in plans)
        where = f"a limit of {least.max_tokens} tokens and {least.slots} in flight"
        weights = sum(plan.needs.weights for plan in plans)
        advice = "take a smaller model"
        if not any(plan.precision.quantized for plan in plans):
            advice += ", or INT8"
        if self.settings.token_budget is not None and self.settings.token_budget > TOKEN_BUDGET:
            advice += f", or packs of {TOKEN_BUDGET} tokens"
        return MemoryShortError(
            f"{what} takes {gib(needed)}, {gib(weights)} of them weights, even with {where}; this machine has "
            f"{gib(usable)} for it, of {gib(self.budget.total_bytes)} in all: {advice}",
            needed_bytes=needed,
            available_bytes=usable,
        )


def _candidates(own: int, slots: int) -> Iterator[tuple[int, int]]:
    """Slots and longest pairs to try, the best first."""
    limits = [own, *(limit for limit in _LIMITS if limit < own)]
    counts = [slots >> halvings for halvings in range(slots.bit_length())]
    yield from itertools.product(counts, limits)
    yield from ((1, limit) for limit in _SHORT_LIMITS if limit < limits[-1])


def _patches(image: ImageProfile, token_budget: int, kind: EngineKind) -> int:
    """Patches of one run of the vision encoder, unless a single image has more.

    Plans are compiled for usual runs. ONNX Runtime takes any, and a large GPU is fastest with all pictures of a pack at
    once.
    """
    return token_budget * image.merge_size**2 if kind is EngineKind.ONNXRUNTIME_CUDA else VISION_PATCHES


def _limited_image(image: ImageProfile | None, max_tokens: int) -> ImageProfile | None:
    """How images are taken so that the largest one leaves half of a pair to everything else."""
    if image is None:
        return None
    most = max_tokens // 2 * (image.patch_size * image.merge_size) ** 2
    return image if image.max_pixels <= most else dataclasses.replace(image, max_pixels=max(image.min_pixels, most))
