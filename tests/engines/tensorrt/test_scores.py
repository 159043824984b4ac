"""Plans that compute attention in one kernel, plans that do not, and how long a pack may be for these."""

from __future__ import annotations

import dataclasses
import re

import pytest

from fakes.published import MODELS
from orin_rerank.engines.footprint import EngineKind, scratch_bytes
from orin_rerank.engines.memory_plan import MemoryBudget, MemoryPlan
from orin_rerank.engines.memory_planner import plan_memory
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.engines.tensorrt.profiles import text_profiles
from orin_rerank.engines.tensorrt.scores import COUNTABLE, AskedScratch, check_scores
from orin_rerank.errors import PlanError
from orin_rerank.graph.builder import Precision

PRECISIONS = [Precision.INT8_FP16, Precision.FP16]


def plan(name: str, precision: Precision, max_tokens: int | None = None) -> MemoryPlan:
    budget = MemoryBudget.of_machine(64 << 30)
    return plan_memory(MODELS[name], precision, EngineKind.TENSORRT, budget, EngineSettings(max_tokens=max_tokens))


def asked(memory: MemoryPlan, *, written: bool, factor: float = 1.0) -> list[AskedScratch]:
    """What the compiler asks for: without scores as it was measured, more or less; with them as it miscounts them."""
    found = []
    for profile in text_profiles(memory.capacity, memory.token_budget):
        tokens, known, keep = (profile.extents[name].most for name in ("tokens", "known", "keep"))
        capacity = dataclasses.replace(memory.capacity, tokens=tokens, known_rows=known, keep_rows=keep)
        architecture = memory.model.architecture
        without = scratch_bytes(architecture, capacity, None, memory.precision, EngineKind.TENSORRT)
        scores = architecture.text.heads * tokens * (known + tokens) % (1 << 32)
        found.append(AskedScratch(tokens, known, keep, round(factor * without) + (4 * scores if written else 0)))
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_one_kernel_is_told_from_many(name: str, precision: Precision, factor: float) -> None:
    memory = plan(name, precision)
    check_scores("text.plan", asked(memory, written=False, factor=factor), memory)
    heads, capacity = memory.model.architecture.text.heads, memory.capacity
    if heads * capacity.tokens * (capacity.known_rows + capacity.tokens) < COUNTABLE:
        check_scores("text.plan", asked(memory, written=True, factor=factor), memory)
        return
    with pytest.raises(PlanError, match=r"text\.plan: writes out attention's scores") as caught:
        check_scores("text.plan", asked(memory, written=True, factor=factor), memory)
    # With the limit that it names there is nothing left to complain of, and hardly a longer one would do.
    found = re.search(r"--max-tokens (\d+)", str(caught.value))
    assert found
    limited = plan(name, precision, int(found[1]))
    check_scores("text.plan", asked(limited, written=True, factor=factor), limited)
    longer = plan(name, precision, int(found[1]) + 512)
    with pytest.raises(PlanError):
        check_scores("text.plan", asked(longer, written=True, factor=factor), longer)


def test_which_models_could_miscount() -> None:
    def scores(name: str) -> int:
        memory = plan(name, Precision.FP16)
        capacity = memory.capacity
        return memory.model.architecture.text.heads * capacity.tokens * (capacity.known_rows + capacity.tokens)

    assert {name for name in MODELS if scores(name) >= COUNTABLE} == {"vl-8b", "8b", "4b"}


def test_a_plan_whose_every_profile_is_too_long_tells_nothing() -> None:
    memory = plan("vl-8b", Precision.FP16)
    with pytest.raises(PlanError, match="compile again"):
        check_scores("text.plan", asked(memory, written=False)[-1:], memory)
