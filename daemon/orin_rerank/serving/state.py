"""What the daemon is doing, as GetStatus, WatchStatus and the health service tell it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orin_rerank import __version__
from orin_rerank.errors import UnavailableError
from orin_rerank.v1 import rerank_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orin_rerank.lifecycle.first_boot.progress import Progress
    from orin_rerank.serving.ports import ServedModel
    from orin_rerank.serving.scheduler import Scheduler
    from orin_rerank.serving.settings import ServerSettings
    from orin_rerank.telemetry.counters import Counters

__all__ = ["DaemonState"]

_LONGEST_RETRY_S: Final = 300.0
"""However long it will take: an estimate that is wrong must not keep callers away for hours."""


@dataclass(slots=True)
class DaemonState:
    """The one place where the daemon's state is kept. Changed on the event loop; `report` from any thread.

    Attributes:
        settings: How the daemon was set up.
        counters: What it has done.
        problems: Says what is not as it should be though requests may be served.
        loop: Where those wait who watch; None until the daemon is started.
        state: A value of the protocol's `State`.
        detail: What is being done now, or why it failed.
        progress: The step that this is a part of; None in states that have none.
        heard_s: When something was reported last, in monotonic seconds.
        model: None until it is loaded.
        scheduler: None until the model is loaded.
        version: Grows with every change that watchers are told of.
    """

    settings: ServerSettings
    counters: Counters
    problems: Callable[[], Sequence[str]] = tuple
    loop: asyncio.AbstractEventLoop | None = None
    state: pb.State.ValueType = pb.STATE_STARTING
    detail: str = "starting"
    progress: Progress | None = None
    heard_s: float = field(default_factory=time.monotonic)
    model: ServedModel | None = None
    scheduler: Scheduler | None = None
    version: int = 0
    _since_s: float = field(default_factory=time.monotonic)
    _started_s: float = field(default_factory=time.monotonic)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, state: pb.State.ValueType, detail: str) -> None:
        """Goes over into a state, on the event loop."""
        self.state = state
        self._since_s = time.monotonic()
        self.report(detail)

    def report(self, what: Progress | str) -> None:
        """Says what is being done now."""
        self.heard_s = time.monotonic()
        if isinstance(what, str):
            self.detail = what
            if self.state != pb.STATE_STARTING:
                self.progress = None
        else:
            if self.progress is None or self.progress.step is not what.step:
                self._since_s = self.heard_s
            self.detail, self.progress = what.detail, what
        self.touch()

    @property
    def step_s(self) -> float:
        """For how long it has been at this step, or in this state, in seconds."""
        return time.monotonic() - self._since_s

    def touch(self) -> None:
        """Has watchers look again; called from any thread."""
        self.version += 1
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody watches
                self.loop.call_soon_threadsafe(self._changed.set)

    async def changed(self, version: int) -> None:
        """Waits until there is something newer than a version."""
        while self.version == version:
            self._changed.clear()
            await self._changed.wait()

    @property
    def line(self) -> str:
        """Everything in one line, for systemd."""
        if self.state == pb.STATE_STARTING:
            text = self.detail if self.progress is None else self._step_and_reason(self.progress)
        elif self.state == pb.STATE_SERVING and self.model is not None:
            text = f"serving {self.model.name} in {self.model.info.precision} by {self.model.info.name}"
        else:
            text = f"{self._name}: {self.detail}"
        problems = self.problems()
        return f"{text}; {'; '.join(problems)}" if problems else text

    def serving(self) -> tuple[ServedModel, Scheduler]:
        """Returns what a request needs.

        Raises:
            UnavailableError: If the daemon does not serve now; says why, and when to try again where that is known.
        """
        if self.state != pb.STATE_SERVING or self.model is None or self.scheduler is None:
            progress = self.progress
            what = self.detail if progress is None else str(progress)
            left = None if progress is None else progress.seconds_left
            raise UnavailableError(
                f"the daemon is {self._name}: {what}",
                retry_after_s=None if left is None else min(left, _LONGEST_RETRY_S),
            )
        return self.model, self.scheduler

    def activity(self) -> pb.WatchStatusResponse:
        """Returns what watchers are told."""
        return pb.WatchStatusResponse(state=self.state, activity=self._activity(), problems=self.problems())

    def snapshot(self) -> pb.GetStatusResponse:
        """Returns everything as the protocol has it."""
        counters = self.counters.snapshot()
        response = pb.GetStatusResponse(
            state=self.state,
            detail=self.detail,
            version=__version__,
            uptime_seconds=time.monotonic() - self._started_s,
            queue=pb.QueueStatus(max_documents=self.settings.max_queued_documents),
            counters=pb.Counters(
                requests=counters.requests,
                documents=counters.documents,
                errors=counters.errors,
                packs=counters.packs,
                packed_tokens=counters.packed_tokens,
                images_encoded=counters.images_encoded,
                images_cached=counters.images_cached,
            ),
            activity=self._activity(),
            problems=self.problems(),
        )
        if self.scheduler is not None:
            response.queue.requests = self.scheduler.requests
            response.queue.documents = self.scheduler.documents
            response.queue.picture_bytes = self.scheduler.picture_bytes
        if self.model is not None:
            response.queue.max_picture_bytes = self.model.picture_bytes
            response.model.CopyFrom(_model_status(self.model))
            response.pool.CopyFrom(pb.PoolStatus(**dataclasses.asdict(self.model.runner.pool)))
        return response

    def _activity(self) -> pb.Activity:
        activity = pb.Activity(detail=self.detail, since_seconds=self.step_s)
        if (progress := self.progress) is not None:
            activity.step, activity.reason = progress.step.value, progress.reason
            if progress.fraction is not None:
                activity.fraction = progress.fraction
            if progress.seconds_left is not None:
                activity.seconds_left = progress.seconds_left
        return activity

    @staticmethod
    def _step_and_reason(progress: Progress) -> str:
        text, reason = str(progress), progress.reason
        return f"{text} ({reason})" if reason and reason not in text else text

    @property
    def _name(self) -> str:
        return pb.State.Name(self.state).removeprefix("STATE_").lower()


def _model_status(model: ServedModel) -> pb.ModelStatus:
    return pb.ModelStatus(
        name=model.name,
        bundle_digest=model.digest,
        precision=model.info.precision,
        engine=model.info.name,
        images=model.profile.image is not None,
        max_tokens=model.profile.max_tokens,
        token_budget=model.budget.for_prefix(0),
        precision_reason=model.precision_reason,
        source_digest=model.source or "",
        engine_reason=model.engine_reason,
    )
