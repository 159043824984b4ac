"""What fits on which board, against hand-made sums, real files and every board."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from bench.board_plans import board_tables
from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle
from orin_rerank.engines.footprint import EngineKind, stored_bytes
from orin_rerank.engines.memory_planner import Residency, plan_memory
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.board_plan import GOAL_S, Candidate, ModelPlan, Target, plan_board, policy_needs
from orin_rerank.lifecycle.published import BOARDS, MODELS
from orin_rerank.prompt.profile import PromptFamily

MINI = Path(__file__).parents[2] / "engines" / "mini"
CANDIDATES = [Candidate(m.key, m.name, m.family, m.size, m.download_bytes, m.quality) for m in MODELS.values()]


def target(key: str) -> Target:
    board = BOARDS[key]
    return Target(board.kind.name, EngineKind.TENSORRT, board.memory_bytes, board.modes)


def planned(board: str, model: str, share: float = 0.5) -> ModelPlan:
    candidates = [candidate for candidate in CANDIDATES if candidate.key == model]
    return plan_board(target(board), candidates, share).models[0]


def recommended(board: str) -> tuple[str | None, str | None]:
    plan = plan_board(target(board), CANDIDATES, 0.5)
    vl, text = (plan.recommended(family) for family in PromptFamily)
    return vl and vl.candidate.key, text and text.candidate.key


@pytest.mark.parametrize(("board", "model"), list(itertools.product(BOARDS, MODELS)))
def test_every_model_on_every_board_adds_up(board: str, model: str) -> None:
    plan = planned(board, model)
    usable = plan.target.budget.usable_bytes
    for policy in plan.policies:
        assert policy.fits == (policy.needed_bytes <= usable)
        if policy.fits:
            needs = policy_needs(policy)
            parts = dataclasses.asdict(needs)
            assert sum(parts.values()) == needs.total == policy.needed_bytes
    both, swapped, one = plan.policies
    assert [policy.residency for policy in plan.policies] == list(Residency)
    assert not both.fits or swapped.fits, "what fits together fits by turns"
    assert not swapped.fits or one.fits
    if plan.best is None:
        assert not one.fits
        assert plan.objections == (f"needs {one.needed_bytes / (1 << 30):.1f} GiB even in INT8 alone",)
    else:
        assert plan.best.fits


def test_weights_of_a_policy_are_those_of_its_files() -> None:
    plan = planned("agx-orin-64", "8b")
    wide, narrow = (
        stored_bytes(plan.candidate.size.architecture, precision) for precision in (Precision.FP16, Precision.INT8_FP16)
    )
    both, swapped, one = (policy_needs(policy).weights for policy in plan.policies)
    assert (both, swapped, one) == (wide + narrow, wide, narrow)
    assert plan.disk_bytes == 2 * (wide + narrow), "bundles, and plans of both"
    assert wide == pytest.approx(MODELS["8b"].download_bytes - 2 * 151_669 * 4096, rel=0.001), "but for the head"


def test_a_bundle_is_planned_by_its_files() -> None:
    bundle = Bundle.open(MINI)
    manifest = bundle.manifest
    on_disk = (MINI / WEIGHTS_FILE).stat().st_size
    size = dataclasses.replace(
        MODELS["vl-2b"].size,
        architecture=manifest.architecture,
        image=manifest.prompt.image,
        max_tokens=manifest.prompt.max_tokens,
        stored_bytes={Precision.FP16: on_disk},
    )
    mini = Candidate("engines/mini", manifest.name, manifest.prompt.family, size)
    plan = plan_board(target("orin-nano-8"), [mini], 0.5).models[0]
    swapped = plan.policies[1]
    assert policy_needs(swapped).weights == on_disk
    assert plan.objections == (), "a model that takes short prompts is no worse for it"
    assert [time.request.query_image_tokens for time in plan.times][:8:4] == [0, 16], (
        "pictures as small as it sees them"
    )


def test_what_is_planned_is_what_a_start_plans() -> None:
    plan = planned("orin-nx-16", "vl-2b")
    alone = plan_memory(
        MODELS["vl-2b"].size, Precision.INT8_FP16, EngineKind.TENSORRT, plan.target.budget, EngineSettings()
    )
    assert plan.policies[2].plans == (alone,)


@pytest.mark.parametrize(("board", "model"), list(itertools.product(BOARDS, MODELS)))
def test_what_is_shown_is_what_a_start_has(board: str, model: str) -> None:
    """It loads one precision, and plans it for itself; that both would fit cuts nothing."""
    plan = planned(board, model)
    if plan.best is None:
        return
    kind, budget = EngineKind.TENSORRT, plan.target.budget
    for shown in plan.best.plans:
        assert shown == plan_memory(MODELS[model].size, shown.precision, kind, budget, EngineSettings())
    assert plan.best.residency is not Residency.BOTH
    assert plan.best.needed_bytes == max(shown.needed_bytes for shown in plan.best.plans)


def test_the_flagship_is_for_the_largest_board() -> None:
    assert recommended("agx-orin-64") == ("vl-8b", "4b")
    plan = planned("agx-orin-64", "vl-8b")
    assert plan.best is not None
    assert plan.policies[0].fits, "both at a time, too"
    assert plan.best.residency is Residency.SWAPPED
    assert plan.best.plans[0].max_tokens == 10_240
    assert plan.build_swap_bytes == 0


def test_smaller_boards_get_smaller_models() -> None:
    assert recommended("agx-orin-32") == ("vl-2b", "4b")
    assert recommended("orin-nx-16") == ("vl-2b", "0.6b")
    assert recommended("orin-nano-8") == (None, "0.6b")
    assert recommended("orin-nano-4") == (None, None)


def test_a_model_that_fits_but_is_hard_to_build_says_so() -> None:
    plan = planned("agx-orin-32", "vl-8b")
    assert plan.best is not None
    assert plan.best.residency is Residency.SWAPPED
    together = plan.policies[0]
    assert not together.fits or together.plans[0].max_tokens < 4096, "both would fit at most with pairs cut short"
    swap = plan.best.build_bytes - plan.target.budget.usable_bytes
    assert plan.build_swap_bytes == swap > 0
    assert plan.objections == (f"compiling needs {swap / (1 << 30):.1f} GiB of swap",)


def test_a_model_with_nothing_to_step_down_to_says_so() -> None:
    plan = planned("orin-nx-16", "vl-8b")
    assert plan.best is not None
    assert plan.best.residency is Residency.ONE
    assert any("nothing to step down to" in reason for reason in plan.objections)
    assert any(f"more than {GOAL_S:g} s" in reason for reason in plan.objections)


def test_times_follow_the_share_and_the_mode() -> None:
    half, whole = planned("agx-orin-64", "vl-8b"), planned("agx-orin-64", "vl-8b", share=1.0)
    assert [time.limit_s for time in half.times] == [time.limit_s for time in whole.times]
    for slow, fast in zip(half.times, whole.times, strict=True):
        assert slow.expected_s == pytest.approx(2 * fast.expected_s)
        assert fast.expected_s == fast.limit_s
    by_mode = {time.mode.name: time for time in half.times[::-1] if time.request.name == "50 texts"}
    assert by_mode["30W"].limit_s > by_mode["50W"].limit_s > by_mode["MAXN"].limit_s
    assert half.text_time is half.times[0]
    assert (half.times[0].mode.name, half.times[0].precision) == ("MAXN", Precision.INT8_FP16)
    assert {time.request.name for time in planned("agx-orin-64", "4b").times} == {"50 texts"}


def test_too_slow_is_an_objection() -> None:
    assert planned("agx-orin-64", "vl-8b", share=0.2).objections == ("50 texts take more than 5 s",)


def test_on_a_processor_nothing_is_compiled_and_no_time_is_known() -> None:
    here = Target("a machine", EngineKind.PROCESSOR, 64 << 30, ())
    plan = plan_board(here, CANDIDATES[:1], 0.5).models[0]
    assert plan.best is not None
    assert (plan.best.build_bytes, plan.times, plan.text_time) == (0, (), None)
    assert [p.precision for p in plan.policies[1].plans] == [Precision.INT8, Precision.FP32]


def test_what_a_person_sets_counts() -> None:
    settings = EngineSettings(max_tokens=2048)
    plan = plan_board(target("orin-nano-8"), CANDIDATES[:1], 0.5, settings).models[0]
    unset = planned("orin-nano-8", "vl-2b")
    assert plan.policies[2].plans[0].max_tokens == 2048
    assert plan.policies[2].needed_bytes < unset.policies[2].needed_bytes


def test_the_document_shows_what_is_reckoned() -> None:
    text = (MINI.parents[1] / "docs" / "plan.md").read_text(encoding="utf-8")
    assert "\n".join(board_tables()) in text, "run tests/bench/board_plans.py"
