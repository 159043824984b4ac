"""How `orin-rerank plan` shows what it reckoned: all models on a board, or one of them in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from orin_rerank.cli.output import snippet
from orin_rerank.engines.memory_plan import gib
from orin_rerank.engines.memory_planner import TOKEN_BUDGET, Residency
from orin_rerank.lifecycle.board_plan import policy_needs
from orin_rerank.prompt.profile import PromptFamily

if TYPE_CHECKING:
    from rich.console import Console

    from orin_rerank.engines.memory_planner import PolicyPlan
    from orin_rerank.lifecycle.board_plan import BoardPlan, ModelPlan

__all__ = ["as_dict", "show"]

_PARTS = ("weights", "buffers", "scratch", "caches", "overhead", "process")
_POLICY_ROWS = ("weights", "buffers", "scratch", "caches", "CUDA", "process", "in all", "tokens", "in flight")
_RESIDENCIES = {Residency.BOTH: "both", Residency.SWAPPED: "swapped", Residency.ONE: "INT8 alone"}
_FAMILIES = {PromptFamily.VL: "text and images", PromptFamily.TEXT: "text alone"}


def show(plan: BoardPlan, out: Console, *, detailed: bool) -> None:
    """A plan for people."""
    target = plan.target
    head = f"{snippet(target.name, 80)}: {gib(target.memory_bytes)}, of which {gib(target.usable_bytes)} may be used"
    out.print(head, markup=False, soft_wrap=True)
    if detailed:
        for model in plan.models:
            _show_model(model, plan, out)
        return
    out.print()
    out.print(_overview(plan))
    out.print()
    for family, what in _FAMILIES.items():
        best = plan.recommended(family)
        name = 'none without a "but"' if best is None else best.candidate.name
        out.print(Text(f"recommended for {what}: {name}", style="bold"), soft_wrap=True)
    if target.modes:
        note = (
            f"50 texts in {target.modes[0].name}: at {plan.share:.0%} of the chip's limits, and at the limits; "
            "reckoned, not measured"
        )
        out.print(Text(note, style="dim"), soft_wrap=True)


def _overview(plan: BoardPlan) -> Table:
    """A row for each model."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    table.add_column("in memory", no_wrap=True)
    for name in ("takes", "build", "tokens", "50 texts", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("but")
    for model in plan.models:
        best, time = model.best, model.text_time
        fits = best is not None and bool(best.plans)
        table.add_row(
            model.candidate.key,
            Text("does not fit", style="red") if best is None else _RESIDENCIES[best.residency],
            gib((best or model.policies[-1]).needed_bytes),
            gib(best.build_bytes) if best is not None and best.build_bytes else "—",
            f"{best.plans[0].max_tokens:,}" if best is not None and fits else "—",
            "—" if time is None or best is None else f"{time.expected_s:.1f} s",
            "—" if time is None or best is None else f"{time.limit_s:.1f} s",
            Text("; ".join(model.objections), style="" if fits else "red"),
        )
    return table


def _show_model(model: ModelPlan, plan: BoardPlan, out: Console) -> None:
    """Everything about one model."""
    out.print(snippet(model.candidate.name, 80), markup=False)
    out.print()
    out.print(_policies(model))
    out.print()
    best = model.best
    for policy in model.policies:
        if policy.problem is not None:
            out.print(
                Text(f"{_RESIDENCIES[policy.residency]}: {policy.problem.message}", style="yellow"), soft_wrap=True
            )
    if best is not None:
        if best.build_bytes:
            swap = f", {gib(model.build_swap_bytes)} of it swap" if model.build_swap_bytes else ""
            out.print(f"compiling takes {gib(best.build_bytes)} at its peak{swap}", markup=False)
        download = model.candidate.download_bytes
        first = "" if download is None else f"{gib(download)} to download; "
        plans = " and plans" if best.build_bytes else ""
        out.print(f"{first}{_size(model.disk_bytes)} on disk with INT8{plans}", markup=False)
    if model.times:
        out.print()
        out.print(_times(model))
        note = (
            f"seconds at {plan.share:.0%} of the chip's limits (at the limits), in packs of {TOKEN_BUDGET:,} tokens; "
            "reckoned, not measured"
        )
        out.print(Text(note, style="dim"), soft_wrap=True)
    verdict = "; ".join(model.objections)
    out.print()
    out.print(
        Text(f"but: {verdict}" if verdict else "fits well", style="yellow" if verdict else "green"), soft_wrap=True
    )


def _policies(model: ModelPlan) -> Table:
    """The three ways to serve, side by side, with what each takes."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("in memory", no_wrap=True)
    columns = []
    for policy in model.policies:
        name, best = _RESIDENCIES[policy.residency], policy is model.best
        table.add_column(name, justify="right", no_wrap=True, style="bold" if best else "" if policy.fits else "dim")
        columns.append(_policy_cells(policy))
    for name, *cells in zip(_POLICY_ROWS, *columns, strict=True):
        table.add_row(name, *cells)
    return table


def _policy_cells(policy: PolicyPlan) -> list[str]:
    """What stands in the rows below a way to serve."""
    if not policy.fits:
        return [*["—"] * len(_PARTS), gib(policy.needed_bytes), "does not fit", "—"]
    needs, first = policy_needs(policy), policy.plans[0]
    parts = [_size(getattr(needs, part)) for part in _PARTS]
    return [*parts, gib(policy.needed_bytes), f"{first.max_tokens:,}", str(first.slots)]


def _times(model: ModelPlan) -> Table:
    """What requests take: a row for each request and mode, a column for each precision."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("request", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    precisions = model.target.precisions
    for precision in precisions:
        table.add_column(precision.value, justify="right", no_wrap=True)
    rows: dict[tuple[str, str], list[str]] = {}
    for time in model.times:
        cell = f"{time.expected_s:.2f} ({time.limit_s:.2f})"
        rows.setdefault((time.request.name, time.mode.name), []).append(cell)
    for (request, mode), cells in rows.items():
        table.add_row(request, mode, *cells)
    return table


def _size(nbytes: int) -> str:
    """Bytes for people, with no more digits than mean something."""
    return gib(nbytes) if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.0f} MiB"


