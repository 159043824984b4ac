"""What SIGHUP takes over of settings that have changed, and what waits for a restart."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.config.sections import SECTIONS, keys_of
from orin_rerank.telemetry import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.config.sections import Settings
    from orin_rerank.serving.settings import ServerSettings

__all__ = ["RELOADED", "Reloading"]

_log = logging.getLogger(__name__)

RELOADED: Final = (
    "log.level",
    "server.drain_s",
    "server.max_documents",
    "server.max_queued_bytes",
    "server.max_queued_documents",
)
"""What can change while the daemon runs."""


class Reloading:
    """Settings that are read again.

    Args:
        settings: Those that the daemon was started with.
        server: The same of the server, as it was started.
        read: Reads them again.
    """

    def __init__(self, settings: Settings, server: ServerSettings, read: Callable[[], Settings]) -> None:
        self._started = settings
        self._server = server
        self._read = read

    def __call__(self) -> ServerSettings:
        """Reads them, takes over the journal's level, and returns the server's.

        Raises:
            SettingsError: If anything is wrong; then nothing is taken over.
        """
        fresh = self._read()
        changed = [
            f"{section}.{key}"
            for section in SECTIONS
            for key in keys_of(section)
            if _value(fresh, section, key) != _value(self._started, section, key)
        ]
        waits = [name for name in changed if name not in RELOADED]
        log.configure(fresh.log.level.value)
        keys = [name.partition(".")[2] for name in RELOADED if name.startswith("server.")]
        self._server = dataclasses.replace(self._server, **{key: getattr(fresh.server, key) for key in keys})
        _log.info("settings read again", extra=log.fields(restart_needed_for=", ".join(waits) or None))
        return self._server


def _value(settings: Settings, section: str, key: str) -> Any:
    return getattr(getattr(settings, section), key)
