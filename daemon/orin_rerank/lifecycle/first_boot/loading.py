"""Loads what can be served, though loading may end the process again and again.

The kernel kills what takes too much memory, drivers crash, GPUs are lost, a board at full load browns out. Then the
service manager starts the daemon anew, and without memory it would take the same road down for ever. So every rung of
the ladder is noted before it is tried. One that ended the process is tried again, after a minute and after five, for
what was wrong may have gone; from the third time on it is left out for half an hour, then for two, and the next rung
serves: full precision, or the processor. It is tried again at the first start after that.
"""

from __future__ import annotations

import functools
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from orin_rerank import __version__
from orin_rerank.errors import DeviceLostError, EngineError, InternalError, OrinRerankError
from orin_rerank.lifecycle.first_boot.backoff import WAITS_S, seconds_to_wait
from orin_rerank.lifecycle.first_boot.journal import Journal, Outcome, noted
from orin_rerank.lifecycle.first_boot.progress import AGAIN, Progress, Step, span
from orin_rerank.lifecycle.rungs import Rung
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from orin_rerank.lifecycle.first_boot.journal import Entry
    from orin_rerank.lifecycle.first_boot.place import Place
    from orin_rerank.lifecycle.first_boot.progress import Listener
    from orin_rerank.lifecycle.model import LoadedModel

__all__ = ["LEFT_OUT_AFTER", "Loading", "wait"]

_log = logging.getLogger(__name__)

LEFT_OUT_AFTER: Final = 3
"""So often in a row it ended the process, and the next rung is tried."""

_TICK_S: Final = 1.0
_PROCESS_ENDED: Final = "the process ended while it was loaded; memory ran out, perhaps: `journalctl -k` may say so"
_POWER_WENT: Final = "the power went, or the machine stopped, while it was loaded"


