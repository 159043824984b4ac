"""The board for people and for programs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from orin_rerank.board.power import total_watts
from orin_rerank.board.snapshot import fastest_mode
from orin_rerank.cli.output import counted, snippet

if TYPE_CHECKING:
    from orin_rerank.board.clocks import Clock
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.snapshot import BoardSnapshot
    from orin_rerank.board.thermal import Zone
    from orin_rerank.board.tuning import TuningOutcome

__all__ = ["board_as_dict", "board_table"]

_CLOSE_C = 10.0
"""Degrees below its limit from which a zone is shown in another colour."""


def board_as_dict(paths: BoardPaths, snapshot: BoardSnapshot, outcome: TuningOutcome | None) -> dict[str, object]:
    """Everything, as `--json` writes it."""
    board, modes = snapshot.board, snapshot.modes
    return {
        "board": {
            **dataclasses.asdict(board),
            "kind": None if board.kind is None else board.kind.key,
            "release": None if board.release is None else str(board.release),
            "jetpack": None if board.release is None else board.release.jetpack,
        },
        "modes": [] if modes is None else [dataclasses.asdict(mode) for mode in modes.modes.values()],
        "modes_problem": snapshot.modes_problem,
        "mode": None if snapshot.mode is None else dataclasses.asdict(snapshot.mode),
        "fastest": None if modes is None else fastest_mode(paths, board, modes).name,
        "clocks": dataclasses.asdict(snapshot.clocks),
        "clocks_locked": snapshot.clocks.locked,
        "zones": [dataclasses.asdict(zone) for zone in snapshot.zones],
        "throttled": snapshot.throttled,
        "over_current": None if snapshot.over_current is None else dict(snapshot.over_current.events),
        "rails": [{**dataclasses.asdict(rail), "watts": rail.watts} for rail in snapshot.rails],
        "watts": _watts(snapshot),
        "gpu_load": snapshot.gpu_load,
        "fan": snapshot.fan,
        "memory": None if snapshot.memory is None else dataclasses.asdict(snapshot.memory),
        "tuning": None if outcome is None else dataclasses.asdict(outcome),
        "jtop": None if snapshot.jtop is None else dataclasses.asdict(snapshot.jtop),
    }


def board_table(paths: BoardPaths, snapshot: BoardSnapshot, outcome: TuningOutcome | None) -> Table:
    """Everything, for a person."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    board = snapshot.board
    name = board.model if board.kind is None else f"{board.kind.name} ({board.part})"
    table.add_row("board", Text(snippet(name, 200)))
    if board.doubt is not None:
        table.add_row("doubt", Text(board.doubt, style="yellow"))
    if board.release is not None:
        jetpack = f"JetPack {board.release.jetpack}, " if board.release.jetpack else ""
        old = "" if board.release.supported else "; JetPack 6.1 is the oldest that will do"
        table.add_row("system", f"{jetpack}Jetson Linux {board.release}{old}")
    elif snapshot.jtop is not None and snapshot.jtop.jetpack is not None:
        table.add_row("system", Text(f"JetPack {snippet(snapshot.jtop.jetpack, 40)}, as jetson-stats says"))
    if snapshot.modes is not None or snapshot.modes_problem is not None:
        table.add_row("power mode", _mode(paths, snapshot))
    table.add_row("clocks", _clocks(snapshot))
    table.add_row("heat", _heat(snapshot))
    if snapshot.rails:
        each = ", ".join(f"{rail.name} {rail.watts:.1f} W" for rail in snapshot.rails)
        table.add_row("power", f"{_watts(snapshot):.1f} W ({each})")
    if snapshot.gpu_load is not None:
        table.add_row("GPU", f"{snapshot.gpu_load:.0%} busy")
    if snapshot.fan is not None:
        table.add_row("fan", f"{snapshot.fan:.0%}")
    if snapshot.memory is not None:
        memory = snapshot.memory
        swap = f", {memory.swap_total / 2**30:.1f} GiB of swap" if memory.swap_total else ""
        table.add_row("memory", f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free{swap}")
    if outcome is not None:
        done = "; ".join(outcome.changed) or "nothing had to be changed"
        table.add_row("last set", Text(outcome.problem or done, style="yellow" if outcome.problem else ""))
    return table


def _watts(snapshot: BoardSnapshot) -> float | None:
    """What the whole board draws, by its own rails, else as jetson-stats reckons it."""
    if snapshot.jtop is not None and snapshot.rails == list(snapshot.jtop.rails):
        return snapshot.jtop.watts
    return total_watts(snapshot.rails)


def _mode(paths: BoardPaths, snapshot: BoardSnapshot) -> Text:
    if snapshot.modes is None or snapshot.mode is None:
        return Text(snapshot.modes_problem or "not known", style="yellow")
    fastest = fastest_mode(paths, snapshot.board, snapshot.modes)
    name = snapshot.mode.name or str(snapshot.mode.id)
    if snapshot.mode.id == fastest.id:
        return Text(f"{name}, the fastest")
    others = counted(len(snapshot.modes.modes), "mode")
    return Text(f"{name}; of {others} {fastest.name} is the fastest", style="yellow")


def _clocks(snapshot: BoardSnapshot) -> Text:
    """A line for each; a whole line would not fit into a terminal."""
    clocks = snapshot.clocks
    lines = []
    if clocks.gpu is not None:
        lines.append("locked" if clocks.locked else "not locked")
    if clocks.cpus:
        lines.append(f"{counted(len(clocks.cpus), 'core')} {_range(next(iter(clocks.cpus.values())))}")
    if clocks.gpu is not None:
        lines.append(f"GPU {_range(clocks.gpu)}")
    if clocks.emc is not None and clocks.emc.current is not None:  # its lowest says nothing
        load = snapshot.jtop.emc_load if snapshot.jtop is not None else None
        busy = "" if load is None else f", {load:.0%} busy"
        below = f" of {clocks.emc.highest / 1e6:.0f}" if clocks.emc.current < clocks.emc.highest else ""
        lines.append(f"memory {clocks.emc.current / 1e6:.0f}{below} MHz{busy}")
    return Text("\n".join(lines) or "not known")


def _range(clock: Clock) -> str:
    if clock.locked:
        return f"{clock.highest / 1e6:.0f} MHz"
    return f"{clock.lowest / 1e6:.0f} to {clock.highest / 1e6:.0f} MHz"


def _heat(snapshot: BoardSnapshot) -> Text:
    text = Text()
    for zone in snapshot.zones:
        if zone.celsius is not None:
            text.append(f"{', ' if text else ''}{zone.name} ")
            text.append(f"{zone.celsius:.0f} °C", style="red" if _is_close(zone) else "")
    if snapshot.throttled:
        text.append(f"; slowed down for heat: {', '.join(snapshot.throttled)}", style="red")
    return text or Text("not known")


def _is_close(zone: Zone) -> bool:
    return zone.headroom is not None and zone.headroom < _CLOSE_C
