"""`orin-rerank engines`: what models, INT8 engines and compiled plans this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import BundleOption, ConfigOption, JsonOption  # noqa: TC001 - typer reads annotations at run time

if TYPE_CHECKING:
    from rich.table import Table

    from orin_rerank.lifecycle.inventory import Item

__all__ = ["engines"]


def engines(
    *,
    bundle: BundleOption = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="First remove plans of bundles that are not where they were compiled from.")
    ] = False,
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> int:
    """List the bundle, the INT8 engines and the compiled plans of this machine.

    Each stands below what it was made from, with its size, the beginning of its digest or key, what it computes in,
    whether INT8 passed its gate (the engine on the processor, its plans on the GPU), and of plans what they are for.
    Of each the one in service comes first, then the one before it, which is kept. Files are not compared with their
    digests here; whoever loads an engine does that.

    `orin-rerank build` and `calibrate` remove plans that nobody can want again. --prune removes those too whose bundle
    was deleted, moved, or is on a drive that is not there now; other bundles than the one in use may have such.

    For example:

        orin-rerank engines
        orin-rerank engines --json | jq '.engines[] | select(.kind == "plans").key'

    --json writes {"state", "removed", "engines"}; each engine has {"kind", "folder", "digest", "made_from", "name",
    "precisions", "bytes", "current", "gate", "key", "problem"}. "kind" is bundle, int8 or plans; the digest of plans is
    their key's.
    """
    import dataclasses

    from orin_rerank.cli.bundles import bundle_of
    from orin_rerank.cli.configured import settings_of, state_folder
    from orin_rerank.cli.output import console, print_json
    from orin_rerank.cli.owner import become_owner
    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.plan_store import PlanStore
    from orin_rerank.engines.store import EngineStore
    from orin_rerank.errors import BundleError
    from orin_rerank.lifecycle.inventory import take_inventory
    from orin_rerank.lifecycle.plan_cleaning import remove_stale_plans

    settings = settings_of(config)
    named = bundle or settings.model.bundle
    state = state_folder(settings)
    if prune:
        become_owner(state)
    try:
        opened = Bundle.open(bundle_of(named))
    except BundleError:
        if named is not None:
            raise
        opened = None  # none is installed; there may be engines all the same
    stores = EngineStore(state), PlanStore(state)
    removed = []
    if prune:
        keep = [] if opened is None else [opened.digest]
        removed = remove_stale_plans(stores[1], stores[0], keep=keep, missing=True)
    items = take_inventory(opened, *stores)
    if json_output:
        removals = [dataclasses.asdict(one) for one in removed]
        print_json({"state": str(state), "removed": removals, "engines": [item.as_dict() for item in items]})
        return ExitCode.OK
    for one in removed:
        console().print(str(one), markup=False, soft_wrap=True)
    if items:
        console().print(_table(items))
    else:
        console().print(f"nothing is here; INT8 engines and plans are kept in {state}", markup=False, soft_wrap=True)
    return ExitCode.OK


def _table(items: list[Item]) -> Table:
    """The inventory as a tree."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what", overflow="ellipsis", no_wrap=True, max_width=20)
    table.add_column("digest", no_wrap=True)
    table.add_column("MB", justify="right", no_wrap=True)
    table.add_column("precision", max_width=10)
    table.add_column("state", overflow="fold")
    depths: dict[str | None, int] = {None: -1}
    for item in items:
        depth = depths[item.digest] = depths.get(item.made_from, 0) + 1
        state, style = _state(item)
        table.add_row(
            Text("  " * depth + _what(item), style="" if item.current else "dim"),
            item.digest[:12] or "—",
            f"{item.bytes / 1e6:,.1f}" if item.bytes else "—",
            ", ".join(item.precisions),
            Text(state, style=style),
        )
    return table


def _what(item: Item) -> str:
    """What an item is, for a person."""
    from orin_rerank.cli.output import snippet
    from orin_rerank.lifecycle.inventory import Kind

    if item.kind is Kind.BUNDLE:
        return snippet(item.name or "bundle", 40)
    return "INT8 engine" if item.kind is Kind.INT8 else "plans"


def _state(item: Item) -> tuple[str, str]:
    """What else there is to know of an item, and its colour."""
    from orin_rerank.cli.output import snippet

    before = "" if item.current else "the one before; "
    if item.problem is not None:
        return f"{before}cannot be read: {snippet(item.problem, 200)}", "red"
    said, style = [], ""
    if item.gate is not None:
        said.append(f"gate: {snippet(item.gate, 200)}")
        style = "green" if item.gate == "passed" and item.current else "yellow"
    if item.key is not None:
        key = item.key
        said.append(snippet(f"{key.runtime}, {key.gpu} ({key.compute_capability}), {key.platform}", 200))
    return before + "; ".join(said), style
