"""Between the handlers on the event loop and the threads that run the engine.

Handlers admit a request, feed its documents as they are encoded, and await its outcome. An engine thread takes the next
pack out of the queue itself, the moment its last one is done: nothing has to pass through the event loop in between, a
busy loop does not starve the engine, and what a pack holds is decided as late as it can be, so that a caller who left
or a small request that came in counts at once. There are as many engine threads as the engine has slots, so that one
pack is prepared while another runs; later documents are encoded on the encoders' threads meanwhile.

Every admitted request ends in exactly one outcome: its scores, an error, or `withdraw` by its own handler.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from orin_rerank.errors import DeadlineError, DeviceLostError, InternalError, OrinRerankError
from orin_rerank.serving.admission import Admission, open_documents
from orin_rerank.serving.fair_queue import FairQueue, part_of, tags_of
from orin_rerank.serving.job import Job
from orin_rerank.serving.lookahead import Lookahead
from orin_rerank.serving.pulse import Pulse, Pulses
from orin_rerank.serving.throughput import Throughput
from orin_rerank.telemetry.log import fields

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from orin_rerank.engines.runner import PackResult
    from orin_rerank.packing.pack import Pack
    from orin_rerank.prompt.encoded import EncodedSegment
    from orin_rerank.serving.ports import ServedModel
    from orin_rerank.telemetry.counters import Counters

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)


class Scheduler:
    """The queue and the engine threads' loop; what may come in, `admission` says, and what is encoded, `lookahead`.

    Args:
        model: What runs the packs.
        max_queued_documents: Documents that may wait or run; a larger request is taken if it is alone.
        max_queued_bytes: The same for the messages' size.
        counters: Told of every pack.
        loop: The handlers' event loop.
        on_crash: Told on the loop what ended the engine threads' work, before they have ended: one may hang.
        encoder_threads: Pieces of requests that are encoded at a time.
        first_pack_s: How long a pack may take before any has been measured.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        model: ServedModel,
        *,
        max_queued_documents: int,
        max_queued_bytes: int,
        counters: Counters,
        loop: asyncio.AbstractEventLoop,
        on_crash: Callable[[BaseException], None] = lambda _: None,
        encoder_threads: int = 2,
        first_pack_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._counters = counters
        self._loop = loop
        self._on_crash = on_crash
        self._clock = clock
        self._wake = threading.Condition()
        self._queue = FairQueue(
            model.budget,
            max_tokens=model.info.max_tokens,
            max_documents=model.info.max_documents,
            known=model.runner.knows,
        )
        self._lookahead = Lookahead(self._queue, model.picture_bytes, encoder_threads + 1)
        self._throughput = Throughput()
        self._admission = Admission(
            max_queued_documents=max_queued_documents,
            max_queued_bytes=max_queued_bytes,
            throughput=self._throughput,
            clock=clock,
        )
        self._pulses = Pulses(model.info.slots, first_pack_s)
        self._jobs: set[Job] = set()
        self._stopped: Callable[[], OrinRerankError] | None = None

    # On the event loop.

    @property
    def requests(self) -> int:
        """Requests that wait or run."""
        return len(self._jobs)

    @property
    def documents(self) -> int:
        """Documents that wait or run."""
        with self._wake:
            return open_documents(self._jobs)

    @property
    def picture_bytes(self) -> int:
        """Memory of decoded pictures that wait or run, and what those that are being decoded may take."""
        return self._lookahead.held_bytes

    def admit(self, documents: int, *, message_bytes: int = 0, deadline: float | None = None) -> Job:
        """Reserves places for a request.

        Args:
            documents: How many it has.
            message_bytes: Size of its message.
            deadline: On the scheduler's clock.

        Raises:
            OverloadedError: If there is no room; says when there will be.
            DeadlineError: If the deadline has passed.
            OrinRerankError: Why the scheduler has stopped, if it has.
        """
        self._admission.check_deadline(deadline)
        with self._wake:
            if self._stopped is not None:
                raise self._stopped()
            self._admission.check_room(self._jobs, documents, message_bytes)
            job = Job(documents, message_bytes, deadline, self._loop.create_future())
            self._jobs.add(job)
            return job

    def feed(self, job: Job, prefix: EncodedSegment, documents: tuple[EncodedSegment, ...]) -> None:
        """Hands over the next documents of an admitted request, in its order.

        Raises:
            DeadlineError: If the deadline has passed or, by the engine's measured speed, cannot be met.
        """
        self._admission.check_deadline(job.deadline)
        with self._wake:
            if job.outcome.done():
                return
            if job not in self._queue:
                mean = sum(len(document) for document in documents) / max(len(documents), 1)
                tokens = round((0 if self._model.runner.knows(prefix) else len(prefix)) + mean * job.documents)
                ahead = self._queue.tokens_ahead(self._queue.tag_for(tokens))
                self._admission.check_feasible(job.deadline, ahead + tokens)
                self._queue.add(job, tokens)
            job.add(prefix, documents)
            self._lookahead.encoded(job)
            self._wake.notify_all()

    async def turn(self, job: Job, *, tokens: int = 0, picture_bytes: int = 0) -> None:
        """Waits until the next piece of the job should be encoded, or the job has ended.

        Args:
            job: Whose.
            tokens: About what all of its documents will take.
            picture_bytes: Most memory that the pictures of the piece will take.
        """
        if job.outcome.done():
            return
        turn = self._loop.create_future()
        with self._wake:
            self._lookahead.ask(job, tokens, picture_bytes, turn)
        await turn

    def withdraw(self, job: Job) -> None:
        """Forgets a job: its handler is done with it, for whatever reason. What waits is dropped unscored."""
        with self._wake:
            self._forget(job)
            self._lookahead.give_turns()
        if not job.outcome.done():
            job.outcome.cancel()
        elif not job.outcome.cancelled():
            job.outcome.exception()  # seen, even where the handler failed otherwise first

    def stop(self, reason: Callable[[], OrinRerankError]) -> None:
        """Ends every job with an error of `reason`'s making, refuses later ones, lets `serve` return after its pack."""
        with self._wake:
            self._stopped = self._stopped or reason
            self._wake.notify_all()
        self._settle([(job, reason()) for job in self._jobs])

    def proves_life(self, patience_s: float) -> bool:
        """Whether every engine thread has come round since the last call, or runs a pack that is not overdue.

        A pack may take the patience, or several times what the packs before it took by their tokens. Idle threads are
        woken to come round. So a run of the engine that hangs is found, and nothing else can stand in for it.

        Args:
            patience_s: How long a pack may take in any case, in seconds.
        """
        with self._wake:
            living = self._pulses.beat(self._clock(), patience_s, self._throughput.seconds_for_pack)
            self._wake.notify_all()
        return living

    def limit(self, *, max_queued_documents: int, max_queued_bytes: int) -> None:
        """Changes how much may wait or run; what does already stays."""
        with self._wake:
            self._admission.limit(max_queued_documents=max_queued_documents, max_queued_bytes=max_queued_bytes)

    # On the engine threads.

    def serve(self) -> None:
        """Runs packs until `stop`, on this thread and on others for further slots; returns with the engine idle.

        Anything that a pack raises fails the requests in it, no more. Should the loop itself fail, all requests fail
        with it and the exception goes to the caller: the daemon must not go on.
        """
        crashes: list[BaseException] = []
        helpers = [
            threading.Thread(target=self._work, args=(crashes,), name=f"engine-{slot}", daemon=True)
            for slot in range(1, self._model.info.slots)
        ]
        for helper in helpers:
            helper.start()
        self._work(crashes)
        for helper in helpers:
            helper.join()
        if crashes:
            raise crashes[0]

    def _work(self, crashes: list[BaseException]) -> None:
        with self._wake:
            pulse = self._pulses.of_another_thread()
        try:
            while self._run_next(pulse):
                pass
        except BaseException as error:  # noqa: BLE001  # raised again by `serve`, once all threads are done
            crashes.append(error)
            reason = _why_crashed(error)
            with self._wake:
                self._stopped = self._stopped or reason
                self._wake.notify_all()
            self._loop.call_soon_threadsafe(self.stop, reason)
            self._loop.call_soon_threadsafe(self._on_crash, error)

    def _run_next(self, pulse: Pulse) -> bool:
        """Runs a pack and lets go of it, whose pictures would else be held until there is another; False at the end."""
        pack = self._next_pack(pulse)
        if pack is not None:
            self._run(pack, pulse)
        return pack is not None

    def _next_pack(self, pulse: Pulse) -> Pack | None:
        with self._wake:
            while self._stopped is None:
                self._pulses.came_round(pulse)
                self._drop_expired()
                pack = self._queue.next_pack()
                if pack is not None:
                    if self._lookahead.waiting:
                        self._post([])
                    return pack
                self._wake.wait()
            return None

    def _drop_expired(self) -> None:
        now = self._clock()
        expired = [job for job in self._jobs if job.deadline is not None and job.deadline <= now]
        for job in expired:
            self._queue.remove(job)
            job.drop_waiting()
        if expired:
            self._post([(job, DeadlineError("passed while it waited", item="deadline")) for job in expired])

    def _run(self, pack: Pack, pulse: Pulse) -> None:
        started = self._clock()
        pulse.runs(pack.tokens, started)
        try:
            result = self._model.runner.run(pack)
        except DeviceLostError:
            raise  # nothing right is computed in this process any more: neither this pack, part by part, nor another
        except Exception as error:  # noqa: BLE001  # whatever an engine raises ends in its requests
            self._failed(pack, error, pulse)
            return
        self._counters.pack_ran(
            documents=pack.documents,
            tokens=result.tokens,
            images_encoded=len(result.encoded_images),
            images_cached=len(result.cached_images),
        )
        self._scored(pack, result, started)

    def _scored(self, pack: Pack, result: PackResult, started: float) -> None:
        with self._wake:
            ended = self._clock()
            self._throughput.observe(tokens=result.tokens, documents=pack.documents, started=started, ended=ended)
            self._queue.worked(result.tokens)
            jobs: dict[Job, None] = {}
            for (job, index), margin in zip(tags_of(pack), result.margins.tolist(), strict=True):
                job.score(index, margin)
                jobs[job] = None
            for job in jobs:
                job.note_pack(result)
            complete = [job for job in jobs if job.complete]
            for job in complete:
                self._queue.remove(job)
        self._post([(job, None) for job in complete], scored=jobs)

    def _failed(self, pack: Pack, error: Exception, pulse: Pulse) -> None:
        """Finds the request that a pack failed for: each runs alone, and only those that fail again are failed."""
        jobs = list(dict.fromkeys(job for job, _ in tags_of(pack)))
        _log.warning(
            "pack failed",
            extra=fields(requests=len(jobs), documents=pack.documents, tokens=pack.tokens),
            exc_info=error,
        )
        if len(jobs) > 1:
            for job in jobs:
                if not job.outcome.done():
                    self._run(part_of(pack, job), pulse)
            return
        with self._wake:
            for job in jobs:
                self._queue.remove(job)
                job.drop_waiting()
        self._post([(job, error) for job in jobs])

    def _post(self, outcomes: list[tuple[Job, Exception | None]], scored: Iterable[Job] = ()) -> None:
        """Resolves outcomes on the loop, where also those are looked at again who wait for their turn."""
        self._loop.call_soon_threadsafe(self._settle, outcomes, scored)

    # Shared.

    def _settle(self, outcomes: Iterable[tuple[Job, Exception | None]], scored: Iterable[Job] = ()) -> None:
        with self._wake:
            for job, error in list(outcomes):
                job.resolve(error)
                self._forget(job)
            for job in self._jobs.intersection(scored):
                self._lookahead.recount(job)
            self._lookahead.give_turns()

    def _forget(self, job: Job) -> None:
        self._queue.remove(job)
        job.drop_waiting()
        self._jobs.discard(job)
        self._lookahead.forget(job)


def _why_crashed(error: BaseException) -> Callable[[], OrinRerankError]:
    """What requests are told that no engine thread will run: their own error each, since a handler may add to it."""
    if isinstance(error, DeviceLostError):
        return lambda: DeviceLostError(error.message)
    return lambda: InternalError("the scheduler stopped working")
