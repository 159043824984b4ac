"""A context for checks, on trees that stand for boards."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fakes.board import NX_16, BoardSpec, make_board
from orin_rerank.board.paths import BoardPaths
from orin_rerank.engines.cuda_driver import DeviceInfo
from orin_rerank.lifecycle.doctor.accounts import User
from orin_rerank.lifecycle.doctor.context import Context, DaemonAnswer
from orin_rerank.lifecycle.doctor.finding import Finding, Verdict
from orin_rerank.lifecycle.doctor.probe import MachineProbe

MINI = Path(__file__).parents[3] / "engines" / "mini"
APP = User("app", 12345, frozenset((12345,)))
ORIN = DeviceInfo("Orin", (8, 7), integrated=True, total_bytes=16 << 30, driver_version=12060)
WITH_GPU = MachineProbe("tensorrt 10.3.0", None, "2026.1", ORIN, None, "1.23.0", ("CPUExecutionProvider",))
SERVING = DaemonAnswer("serving", "", "0.1.0", "tensorrt", "", "int8-fp16")


def context_of(tmp_path: Path, **changes: Any) -> Context:
    """A machine on which all is well, but for the changes."""
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    known = Context(
        version="0.1.0",
        state=state,
        socket=None,
        bundle=MINI,
        daemon=SERVING,
        daemon_user=User("root", 0, frozenset((0,))),
        caller=User("root", 0, frozenset((0,))),
        probe=WITH_GPU,
        built_s=1000.0,
        now_s=1_790_000_000.0,
        sleep=lambda _: None,
        group_name=lambda gid: {0: "root", 44: "video"}.get(gid, str(gid)),
    )
    return dataclasses.replace(known, **changes)


def board(tmp_path: Path, spec: BoardSpec = NX_16, *, nodes: bool = True) -> BoardPaths:
    """A board with its device nodes, which plain files stand for."""
    paths = make_board(tmp_path / "board", spec)
    for name in ("/dev/nvmap", "/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu") if nodes else ():
        node = paths.at(name)
        node.parent.mkdir(exist_ok=True)
        node.touch()
        node.chmod(0o660)
    return paths


def said(finding: Finding | None) -> tuple[Verdict, str]:
    """What a check that applies found."""
    assert finding is not None
    assert "\n" not in finding.text
    return finding.verdict, finding.text
