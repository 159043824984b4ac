"""What the daemon has done since it started, as numbers."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Counters", "CountersSnapshot"]


@dataclass(frozen=True, slots=True)
class CountersSnapshot:
    """The counters at one moment.

    Attributes:
        requests: Rerank requests that ended, whatever the outcome.
        documents: Documents whose margin was computed.
        errors: Requests that ended in an error, by gRPC status name such as `INVALID_ARGUMENT`.
        packs: Runs of the engine.
        packed_tokens: Tokens in those runs, prefixes included.
        images_encoded: Runs of the vision encoder.
        images_cached: Images that packs needed and found in the cache; nobody needs one behind a known prefix.
    """

    requests: int = 0
    documents: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    packs: int = 0
    packed_tokens: int = 0
    images_encoded: int = 0
    images_cached: int = 0


class Counters:
    """Counts from any thread; a snapshot is consistent in itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = 0
        self._documents = 0
        self._errors: Counter[str] = Counter()
        self._packs = 0
        self._packed_tokens = 0
        self._images_encoded = 0
        self._images_cached = 0

    def request_ended(self, error: str | None = None) -> None:
        """Counts a request; `error` is the gRPC status name, None where it was answered."""
        with self._lock:
            self._requests += 1
            if error is not None:
                self._errors[error] += 1

    def pack_ran(self, *, documents: int, tokens: int, images_encoded: int, images_cached: int) -> None:
        """Counts a run of the engine."""
        with self._lock:
            self._packs += 1
            self._documents += documents
            self._packed_tokens += tokens
            self._images_encoded += images_encoded
            self._images_cached += images_cached

    def snapshot(self) -> CountersSnapshot:
        """Returns all counters as they are now."""
        with self._lock:
            return CountersSnapshot(
                requests=self._requests,
                documents=self._documents,
                errors=dict(self._errors),
                packs=self._packs,
                packed_tokens=self._packed_tokens,
                images_encoded=self._images_encoded,
                images_cached=self._images_cached,
            )
