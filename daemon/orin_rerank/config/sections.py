"""What the settings file holds: a section for each part of the program, whose own settings they are."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - pydantic reads annotations at run time
from typing import Final

from orin_rerank.board.tuning import Tuning
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.lifecycle.first_boot.settings import FirstBootSettings
from orin_rerank.serving.settings import ServerSettings

__all__ = ["SECTIONS", "LogLevel", "LogSettings", "ModelSettings", "Settings", "keys_of"]


class LogLevel(str, enum.Enum):
    """How much the journal says."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model is served, and where what this machine makes of it is kept.

    Attributes:
        bundle: The bundle's folder; None means the one that came with the package.
        state: Where engines are kept; None means this user's own place.
    """

    bundle: Path | None = None
    state: Path | None = None


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What the journal gets.

    Attributes:
        level: Least severe of the records that are written.
    """

    level: LogLevel = LogLevel.INFO


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings.

    Attributes:
        model: Which model.
        engine: How it is computed.
        server: How the daemon is reached, and how much it takes on.
        first_boot: How the machine is prepared before it serves.
        board: Power mode and clocks, which the root service sets.
        log: What the journal gets.
        sources: Where each value that is no default comes from: a file's name and line, or a variable; by section and
            key, such as `server.max_documents`.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    first_boot: FirstBootSettings = field(default_factory=FirstBootSettings)
    board: Tuning = field(default_factory=Tuning)
    log: LogSettings = field(default_factory=LogSettings)
    sources: dict[str, str] = field(default_factory=dict)


SECTIONS: Final[dict[str, type]] = {
    "model": ModelSettings,
    "engine": EngineSettings,
    "server": ServerSettings,
    "first_boot": FirstBootSettings,
    "board": Tuning,
    "log": LogSettings,
}
"""By the name that the file has for it."""


def keys_of(section: str) -> tuple[str, ...]:
    """Names of a section's settings."""
    return tuple(entry.name for entry in dataclasses.fields(SECTIONS[section]))
