"""Goes through the steps until the machine serves, from wherever it was stopped.

What fails is counted and put off, and the next step is tried: a machine without INT8 serves full precision, one without
plans serves by ONNX Runtime, and `status` says what is the matter. Only where nothing at all can be served is what
failed tried again by the same process; else the next start does it.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import DeviceChoice
from orin_rerank.errors import (
    BuildError,
    DeviceLostError,
    GpuMissingError,
    InternalError,
    OrinRerankError,
    SettingsError,
    StoreBusyError,
    StoreError,
    TensorRtMissingError,
    UnavailableError,
)
from orin_rerank.lifecycle.first_boot.backoff import WAITS_S
from orin_rerank.lifecycle.first_boot.journal import Journal, Outcome, noted
from orin_rerank.lifecycle.first_boot.loading import Loading, wait
from orin_rerank.lifecycle.first_boot.looking import Look
from orin_rerank.lifecycle.first_boot.making import Found, Make, Task, was_refused
from orin_rerank.lifecycle.first_boot.progress import AGAIN, Progress, Step
from orin_rerank.lifecycle.first_boot.settings import PrepareChoice
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orin_rerank.lifecycle.compile_target import CompileTarget
    from orin_rerank.lifecycle.first_boot.place import Place
    from orin_rerank.lifecycle.first_boot.progress import Listener
    from orin_rerank.lifecycle.model import LoadedModel

__all__ = ["Prepared", "StepResult", "prepare", "prepare_and_load"]

_log = logging.getLogger(__name__)

_MAKE_WRITABLE: Final = "free some space there, or make it writable"
_TO_NO_END: Final = {
    Outcome.BEGUN: "it was cut off: the power, the process or its memory went",
    Outcome.STOPPED: "it was stopped before it came to its end; leave the machine on until then",
}


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of a step.

    Attributes:
        step: Which.
        outcome: How it stands now.
        text: What came of it or what is the matter, for people.
        retry_in_s: When it may be tried again; None where there is nothing to try again, or not by itself.
        look_again: Looks once more, where it may be put right by others; returns what it found, or raises what is the
            matter.
    """

    step: Step
    outcome: Outcome
    text: str
    retry_in_s: float | None = None
    look_again: Callable[[], str] | None = field(default=None, compare=False)

    @property
    def problem(self) -> str | None:
        """What is the matter; None if nothing is."""
        return None if self.outcome is Outcome.DONE else f"{self.step.value}: {self.text}"

    def now(self) -> StepResult:
        """The same as it is now, where it may have been put right since."""
        if self.outcome is Outcome.DONE or self.look_again is None:
            return self
        try:
            return StepResult(self.step, Outcome.DONE, self.look_again())
        except OrinRerankError:
            return self


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of all steps.

    Attributes:
        bundle: Digest of the bundle that they were taken for.
        steps: In their order.
    """

    bundle: str
    steps: tuple[StepResult, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What is not as it shall be, for people."""
        return tuple(step.problem for step in self.steps if step.problem is not None)

    def now(self) -> Prepared:
        """The same as it is now, where it may have been put right since."""
        return Prepared(self.bundle, tuple(step.now() for step in self.steps))

    @property
    def retry_in_s(self) -> float | None:
        """When a step may be tried again; None if none may by itself."""
        return min((step.retry_in_s for step in self.steps if step.retry_in_s is not None), default=None)


def prepare(place: Place, listener: Listener, *, again: bool = False) -> Prepared:
    """Takes every step that this machine lacks.

    Args:
        place: The machine.
        listener: Told how it gets on.
        again: Whether to take steps that rest, or were refused, at once.

    Raises:
        BundleError: If the bundle cannot be read.
        UnavailableError: If the listener wants it to end.
        DeviceLostError: If the GPU is lost; only another process can use it.
        StoreError: If what failed shall be tried again, and that cannot be noted.
    """
    bundle = Bundle.open(place.bundle)
    if bundle.manifest.source is not None:
        return Prepared(bundle.digest)  # loading says what is wrong with that
    return _Machine(place, bundle, listener, again=again).run()