def as_dict(plan: BoardPlan) -> dict[str, object]:
    """A plan as `--json` writes it."""
    target = plan.target
    recommended = {family.value: plan.recommended(family) for family in PromptFamily}
    return {
        "board": {
            "name": target.name,
            "engine": target.kind.value,
            "memory_bytes": target.memory_bytes,
            "usable_bytes": target.usable_bytes,
            "modes": [{"name": m.name, "int8_per_s": m.int8, "memory_bytes_per_s": m.memory} for m in target.modes],
        },
        "share": plan.share,
        "models": [_model_as_dict(model) for model in plan.models],
        "recommended": {name: None if model is None else model.candidate.key for name, model in recommended.items()},
    }


def _model_as_dict(model: ModelPlan) -> dict[str, object]:
    best = model.best
    return {
        "key": model.candidate.key,
        "name": model.candidate.name,
        "best": None if best is None else best.residency.value,
        "policies": [_policy_as_dict(policy, model) for policy in model.policies],
        "build_bytes": None if best is None else best.build_bytes,
        "build_swap_bytes": model.build_swap_bytes,
        "download_bytes": model.candidate.download_bytes,
        "disk_bytes": model.disk_bytes,
        "objections": list(model.objections),
        "times": [
            {
                "request": time.request.name,
                "mode": time.mode.name,
                "precision": time.precision.value,
                "limit_s": round(time.limit_s, 4),
                "expected_s": round(time.expected_s, 4),
            }
            for time in model.times
        ],
    }


def _policy_as_dict(policy: PolicyPlan, model: ModelPlan) -> dict[str, object]:
    needs = policy_needs(policy) if policy.fits else None
    first = policy.plans[0] if policy.fits else None
    return {
        "policy": policy.residency.value,
        "fits": policy.fits,
        "needed_bytes": policy.needed_bytes,
        "usable_bytes": model.target.usable_bytes,
        "max_tokens": None if first is None else first.max_tokens,
        "slots": None if first is None else first.slots,
        **{part: None if needs is None else getattr(needs, part) for part in _PARTS},
        "problem": None if policy.problem is None else policy.problem.message,
    }
