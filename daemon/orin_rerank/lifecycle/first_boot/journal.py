"""What was begun on this machine, for what, and what came of it; on disk before and after every step.

The journal decides nothing about what a machine has: engines and plans vouch for themselves. It is there so that a step
which fails, or ends the process or the power each time, is not taken for ever, and so that people are told.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.durable import part_of, replace_file
from orin_rerank.errors import StoreError
from orin_rerank.lifecycle.first_boot.backoff import MOST_FAILURES, Moment, seconds_to_wait
from orin_rerank.lifecycle.first_boot.progress import Step
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["JOURNAL_FILE", "Entry", "Journal", "Outcome"]

_log = logging.getLogger(__name__)

JOURNAL_FILE: Final = "first-boot.json"
"""In the state folder."""

FORMAT: Final = 1


class Outcome(str, enum.Enum):
    """How a step stands."""

    BEGUN = "begun"
    """It runs, or whatever ran it was stopped from outside: killed, or without power."""
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    """It came to its end, and what came of it may not be served. The same again would end so again."""
    STOPPED = "stopped"
    """It was asked to stop, and goes on at the next start."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a step.

    Attributes:
        key: What it was taken for: the bundle, the machine, the data.
        outcome: How it stands.
        text: What came of it, or what is the matter, for people.
        failures: How often in a row it failed, or was cut off, for this key and without getting any further.
        moment: When this was noted.
    """

    key: Mapping[str, str]
    outcome: Outcome
    text: str = ""
    failures: int = 0
    moment: Moment = dataclasses.field(default_factory=Moment.now)


class Journal:
    """The entries of one machine, one for each step.

    Args:
        folder: The state folder; made when first written to.
        now: Gives the moment.
    """

    def __init__(self, folder: Path, now: Callable[[], Moment] = Moment.now) -> None:
        self._file = folder / JOURNAL_FILE
        self._now = now
        self._entries = _read(self._file)

    def entry(self, step: Step, key: Mapping[str, str]) -> Entry | None:
        """What is known of a step for this very key, None if it was never taken for it."""
        found = self._entries.get(step)
        return found if found is not None and found.key == key else None

    @property
    def entries(self) -> Mapping[Step, Entry]:
        """What is known of each step that was ever taken, for whatever it was taken last."""
        return dict(self._entries)

    def begin(self, step: Step, key: Mapping[str, str]) -> None:
        """Notes that a step is about to be taken. If it was cut off before, that counts as a failure.

        Raises:
            StoreError: If that cannot be noted; then it must not be taken.
        """
        before = self.entry(step, key)
        failures = 0 if before is None else before.failures
        if before is not None and before.outcome is Outcome.BEGUN:
            failures += 1
        self._note(step, Entry(key, Outcome.BEGUN, "", failures, self._now()))

    def got_further(self, step: Step) -> None:
        """Notes that a step did something that the next attempt need not do again: it is no loop.

        Raises:
            StoreError: If that cannot be noted.
        """
        before = self._entries[step]
        if before.failures:
            self._note(step, dataclasses.replace(before, failures=0))

    def end(self, step: Step, outcome: Outcome, text: str) -> None:
        """Notes what came of the step that was begun.

        Raises:
            StoreError: If that cannot be noted.
        """
        before = self._entries[step]
        failures = {Outcome.FAILED: before.failures + 1, Outcome.STOPPED: before.failures}.get(outcome, 0)
        self._note(step, Entry(before.key, outcome, text, failures, self._now()))

    def stop(self) -> None:
        """Notes that whatever was begun is ended in order, for a process that cannot wait until it is.

        Raises:
            StoreError: If that cannot be noted.
        """
        for step, entry in self._entries.items():
            if entry.outcome is Outcome.BEGUN:
                self._note(step, dataclasses.replace(entry, outcome=Outcome.STOPPED, text="stopped"))

    def found(self, step: Step, key: Mapping[str, str], outcome: Outcome, text: str) -> None:
        """Notes what a step that changes nothing found; writes only what is new.

        Raises:
            StoreError: If that cannot be noted.
        """
        before = self.entry(step, key)
        if before is None or (before.outcome, before.text) != (outcome, text):
            self._note(step, Entry(key, outcome, text, 0, self._now()))

    def wait_s(self, step: Step, key: Mapping[str, str]) -> float:
        """How long a step is not to be taken again; infinite where it rests, or was refused.

        One that was cut off is taken up at once, though not for ever: it may be what takes the power or the memory.
        """
        entry = self.entry(step, key)
        if entry is None:
            return 0.0
        if entry.outcome is Outcome.REFUSED:
            return float("inf")
        if entry.outcome is Outcome.BEGUN:
            return float("inf") if entry.failures + 1 >= MOST_FAILURES else 0.0
        return seconds_to_wait(entry.failures, entry.moment, self._now()) if entry.outcome is Outcome.FAILED else 0.0

    def forget(self) -> None:
        """Forgets everything, so that all that failed or was refused is tried again at once.

        Raises:
            StoreError: If it cannot be written.
        """
        self._entries = {}
        self._write()

    def _note(self, step: Step, entry: Entry) -> None:
        self._entries[step] = entry
        self._write()

    def _write(self) -> None:
        steps = {step.value: _to_value(entry) for step, entry in self._entries.items()}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, json.dumps({"format": FORMAT, "steps": steps}, indent=1).encode())
        except OSError as error:
            with contextlib.suppress(OSError):  # half a file must not take the last bytes of a disk that is full
                part_of(self._file).unlink(missing_ok=True)
            raise StoreError(f"cannot be written: {error.strerror}", item=str(self._file)) from error


def _to_value(entry: Entry) -> dict[str, Any]:
    return {**dataclasses.asdict(entry), "key": dict(entry.key), "outcome": entry.outcome.value}


def _read(file: Path) -> dict[Step, Entry]:
    """What is on disk; a journal that cannot be understood is as good as none, for it only saves work."""
    try:
        value = json.loads(file.read_bytes())
        if value["format"] == FORMAT:
            known = {step.value for step in Step}
            return {Step(name): _entry(entry) for name, entry in value["steps"].items() if name in known}
        reason = f"its format is {value['format']}, not {FORMAT}"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
    _log.warning("the journal of first boot is not understood", extra=fields(file=str(file), reason=reason))
    return {}


def _entry(value: dict[str, Any]) -> Entry:
    key = {str(name): str(part) for name, part in value["key"].items()}
    moment = Moment(**value["moment"])
    return Entry(key, Outcome(value["outcome"]), str(value["text"]), int(value["failures"]), moment)
