"""How a calibration is shown: the set's card, the plan, and what it took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from orin_rerank.cli.output import counted, snippet
from orin_rerank.graph.scheme import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orin_rerank.lifecycle.ledger import Ledger
    from orin_rerank.quantization.coverage import Coverage, Distribution, Modality
    from orin_rerank.quantization.plan import QuantizationPlan

__all__ = ["coverage_table", "plan_summary", "plan_table", "stages_table"]

_SHOWN_LANGUAGES = 8


def coverage_table(card: Coverage) -> Table:
    """The card of a calibration set."""
    table = Table(box=None, pad_edge=False, show_header=False, title="calibration set", title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    cut = f", {card.truncated} of them cut" if card.truncated else ""
    table.add_row("pairs", f"{card.pairs} of {counted(card.requests, 'query').replace('querys', 'queries')}{cut}")
    table.add_row("queries", _counts(card.queries))
    table.add_row("documents", _counts(card.documents))
    table.add_row("tokens a pair", f"{_spread(card.tokens)}; the model's limit is {card.limit}")
    if card.images is not None:
        table.add_row("pictures", f"{card.image_count}, of {_spread(card.images)} tokens")
    table.add_row("languages", Text(_languages(card.languages)))
    apart = "" if card.told_apart is None else f"; the model tells {card.told_apart:.0%} apart"
    table.add_row("relevant", f"{card.relevant:.0%} of the pairs, by the full-precision model{apart}")
    return table


def plan_table(plan: QuantizationPlan, most: int) -> Table:
    """The places that cost the margins most.

    Args:
        plan: What is shown.
        most: How many places.
    """
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="what INT8 costs, place by place", title_justify="left"
    )
    table.add_column("place", no_wrap=True)
    table.add_column("now")
    table.add_column("shift", justify="right")
    table.add_column("output error", justify="right")
    table.add_column("unsmoothed", justify="right", style="dim")
    table.add_column("strength", justify="right")
    table.add_column("work", justify="right", style="dim")
    ranking = plan.ranking
    for place in ranking[:most]:
        table.add_row(
            place.place,
            Text(
                f"{place.mode.value} by row" if place.by_row else place.mode.value,
                style="green" if place.mode is Mode.INT8 else "yellow",
            ),
            f"{place.margin_shift:.3f}",
            _percent(place.error),
            _percent(place.plain_error),
            "—" if place.strength is None else f"{place.strength:.2f}",
            f"{place.share:.1%}",
        )
    if len(ranking) > most:
        table.caption = f"and {counted(len(ranking) - most, 'cheaper place')}"
        table.caption_justify = "left"
    return table


def plan_summary(plan: QuantizationPlan) -> str:
    """The plan in a line."""
    counts = plan.counts()
    parts = [f"{counts[Mode.INT8]} places in INT8"]
    if counts[Mode.WEIGHTS]:
        parts.append(f"{counts[Mode.WEIGHTS]} stored as INT8")
    if counts[Mode.WIDE]:
        parts.append(f"{counts[Mode.WIDE]} wide")
    return f"{', '.join(parts)}; {1 - plan.wide_share:.1%} of the decoder's work in INT8"


def stages_table(ledger: Ledger) -> Table:
    """What was done, and what that took; stages of one name together."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("stage", "seconds", "pairs", "tokens", "weights read"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for name in dict.fromkeys(stage.name for stage in ledger.stages):
        same = [stage for stage in ledger.stages if stage.name == name]
        pairs, tokens, weights = (sum(getattr(s, key) for s in same) for key in ("pairs", "tokens", "weight_bytes"))
        table.add_row(
            name if len(same) == 1 else f"{name} ({len(same)} times)",
            f"{sum(stage.seconds for stage in same):.1f}",
            f"{pairs:,}" if pairs else "",
            f"{tokens:,}" if tokens else "",
            f"{weights / 1e6:.1f} MB" if weights else "",
        )
    table.add_section()
    table.add_row("all", f"{sum(stage.seconds for stage in ledger.stages):.1f}", style="bold")
    return table


def _counts(counts: Mapping[Modality, int]) -> str:
    return ", ".join(f"{count} {kind.value}" for kind, count in counts.items())


def _languages(languages: Mapping[str, int]) -> str:
    shown = [f"{snippet(name, 20) or 'not stated'} {count}" for name, count in languages.items()]
    more = f", and {len(shown) - _SHOWN_LANGUAGES} more" if len(shown) > _SHOWN_LANGUAGES else ""
    return ", ".join(shown[:_SHOWN_LANGUAGES]) + more


def _spread(values: Distribution) -> str:
    if values.least == values.greatest:
        return str(values.least)
    return f"{values.least} to {values.greatest}, half of them up to {values.median}, 95 % up to {values.p95}"


def _percent(value: float | None) -> str:
    """A relative squared error as the share of the output that is lost."""
    return "—" if value is None else f"{value**0.5:.2%}"