def prepare_and_load(place: Place, listener: Listener, on_prepared: Callable[[Prepared], None]) -> LoadedModel:
    """Takes every step that this machine lacks, unless the settings leave that out, then loads what can be served.

    Where nothing can be served it waits, and tries everything again, later each time.

    Args:
        place: The machine.
        listener: Told how it gets on.
        on_prepared: Told what became of the steps, before anything is loaded, and after it.

    Raises:
        SettingsError: If the settings are wrong.
        DeviceLostError: If the GPU is lost; only another process can use it.
        UnavailableError: If the listener wants it to end.
    """
    failures = 0
    while True:
        prepared, loading = None, None
        try:
            prepared = _prepared(place, listener)
            on_prepared(prepared)
            if Bundle.open(place.bundle).digest != prepared.bundle:
                continue  # another one was put in its place meanwhile, and it may have taken hours
            loading = Loading(place, listener, prepared.bundle)
            model = loading.load()
        except (DeviceLostError, SettingsError, InternalError):
            raise
        except OrinRerankError as error:
            if listener.stopping:
                raise
            wait_s = WAITS_S[min(failures, len(WAITS_S) - 1)]
            if prepared is not None and prepared.retry_in_s is not None:
                wait_s = min(wait_s, prepared.retry_in_s)
            failures += 1
            reason = str(error) if loading is None else loading.reason_of(error)
            _log.error("nothing can be served yet", extra=fields(reason=reason, again_in_s=wait_s))
            wait(place, listener, wait_s, reason)
            continue
        if loading.left_out:
            left_out = StepResult(Step.LOAD, Outcome.FAILED, "; ".join(loading.left_out))
            on_prepared(dataclasses.replace(prepared, steps=(*prepared.steps, left_out)))
        return model


def _prepared(place: Place, listener: Listener) -> Prepared:
    if place.settings.prepare is PrepareChoice.OFF:
        return Prepared(Bundle.open(place.bundle).digest)
    return prepare(place, listener)


