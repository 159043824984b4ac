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
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.durable import part_of, replace_file
from orin_rerank.errors import StoreError
from orin_rerank.lifecycle.first_boot.backoff import MOST_FAILURES, Moment, seconds_to_wait
from orin_rerank.lifecycle.first_boot.progress import Step
from orin_rerank.lifecycle.rungs import Rung
from orin_rerank.plain_files import holding
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import TypeAlias

    Noted: TypeAlias = Step | Rung
    """What there is an entry for."""

__all__ = ["JOURNAL_FILE", "Entry", "Journal", "Outcome", "noted"]

_log = logging.getLogger(__name__)

JOURNAL_FILE: Final = "first-boot.json"
"""In the state folder."""

FORMAT: Final = 1

_LOCK_WAIT_S: Final = 2.0
"""A note takes some milliseconds; somebody who needs seconds for one hangs."""


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
        stops: How often it was stopped meanwhile.
    """

    key: Mapping[str, str]
    outcome: Outcome
    text: str = ""
    failures: int = 0
    moment: Moment = dataclasses.field(default_factory=Moment.now)
    stops: int = 0

    @property
    def attempts(self) -> int:
        """How often in a row it was begun and came to no end."""
        return self.failures + self.stops + (self.outcome is Outcome.BEGUN)


class Journal:
    """The entries of one machine, one for each step, and one for each engine whose loading ended the process.

    Several processes may have one: `orin-rerank prepare` runs beside a daemon. Each change is made to what is on disk
    then.

    Args:
        folder: The state folder; made when first written to.
        now: Gives the moment.
    """

    def __init__(self, folder: Path, now: Callable[[], Moment] = Moment.now) -> None:
        self._file = folder / JOURNAL_FILE
        self._now = now
        self._stamp = self._stamp_on_disk()
        self._entries, self._again = _read(self._file)
        self._begun: dict[Noted, Entry] = {}

    def entry(self, step: Noted, key: Mapping[str, str]) -> Entry | None:
        """What is known of a step for this very key, None if it was never taken for it."""
        found = self._entries.get(step)
        return found if found is not None and found.key == key else None

    @property
    def entries(self) -> Mapping[Noted, Entry]:
        """What is known of each step that was ever taken, for whatever it was taken last."""
        return dict(self._entries)

    def begin(self, step: Noted, key: Mapping[str, str]) -> Entry | None:
        """Notes that a step is about to be taken. If it was cut off before, that counts as a failure.

        Returns:
            What was known of it, for `put_back`.

        Raises:
            StoreError: If that cannot be noted; then it must not be taken.
        """
        with self._changing() as entries:
            there = entries.get(step)
            before = self.entry(step, key) or Entry(key, Outcome.DONE)
            failures = before.failures + (before.outcome is Outcome.BEGUN)
            self._begun[step] = Entry(key, Outcome.BEGUN, "", failures, self._now(), before.stops)
            entries[step] = self._begun[step]
        return there

    def put_back(self, step: Noted, before: Entry | None) -> None:
        """Notes that a step was not begun after all.

        Raises:
            StoreError: If that cannot be noted.
        """
        begun = self._begun.pop(step)
        with self._changing() as entries:
            if entries.get(step) != begun:
                return  # who takes it has noted more since
            del entries[step]
            if before is not None:
                entries[step] = before

    def got_further(self, step: Noted) -> None:
        """Notes that a step did something that the next attempt need not do again: it is no loop.

        Raises:
            StoreError: If that cannot be noted.
        """
        if step in self._entries and self._entries[step].attempts > 1:
            with self._changing() as entries:
                if step in entries:
                    entries[step] = dataclasses.replace(entries[step], failures=0, stops=0)

    def end(self, step: Noted, outcome: Outcome, text: str) -> None:
        """Notes what came of the step that was begun.

        Raises:
            StoreError: If that cannot be noted.
        """
        begun = self._begun.pop(step, None) or self._entries[step]
        with self._changing() as entries:
            # What was forgotten meanwhile counts from here on.
            before = self.entry(step, begun.key) or dataclasses.replace(begun, failures=0, stops=0)
            failures, stops = 0, 0
            if outcome is Outcome.FAILED:
                failures, stops = before.failures + 1, before.stops
            elif outcome is Outcome.STOPPED:
                failures, stops = before.failures, before.stops + 1
            entries[step] = Entry(begun.key, outcome, text, failures, self._now(), stops)

    def cut_off(self, step: Noted, text: str) -> None:
        """Notes that what was begun ended the process, or that the power went meanwhile; counts as a failure.

        Raises:
            StoreError: If that cannot be noted.
        """
        begun, now = self._entries[step], self._now()
        # When the power went is not known, only that it was in an earlier boot.
        moment = now if now.boot_id == begun.moment.boot_id else begun.moment
        with self._changing() as entries:
            entries[step] = Entry(begun.key, Outcome.FAILED, text, begun.failures + 1, moment)

    def drop(self, step: Noted) -> None:
        """Forgets a step.

        Raises:
            StoreError: If that cannot be noted.
        """
        if step in self._entries:
            with self._changing() as entries:
                entries.pop(step, None)

    def stop(self) -> None:
        """Notes that whatever was begun is ended in order, for a process that cannot wait until it is.

        Raises:
            StoreError: If that cannot be noted.
        """
        for step, entry in self.entries.items():
            if entry.outcome is Outcome.BEGUN:
                self.end(step, Outcome.STOPPED, "stopped")

    def found(self, step: Noted, key: Mapping[str, str], outcome: Outcome, text: str) -> None:
        """Notes how a step stands whose failures are not counted; writes only what is new.

        Raises:
            StoreError: If that cannot be noted.
        """
        before = self.entry(step, key)
        if before is None or (before.outcome, before.text) != (outcome, text):
            with self._changing() as entries:
                entries[step] = Entry(key, outcome, text, 0, self._now())

    def wait_s(self, step: Noted, key: Mapping[str, str]) -> float:
        """How long a step is not to be taken again; infinite where it rests, or was refused.

        One that was cut off or stopped is taken up at once, though not for ever: it may be what takes the power or the
        memory, or take longer than the machine is ever on.
        """
        entry = self.entry(step, key)
        if entry is None:
            return 0.0
        if entry.outcome is Outcome.REFUSED:
            return float("inf")
        if entry.outcome in (Outcome.BEGUN, Outcome.STOPPED):
            return float("inf") if entry.attempts >= MOST_FAILURES else 0.0
        return seconds_to_wait(entry.failures, entry.moment, self._now()) if entry.outcome is Outcome.FAILED else 0.0

    def was_forgotten(self) -> bool:
        """Whether somebody has had everything forgotten since this was read."""
        stamp = self._stamp_on_disk()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        return _read(self._file)[1] != self._again

    def forget(self) -> None:
        """Forgets everything, so that all that failed or was refused is tried again at once.

        Raises:
            StoreError: If it cannot be written.
        """
        with self._changing() as entries:
            entries.clear()
            self._again += 1

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[Noted, Entry]]:
        """Lends what is on disk now, to be changed, and writes it; what cannot be written is known here at least."""
        with _held(self._file.parent):
            self._entries, self._again = _read(self._file)
            yield self._entries
            self._write()

    def _stamp_on_disk(self) -> tuple[int, int]:
        """Differs after anybody has written the journal."""
        try:
            status = self._file.stat()
        except OSError:
            return 0, 0
        return status.st_ino, status.st_mtime_ns

    def _write(self) -> None:
        steps = {step.value: _to_value(entry) for step, entry in self._entries.items()}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"format": FORMAT, "again": self._again, "steps": steps}, indent=1)
            replace_file(self._file, text.encode())
        except OSError as error:
            with contextlib.suppress(OSError):  # half a file must not take the last bytes of a disk that is full
                part_of(self._file).unlink(missing_ok=True)
            raise StoreError(f"cannot be written: {error.strerror}", item=str(self._file)) from error


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing here meanwhile.

    Where that cannot be had soon it goes on without: a note that is lost costs a try.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            held.enter_context(holding(folder, _LOCK_WAIT_S))
        yield


def noted(note: Callable[[], object]) -> None:
    """Notes what is only for people, or only saves work; a disk that takes nothing is no reason not to serve."""
    try:
        note()
    except StoreError as error:
        _log.warning("the journal of first boot cannot be written", extra=fields(reason=str(error)))


def _to_value(entry: Entry) -> dict[str, Any]:
    return {**dataclasses.asdict(entry), "key": dict(entry.key), "outcome": entry.outcome.value}


def _read(file: Path) -> tuple[dict[Noted, Entry], int]:
    """Entries on disk, and how often all were forgotten; one that cannot be understood is as good as none."""
    try:
        value = json.loads(file.read_bytes())
        if value["format"] == FORMAT:
            known: dict[str, Noted] = {noted.value: noted for noted in (*Step, *Rung)}
            steps = {known[name]: _entry(entry) for name, entry in value["steps"].items() if name in known}
            return steps, int(value.get("again", 0))
        reason = f"its format is {value['format']}, not {FORMAT}"
    except FileNotFoundError:
        return {}, 0
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
    _log.warning("the journal of first boot is not understood", extra=fields(file=str(file), reason=reason))
    return {}, 0


def _entry(value: dict[str, Any]) -> Entry:
    key = {str(name): str(part) for name, part in value["key"].items()}
    moment = value["moment"]
    return Entry(
        key,
        Outcome(value["outcome"]),
        str(value["text"]),
        int(value["failures"]),
        Moment(_finite(moment["wall_s"]), str(moment["boot_id"]), _finite(moment["boot_s"])),
        int(value.get("stops", 0)),
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no time")
    return number