class Loading:
    """One attempt at loading.

    Args:
        place: The machine.
        listener: Told how it gets on.
        bundle: Digest of the bundle.
    """

    def __init__(self, place: Place, listener: Listener, bundle: str) -> None:
        self._place = place
        self._listener = listener
        self._key: Mapping[str, str] = {"version": __version__, "bundle": bundle, "settings": place.engine_digest}
        self._left_out: list[str] = []

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not tried since it ended the process before, for people."""
        return tuple(self._left_out)

    def reason_of(self, error: OrinRerankError) -> str:
        """Why nothing can be served, for people: the last error, and what was not tried."""
        said = "; ".join(self._left_out)
        return said if said.endswith(error.message) else "; ".join((*self._left_out, str(error)))

    def load(self) -> LoadedModel:
        """Loads the first rung that can be had and is not left out.

        Raises:
            OrinRerankError: As `load_model`.
        """
        place, listener = self._place, self._listener
        self._count_cut_off()
        noted(lambda: self._journal.begin(Step.LOAD, self._key))
        try:
            model = load_model(
                place.bundle,
                place.engine,
                lambda detail: listener(Progress(Step.LOAD, detail)),
                store=place.engines,
                accelerators=place.accelerators,
                attempt=self._attempt,
            )
        except OrinRerankError as error:
            outcome, text = (Outcome.STOPPED, "stopped") if listener.stopping else (Outcome.FAILED, str(error))
            noted(lambda: self._journal.found(Step.LOAD, self._key, outcome, text))
            raise
        text = f"{model.info.precision} by {model.info.name}"
        noted(lambda: self._journal.found(Step.LOAD, self._key, Outcome.DONE, text))
        return model

    @property
    def _journal(self) -> Journal:
        """As it is on disk now: `orin-rerank prepare --again` may have been called meanwhile."""
        return Journal(self._place.state, self._place.now)

    def _count_cut_off(self) -> None:
        """Counts a rung that was being tried when a process before this one ended."""
        now, journal = self._place.now(), self._journal
        for rung in Rung:
            entry = journal.entry(rung, self._key)
            if entry is not None and entry.outcome is Outcome.BEGUN:
                text = _PROCESS_ENDED if entry.moment.boot_id == now.boot_id else _POWER_WENT
                _log.error("cut off", extra=fields(rung=rung.value, reason=text, times=entry.failures + 1))
                noted(functools.partial(journal.cut_off, rung, text))

    @contextmanager
    def _attempt(self, rung: Rung) -> Iterator[None]:
        """Notes that a rung is tried, and whether that ends the process.

        Raises:
            EngineError: If it ended it too often to be tried now.
        """
        self._wait_for(rung)
        noted(lambda: self._journal.begin(rung, self._key))
        try:
            yield
        except BaseException as error:
            self._note_end(rung, error)
            raise
        noted(lambda: self._journal.drop(rung))

    def _note_end(self, rung: Rung, error: BaseException) -> None:
        """Notes how a rung ended that was not loaded."""
        is_handled = isinstance(error, OrinRerankError) and not isinstance(error, (DeviceLostError, InternalError))
        journal = self._journal
        if is_handled and not self._listener.stopping:
            noted(lambda: journal.drop(rung))  # the ladder goes on in this very process
        elif journal.entry(rung, self._key) is not None:  # else it could not be noted that it was begun
            is_asked = is_handled or not isinstance(error, Exception)
            outcome, text = (Outcome.STOPPED, "stopped") if is_asked else (Outcome.FAILED, _named(error))
            noted(lambda: journal.end(rung, outcome, text))

    def _wait_for(self, rung: Rung) -> None:
        """Waits until a rung may be tried.

        Raises:
            EngineError: If that is too long.
        """
        while (entry := self._journal.entry(rung, self._key)) is not None and (wait_s := self._wait_s(entry)) > 0:
            times = f"{entry.failures} times in a row" if entry.failures > 1 else "once"
            if entry.failures >= LEFT_OUT_AFTER:
                # What is served by another rung may be so for days: it is no use to say how long from now.
                when = f"a start {span(_total_wait_s(entry))} after that, or later, tries it again"
                said = f"left out: {entry.text} ({times}); {when}, and the next one after `orin-rerank prepare --again`"
                self._left_out.append(f"{rung} is {said}")
                raise EngineError(said)
            reason = f"{rung}: {entry.text} ({times}); {AGAIN}"
            self._listener(Progress(Step.WAIT, "what ended the process is tried again", None, wait_s, reason))
            self._place.sleep(min(_TICK_S, wait_s))

    def _wait_s(self, entry: Entry) -> float:
        """How long a rung is not to be tried."""
        now = self._place.now()
        if entry.outcome is not Outcome.FAILED:
            return 0.0
        if entry.failures < LEFT_OUT_AFTER and entry.moment.boot_id != now.boot_id:
            return 0.0  # the power went, which is nobody's fault, or a person has started the machine again
        # Nothing rests here, and it may be what takes the power: only what has passed for certain counts.
        return seconds_to_wait(min(entry.failures, len(WAITS_S)), entry.moment, now, unknown_s=now.boot_s)


def _total_wait_s(entry: Entry) -> float:
    """How long a rung is not to be tried after it ended the process."""
    return WAITS_S[min(entry.failures, len(WAITS_S)) - 1]


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def wait(place: Place, listener: Listener, seconds: float, reason: str) -> None:
    """Waits before everything is tried again, or until somebody calls `orin-rerank prepare --again`.

    Args:
        place: The machine.
        listener: Told; may end it.
        seconds: How long.
        reason: Why nothing can be served, for people.

    Raises:
        UnavailableError: If the listener wants it to end.
    """
    journal = Journal(place.state, place.now)
    while seconds > 0 and not journal.was_forgotten():
        listener(Progress(Step.WAIT, "nothing can be served; what failed is tried again", None, seconds, reason))
        place.sleep(min(_TICK_S, seconds))
        seconds -= _TICK_S