class _Machine:
    """One run through the steps."""

    def __init__(self, place: Place, bundle: Bundle, listener: Listener, *, again: bool) -> None:
        self._place = place
        self._bundle = bundle
        self._listener = listener
        self._journal = Journal(place.state, place.now)
        if again:
            self._journal.forget()
        self._look = Look(place)
        at_once = dataclasses.replace(place.settings, board_wait_s=0.0)
        self._look_at_once = Look(dataclasses.replace(place, settings=at_once))
        self._make = Make(place, bundle)
        self._target: CompileTarget | str = "the GPU was not looked for"
        self._results: list[StepResult] = []

    def run(self) -> Prepared:
        """Takes the steps in their order."""
        look, at_once, make = self._look, self._look_at_once, self._make
        self._looked(Step.BOARD, look.board)
        self._looked(Step.MEMORY, lambda _: look.memory(self._bundle))
        self._looked(Step.POWER_MODE, look.power_mode, at_once.power_mode)
        self._looked(Step.CLOCKS, look.clocks, at_once.clocks)
        self._looked(Step.GPU, self._find_gpu)
        self._made(Step.CALIBRATE, make.calibration)
        for step in (Step.BUILD_INT8, Step.BUILD_FULL):
            self._made(step, functools.partial(self._plans, step))
        return Prepared(self._bundle.digest, tuple(self._results))

    def _plans(self, step: Step) -> Found | Task:
        return self._make.plans(step, self._target)

    def _find_gpu(self, listener: Listener) -> str:
        self._target = "no GPU can be compiled for"
        try:
            found = self._look.gpu(listener)
        except (TensorRtMissingError, GpuMissingError) as error:
            self._target = str(error)
            if self._look.machine.is_jetson or self._place.engine.device is DeviceChoice.CUDA:
                raise
            return f"none that TensorRT compiles for: {error}"
        self._target = found
        return found if isinstance(found, str) else f"{found.device.name}, {found.runtime}"

    def _looked(
        self, step: Step, look: Callable[[Listener], str], again: Callable[[Listener], str] | None = None
    ) -> None:
        """Takes a step that only looks; `again` does so once more whenever somebody asks what is the matter."""
        self._listener(Progress(step, "looking"))
        try:
            text, outcome = look(self._listener), Outcome.DONE
        except OrinRerankError as error:
            if self._listener.stopping:
                raise
            text, outcome = _said(error), Outcome.FAILED
            before = self._journal.entry(step, {})
            if isinstance(error, DeviceLostError) and (before is None or before.text != text):
                noted(lambda: self._journal.found(step, {}, outcome, text))
                raise  # once; where another process has met with it, too, it goes on without
        noted(lambda: self._journal.found(step, {}, outcome, text))
        look_again = None if again is None else functools.partial(again, self._listener)
        self._result(StepResult(step, outcome, text, look_again=look_again))

    def _made(self, step: Step, find: Callable[[], Found | Task]) -> None:
        self._listener(Progress(step, "looking what there is"))
        try:
            found = find()
        except DeviceLostError:
            raise
        except OrinRerankError as error:
            self._result(StepResult(step, Outcome.FAILED, _said(error)))
            return
        if isinstance(found, Found):
            outcome = Outcome.REFUSED if found.refused else Outcome.DONE
            self._result(StepResult(step, outcome, found.text))
            return
        wait_s = self._journal.wait_s(step, found.key)
        if wait_s > 0:
            self._result(self._put_off(step, found.key, wait_s))
            return
        self._result(self._taken(step, found))

    def _put_off(self, step: Step, key: Mapping[str, str], wait_s: float) -> StepResult:
        entry = self._journal.entry(step, key)
        assert entry is not None
        if entry.outcome is Outcome.REFUSED:
            return StepResult(step, entry.outcome, f"{entry.text}; {AGAIN}")
        text, times = entry.text, entry.failures
        if entry.outcome is not Outcome.FAILED:
            text, times = _TO_NO_END[entry.outcome], entry.attempts
        self._make.tidy(step)  # it may be what the disk lacks, and nobody is about to make it again
        if math.isinf(wait_s):
            return StepResult(step, Outcome.FAILED, f"{text} ({times} times; it rests now); {AGAIN}")
        return StepResult(step, Outcome.FAILED, _later(text, wait_s), wait_s)

    def _taken(self, step: Step, task: Task) -> StepResult:
        """Does it, between two notes in the journal."""
        journal, listener = self._journal, self._listener
        try:
            before = journal.begin(step, task.key)
        except StoreError as error:
            # Without the note it would be taken at every start, for ever, whatever becomes of it.
            return StepResult(step, Outcome.FAILED, f"not done, since it cannot be noted: {error}; {_MAKE_WRITABLE}")
        _log.info("step begins", extra=fields(step=step.value, reason=task.reason))
        try:
            text = task.run(listener, lambda: noted(lambda: journal.got_further(step)))
        except KeyboardInterrupt:
            noted(lambda: journal.end(step, Outcome.STOPPED, "stopped"))
            raise
        except StoreBusyError as error:
            noted(lambda: journal.put_back(step, before))  # what is noted is the other process's
            return StepResult(step, Outcome.FAILED, f"{error}: wait until it is done", WAITS_S[0])
        except (OrinRerankError, OSError) as error:
            outcome, text = self._failed(step, error), _said(error)
            if outcome is Outcome.STOPPED or isinstance(error, DeviceLostError):
                noted(lambda: journal.end(step, outcome, text))
                if outcome is Outcome.STOPPED:
                    raise UnavailableError("the daemon stops") from error
                raise
            _log.warning("step failed", extra=fields(step=step.value, outcome=outcome.value, reason=text))
        else:
            outcome = Outcome.DONE
            _log.info("step done", extra=fields(step=step.value, result=text))
        noted(lambda: journal.end(step, outcome, text))
        wait_s = journal.wait_s(step, task.key)
        if outcome is not Outcome.FAILED or math.isinf(wait_s):
            return StepResult(step, outcome, text)
        return StepResult(step, outcome, _later(text, wait_s), wait_s)

    def _failed(self, step: Step, error: Exception) -> Outcome:
        """How a step stands that raised an error."""
        if isinstance(error, DeviceLostError):
            return Outcome.FAILED
        if was_refused(error, self._make, step, self._target):
            return Outcome.REFUSED
        # Whatever it is: what wants the daemon to end may have ended what it waited for.
        return Outcome.STOPPED if self._listener.stopping else Outcome.FAILED

    def _result(self, result: StepResult) -> None:
        if result.problem is not None:
            _log.warning("not as it shall be", extra=fields(step=result.step.value, reason=result.text))
        self._results.append(result)


def _later(text: str, wait_s: float) -> str:
    when = f"{wait_s:.0f} s from now at the earliest"
    return f"{text}; the next start, or this one if nothing can be served, tries it again, {when}, and {AGAIN}"


def _said(error: OrinRerankError | OSError) -> str:
    """An error with what to do about it."""
    if isinstance(error, BuildError):
        return f"{error}; {error.advice}"
    cause = error if isinstance(error, OSError) else error.__cause__
    is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{error}; free some space there" if is_full else str(error)
