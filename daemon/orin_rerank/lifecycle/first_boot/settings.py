"""What a person may set about preparing a machine."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - pydantic reads annotations at run time

from orin_rerank.errors import SettingsError

__all__ = ["FirstBootSettings", "PrepareChoice"]


class PrepareChoice(enum.Enum):
    """Whether the machine is prepared before it serves."""

    AUTO = "auto"
    """What it lacks is made: INT8 where there is none, plans where there is TensorRT."""
    OFF = "off"
    """What is there is served."""


@dataclass(frozen=True, slots=True)
class FirstBootSettings:
    """How a machine is prepared, checked when made.

    Attributes:
        prepare: Whether it is.
        calibration: Folder of the calibration set; None means the one that came with the package.
        evaluation: Folder of the judged set that decides on INT8; None likewise.
        board_wait_s: How long to wait for the root service to set power mode and clocks.
        gpu_wait_s: How long to wait for a Jetson's GPU, which may come up after the daemon.

    Raises:
        SettingsError: If a value is out of its range; the item names it.
    """

    prepare: PrepareChoice = PrepareChoice.AUTO
    calibration: Path | None = None
    evaluation: Path | None = None
    board_wait_s: float = 60.0
    gpu_wait_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("board_wait_s", "gpu_wait_s"):
            if not 0 <= getattr(self, name) <= 3600:
                raise SettingsError("must be from 0 to 3600 seconds", item=name)
