"""Which published model fits on which board: the tables of docs/plan.md.

python tests/bench/board_plans.py
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.memory_plan import gib
from orin_rerank.engines.memory_planner import Residency
from orin_rerank.lifecycle.board_plan import Candidate, Target, plan_board
from orin_rerank.lifecycle.published import BOARDS, MODELS
from orin_rerank.prompt.profile import PromptFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.lifecycle.board_plan import BoardPlan, ModelPlan

__all__ = ["board_tables"]

_SHARE = 0.5
_RESIDENCIES = {Residency.BOTH: "both", Residency.SWAPPED: "swapped", Residency.ONE: "INT8 alone"}


def board_tables() -> Iterator[str]:
    """Lines of Markdown: what is recommended, then a table for each board."""
    candidates = [Candidate(m.key, m.name, m.family, m.size, m.download_bytes, m.quality) for m in MODELS.values()]
    plans = []
    for spec in BOARDS.values():
        target = Target(spec.kind.name, EngineKind.TENSORRT, spec.memory_bytes, spec.modes)
        plans.append(plan_board(target, candidates, _SHARE))
    yield "| board | may be used | for text and images | for text alone |"
    yield "|---|---|---|---|"
    for plan in plans:
        names = [best.candidate.key if (best := plan.recommended(f)) else "none" for f in PromptFamily]
        yield f"| {plan.target.name} | {gib(plan.target.budget.usable_bytes)} | {names[0]} | {names[1]} |"
    for plan in plans:
        yield from _table(plan)


def _table(plan: BoardPlan) -> Iterator[str]:
    yield ""
    yield f"**{plan.target.name}**, {plan.target.modes[0].name}"
    yield ""
    yield "| model | in memory | takes | compiling | tokens, in flight | 50 texts, s | limit, s | but |"
    yield "|---|---|---|---|---|---|---|---|"
    for model in plan.models:
        yield f"| {' | '.join(_cells(model))} |"


def _cells(model: ModelPlan) -> list[str]:
    best, time = model.best, model.text_time
    if best is None or time is None:
        return [model.candidate.key, "none", gib(model.policies[-1].needed_bytes), *[""] * 4, model.objections[0]]
    first = best.plans[0]
    return [
        model.candidate.key,
        _RESIDENCIES[best.residency],
        gib(best.needed_bytes),
        gib(best.build_bytes),
        f"{first.max_tokens:,}, {first.slots}",
        f"{time.expected_s:.1f}",
        f"{time.limit_s:.1f}",
        "; ".join(model.objections),
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join(board_tables()) + "\n")
