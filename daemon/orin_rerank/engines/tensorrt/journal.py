"""What TensorRT says while it runs: to the journal, and into the errors that are raised."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from orin_rerank.engines.cuda_errors import is_device_lost
from orin_rerank.engines.tensorrt.symptoms import lacks_memory
from orin_rerank.errors import DeviceLostError, EngineError
from orin_rerank.telemetry.log import fields

__all__ = ["Journal", "is_of_plan"]

_log = logging.getLogger(__name__)

_REMEMBERED: Final = 8


class Journal:
    """What TensorRT says goes to the project's journal, and its last errors into our own.

    TensorRT takes the first logger of a process for everything in it, so there is one of these.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: deque[str] = deque(maxlen=_REMEMBERED)

    def say(self, severity: str, text: str) -> None:
        """Takes a message; called by TensorRT, from whichever thread."""
        if severity == "WARNING":
            _log.warning("TensorRT warns", extra=fields(text=text))
            return
        _log.error("TensorRT failed", extra=fields(severity=severity, text=text))
        with self._lock:
            self._errors.append(text)

    @property
    def has_errors(self) -> bool:
        """Whether there were errors since the last call of `errors`."""
        return bool(self._errors)

    def errors(self) -> list[str]:
        """The errors since the last call of this."""
        with self._lock:
            errors = list(self._errors)
            self._errors.clear()
        return errors

    def failure(self, what: str, item: str) -> EngineError:
        """The error to raise after a call that did not succeed, by what TensorRT said of it.

        Args:
            what: Such as `a context could not be made`.
            item: The plan.
        """
        errors = self.errors()
        said = "; ".join(errors) or "TensorRT does not say why"
        if any(map(is_device_lost, errors)):
            return DeviceLostError(f"{what}: {said}", item=item)
        if any(map(lacks_memory, errors)):
            return EngineError(f"{what}, since memory ran out: {said}", item=item)
        return EngineError(f"{what}: {said}", item=item)


def is_of_plan(message: str) -> bool:
    """Whether it is the plan that TensorRT does not take; it may be CUDA that fails, and building again helps nobody.

    A plan of another version is `Error Code 1: Serialization (... magicTag == kEXPECTED_MAGIC_TAG failed ...)` or
    `... is not compatible with this version of TensorRT`; what CUDA does not do, `Error Code 1: Cuda Runtime (...)`.
    """
    if is_device_lost(message) or lacks_memory(message):
        return False
    return "Cuda Runtime" not in message or "Serialization" in message or "compatible" in message
