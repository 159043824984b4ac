"""What checks know beside the board's files."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orin_rerank.board.tuning import Tuning
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.lifecycle.doctor.accounts import User, group_name
from orin_rerank.lifecycle.doctor.probe import MachineProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["Context", "DaemonAnswer"]


@dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """What the daemon says of itself.

    Attributes:
        state: Such as `serving`; None if nobody answers.
        detail: What it is doing, or why nobody answers.
        version: The daemon's.
        engine: What computes, such as `tensorrt`; empty until a model is loaded.
        engine_reason: Why it is that engine.
        precision: What it computes in.
        precision_reason: Why.
        problems: What it says is not as it should be, though it may serve.
    """

    state: str | None = None
    detail: str = ""
    version: str = ""
    engine: str = ""
    engine_reason: str = ""
    precision: str = ""
    precision_reason: str = ""
    problems: tuple[str, ...] = ()

    @property
    def serving(self) -> bool:
        """Whether it has a model in memory and answers requests."""
        return self.state == "serving"


@dataclass(frozen=True, slots=True)
class Context:
    """What checks know beside the board's files.

    Attributes:
        version: This program's.
        state: The state folder, where engines are kept.
        bundle: The bundle's folder; None if none is installed.
        bundle_problem: Why not.
        sets: Folders of the calibration and the judged set, as far as they are known, by what they are.
        socket: Where the daemon listens; None where it is asked over TCP.
        settings_file: The settings file; None if there is none.
        settings_problem: What is wrong with the settings; defaults are taken then.
        engine: How the model is to be computed.
        tuning: How the board shall be.
        daemon: What the daemon says.
        daemon_user: As whom the daemon runs, as far as that is known.
        caller: Who asks.
        probe: What of the libraries for a GPU can be used.
        built_s: Before when this program cannot have been running, in seconds since 1970.
        now_s: The time now, likewise.
        sleep: Waits.
        group_name: Gives a group's name.
    """

    version: str
    state: Path
    socket: Path | None
    bundle: Path | None = None
    bundle_problem: str | None = None
    sets: Mapping[str, Path] = field(default_factory=dict)
    settings_file: Path | None = None
    settings_problem: str | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)
    tuning: Tuning = field(default_factory=Tuning)
    daemon: DaemonAnswer = field(default_factory=DaemonAnswer)
    daemon_user: User = field(default_factory=User.current)
    caller: User = field(default_factory=User.current)
    probe: MachineProbe = field(default_factory=MachineProbe)
    built_s: float = 0.0
    now_s: float = field(default_factory=time.time)
    sleep: Callable[[float], None] = time.sleep
    group_name: Callable[[int], str] = group_name

    def as_root(self, command: str) -> str:
        """A command that reads or changes what the daemon keeps, as it is typed here.

        Where the daemon has a user of its own, others would make engines in their own folders with it.
        """
        return command if self.daemon_user.uid == self.caller.uid else f"sudo {command}"
