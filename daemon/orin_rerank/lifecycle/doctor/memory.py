"""Memory: whether the model fits, whether enough is free, and what swap is made of."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from orin_rerank.board.load import read_memory
from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.memory_plan import gib
from orin_rerank.engines.memory_planner import Residency
from orin_rerank.engines.settings import DeviceChoice
from orin_rerank.lifecycle.board_plan import plan_board
from orin_rerank.lifecycle.doctor.finding import Check, fail, ok, warn
from orin_rerank.lifecycle.this_machine import bundle_candidate, this_target

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.load import Memory
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.lifecycle.board_plan import ModelPlan, Target
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.finding import Finding

__all__ = ["CHECKS", "planned_model", "swap_finding"]

_SUBJECT: Final = "memory and disk"
_GUIDE: Final = "docs/appliance.md, Swap"
_POLICIES: Final = {
    Residency.BOTH: "with both precisions in memory",
    Residency.SWAPPED: "with one precision at a time",
    Residency.ONE: "in INT8 alone",
}


def planned_model(paths: BoardPaths, context: Context) -> ModelPlan | None:
    """The bundle as it is planned on this machine; None without a bundle, or on a GPU with memory of its own.

    Raises:
        BundleError: If the bundle is damaged.
    """
    discrete = context.probe.gpu is not None and not context.probe.gpu.integrated
    if context.bundle is None or (discrete and context.engine.device is not DeviceChoice.CPU):
        return None
    target = this_target(paths)
    if context.engine.device is DeviceChoice.CPU:
        target = target.on_processor
    return _planned(context.bundle, target, context.engine)


@functools.lru_cache(maxsize=1)
def _planned(bundle: Path, target: Target, settings: EngineSettings) -> ModelPlan:
    """Kept, since three checks ask for it, and to read a large tokenizer takes a second."""
    return plan_board(target, [bundle_candidate(bundle, target)], 1.0, settings).models[0]


def check_fit(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether the model fits, by the plan that guards a start."""
    model = planned_model(paths, context)
    if model is None:
        return None
    usable, best = gib(model.target.budget.usable_bytes), model.best
    if best is None:
        needed = gib(model.policies[-1].needed_bytes)
        return fail(
            f"the model needs {needed} even in INT8 alone; this machine has {usable} for it",
            "take a smaller model",
            "orin-rerank plan",
        )
    cut = best.plans[0].max_tokens
    text = f"the model takes {gib(best.needed_bytes)} of {usable}, {_POLICIES[best.residency]}"
    if cut < model.candidate.size.max_tokens:
        text += f"; pairs are cut at {cut:,} tokens"
    return ok(text)


def check_free(paths: BoardPaths, context: Context) -> Finding:
    """Whether what the model takes is free now; while the daemon serves, it has it already."""
    memory = read_memory(paths)
    if memory is None:
        return warn("/proc/meminfo cannot be read")
    text = f"{gib(memory.available)} of {gib(memory.total)} are free"
    if context.daemon.serving:
        return ok(f"{text}, beside the daemon")
    model = planned_model(paths, context)
    if model is None or model.best is None:
        return ok(text)
    needed = min(policy.needed_bytes for policy in model.policies if policy.fits)
    if memory.available < needed:
        return warn(f"{text}; the model takes {gib(needed)}", "stop other programs", "ps aux --sort=-rss | head")
    return ok(text)


def check_swap(paths: BoardPaths, context: Context) -> Finding | None:
    """Whether there is swap on a disk where compiling takes more than memory; zram takes memory itself."""
    memory = read_memory(paths)
    model = planned_model(paths, context)
    if memory is None or model is None or model.target.kind is not EngineKind.TENSORRT:
        return None
    return swap_finding(memory, model.build_swap_bytes)


def swap_finding(memory: Memory, needed: int) -> Finding:
    """What there is to say of swap.

    Args:
        memory: The machine's.
        needed: Swap on a disk that compiling takes, in bytes.
    """
    on_disk = max(0, memory.swap_total - memory.zram_total)
    kinds = [f"{gib(on_disk)} on disk"] if on_disk else []
    if memory.zram_total:
        kinds.append(f"{gib(memory.zram_total)} of compressed memory (zram)")
    text = " and ".join(kinds) or "none"
    if needed <= on_disk:
        return ok(text)
    return warn(
        f"{text}; compiling the model takes {gib(needed)} of swap on disk",
        f"add a swap file of that size while it compiles ({_GUIDE})"
        + ("; zram takes the memory that it gives, so turn it off until then" if memory.zram_total else ""),
        "sudo swapoff /dev/zram*" if memory.zram_total else None,
    )


CHECKS: Final = (
    Check(_SUBJECT, "model's memory", check_fit),
    Check(_SUBJECT, "free memory", check_free),
    Check(_SUBJECT, "swap", check_swap),
)
