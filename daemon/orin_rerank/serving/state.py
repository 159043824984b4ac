"""What the daemon is doing, as GetStatus and the health service tell it."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orin_rerank import __version__
from orin_rerank.errors import UnavailableError
from orin_rerank.v1 import rerank_pb2 as pb

if TYPE_CHECKING:
    from orin_rerank.serving.ports import ServedModel
    from orin_rerank.serving.scheduler import Scheduler
    from orin_rerank.serving.settings import ServerSettings
    from orin_rerank.telemetry.counters import Counters

__all__ = ["DaemonState"]


@dataclass(slots=True)
class DaemonState:
    """The one place where the daemon's state is kept. Changed on the event loop; `detail` from any thread.

    Attributes:
        settings: How the daemon was set up.
        counters: What it has done.
        state: A value of the protocol's `State`.
        detail: What is being done now, or why it failed.
        model: None until it is loaded.
        scheduler: None until the model is loaded.
    """

    settings: ServerSettings
    counters: Counters
    state: pb.State.ValueType = pb.STATE_STARTING
    detail: str = "starting"
    model: ServedModel | None = None
    scheduler: Scheduler | None = None
    _started: float = field(default_factory=time.monotonic)

    def report(self, detail: str) -> None:
        """Says what is being done now."""
        self.detail = detail

    def serving(self) -> tuple[ServedModel, Scheduler]:
        """Returns what a request needs.

        Raises:
            UnavailableError: If the daemon does not serve now; says why.
        """
        if self.state != pb.STATE_SERVING or self.model is None or self.scheduler is None:
            raise UnavailableError(
                f"the daemon is {pb.State.Name(self.state).removeprefix('STATE_').lower()}: {self.detail}"
            )
        return self.model, self.scheduler

    def snapshot(self) -> pb.GetStatusResponse:
        """Returns everything as the protocol has it."""
        counters = self.counters.snapshot()
        response = pb.GetStatusResponse(
            state=self.state,
            detail=self.detail,
            version=__version__,
            uptime_seconds=time.monotonic() - self._started,
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
        )
        if self.scheduler is not None:
            response.queue.requests = self.scheduler.requests
            response.queue.documents = self.scheduler.documents
        if self.model is not None:
            response.model.CopyFrom(_model_status(self.model))
            response.pool.CopyFrom(pb.PoolStatus(**dataclasses.asdict(self.model.runner.pool)))
        return response


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
