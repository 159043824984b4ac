"""The machine that is prepared: what it is, what it shall serve, and by what means."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orin_rerank.board.paths import BoardPaths
from orin_rerank.board.tuning import Tuning
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.engines.store import EngineStore
from orin_rerank.engines.tensorrt.builder import PlanBuilder
from orin_rerank.lifecycle.accelerators import Accelerators
from orin_rerank.lifecycle.compile_target import find_target
from orin_rerank.lifecycle.doctor.probe import MachineProbe, probe_machine
from orin_rerank.lifecycle.first_boot.backoff import Moment
from orin_rerank.lifecycle.first_boot.settings import FirstBootSettings
from orin_rerank.quantization.gate import GateThresholds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.lifecycle.compile_target import CompileTarget

__all__ = ["Place", "is_allowed"]


def is_allowed(node: Path) -> bool:
    """Whether a device may be opened as far as the service manager goes; its owner and mode are another matter.

    systemd turns the names of `DeviceAllow=` into numbers when it starts a service. A device whose driver comes later
    is none of them (EPERM) until the service is started again.
    """
    try:
        os.close(os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno != errno.EPERM
    return True


@dataclass(frozen=True, slots=True)
class Place:
    """A machine, and what it shall serve.

    Attributes:
        bundle: Folder of the full-precision bundle.
        state: Folder for engines, plans and the journal.
        calibration: Folder of the calibration set; None if there is none on this machine.
        evaluation: Folder of the judged set; None likewise.
        engine: How the model is computed.
        settings: How the machine is prepared.
        thresholds: What INT8 has to pass.
        tuning: How the board shall be.
        paths: The board.
        accelerators: What there is beside the processor.
        find_target: Finds what plans are compiled for.
        probe: Tries the GPU in another process.
        is_allowed: Says whether a device may be opened by this process.
        builder: Compiles.
        now: Gives the moment.
        sleep: Waits.
    """

    bundle: Path
    state: Path
    calibration: Path | None
    evaluation: Path | None
    engine: EngineSettings = field(default_factory=EngineSettings)
    settings: FirstBootSettings = field(default_factory=FirstBootSettings)
    thresholds: GateThresholds = field(default_factory=GateThresholds)
    tuning: Tuning = field(default_factory=Tuning)
    paths: BoardPaths = field(default_factory=BoardPaths)
    accelerators: Accelerators = field(default_factory=Accelerators)
    find_target: Callable[[], CompileTarget] = find_target
    probe: Callable[[], MachineProbe] = probe_machine
    is_allowed: Callable[[Path], bool] = is_allowed
    builder: PlanBuilder = field(default_factory=PlanBuilder)
    now: Callable[[], Moment] = Moment.now
    sleep: Callable[[float], None] = time.sleep

    @property
    def engines(self) -> EngineStore:
        """Where INT8 engines are."""
        return EngineStore(self.state)

    @property
    def plans(self) -> PlanStore:
        """Where plans are."""
        return PlanStore(self.state)

    @property
    def engine_digest(self) -> str:
        """Of the engine's settings: others may make another engine."""
        text = json.dumps(dataclasses.asdict(self.engine), default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
