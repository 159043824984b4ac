"""A model without weights: deterministic margins, and an engine that a test can hold, fail or count.

It is honest: a margin is a function of the prefix's and the document's ids alone, as with a real model, so that a
document that was scored behind another request's query, or given back under another index, is noticed.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.engines.pool import PoolCounters
from orin_rerank.engines.port import EngineInfo
from orin_rerank.engines.runner import PackResult
from orin_rerank.errors import EmptyDocumentError, EmptyQueryError, NonFiniteScoreError, TooLongError
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.prompt.content import Content, ImagePart, RerankInput, TextPart
from orin_rerank.prompt.encoded import EncodedImage, EncodedRequest, EncodedSegment
from orin_rerank.prompt.profile import PromptFamily, PromptProfile

if TYPE_CHECKING:
    from orin_rerank.packing.pack import Pack

__all__ = ["FakeEncoder", "FakeModel", "FakeRunner", "expected_margin", "segment"]

POISON = "poison"
"""A document with this text makes the engine give NaN for it."""


def segment(ids, *, content_tokens=None, truncated_tokens=0, images=()):
    """An encoded segment of text with these ids."""
    array = np.asarray(ids, dtype=np.int32)
    count = len(array)
    return EncodedSegment(
        ids=array,
        positions=np.tile(np.arange(count, dtype=np.int32), (3, 1)),
        visual_index=np.full(count, -1, dtype=np.int32),
        images=tuple(images),
        content_tokens=count if content_tokens is None else content_tokens,
        truncated_tokens=truncated_tokens,
    )


def margin_of(prefix: EncodedSegment, document: EncodedSegment) -> float:
    """What the fake engine gives a document behind a prefix: a float32 from -8 to 8."""
    digest = hashlib.blake2b(digest_size=4)
    for part in (prefix, document):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part.ids.tobytes())
        for image in part.images:
            digest.update(image.digest)
    return float(np.float32(int.from_bytes(digest.digest(), "big") / 2**32 * 16 - 8))


def expected_margin(query: str, document: str, instruction: str | None = None) -> float:
    """What the fake model gives a document for a query."""
    request = RerankInput((TextPart(query),), ((TextPart(document),),), instruction)
    encoded = FakeEncoder().encode(request)
    return margin_of(encoded.prefix, encoded.documents[0])


class FakeEncoder:
    """One token per byte of UTF-8; images count their bytes.

    Attributes:
        picture_bytes: What a decoded image takes; 0 means that images are bytes of text and no more.
        live_bytes: What the decoded images take that somebody still holds.
        most_live_bytes: The most that it ever was.
    """

    def __init__(self, max_tokens: int = 4096, picture_bytes: int = 0) -> None:
        self.max_tokens = max_tokens
        self.encoded_documents = 0
        self.picture_bytes = picture_bytes
        self.live_bytes = 0
        self.most_live_bytes = 0
        self._counting = threading.RLock()  # an array may be collected at any moment, within `_count` too

    def encode(self, request: RerankInput, query_images: dict[bytes, EncodedImage] | None = None) -> EncodedRequest:
        query = self._ids(request.query, "query", EmptyQueryError)
        prefix = [*(request.instruction or "default").encode(), 256, *query]
        documents = []
        for index, content in enumerate(request.documents):
            ids = self._ids(content, f"documents[{index}]", EmptyDocumentError)
            limit = request.limits.document_tokens or self.max_tokens - len(prefix)
            if len(ids) > limit and not request.limits.truncate:
                raise TooLongError(f"takes {len(ids)} tokens; {limit} fit", item=f"documents[{index}]")
            cut = max(0, len(ids) - limit)
            documents.append(segment(ids[:limit], truncated_tokens=cut, images=self._decoded(content, {})))
        self.encoded_documents += len(documents)
        images = self._decoded(request.query, {} if query_images is None else query_images)
        return EncodedRequest(segment(prefix, content_tokens=len(query), images=images), tuple(documents))

    def _decoded(self, content: Content, known: dict[bytes, EncodedImage]) -> list[EncodedImage]:
        if not self.picture_bytes:
            return []
        digests = [hashlib.sha256(part.data).digest() for part in content if isinstance(part, ImagePart)]
        for digest in digests:
            if digest not in known:
                pixels = np.zeros((1, self.picture_bytes // 3, 3), dtype=np.uint8)
                self._count(pixels.nbytes)
                weakref.finalize(pixels, self._count, -pixels.nbytes)
                known[digest] = EncodedImage(digest, pixels, (2, 2), 1)
        return [known[digest] for digest in digests]

    def _count(self, nbytes: int) -> None:
        with self._counting:
            self.live_bytes += nbytes
            self.most_live_bytes = max(self.most_live_bytes, self.live_bytes)

    @staticmethod
    def _ids(content: Content, item: str, empty: type[EmptyQueryError | EmptyDocumentError]) -> list[int]:
        data = b"".join(part.text.encode() if isinstance(part, TextPart) else part.data for part in content)
        if not data.strip():
            raise empty("holds neither text nor image", item=item)
        return list(data)


@dataclass
class FakeRunner:
    """Runs packs; a test may hold it back and see what it ran.

    Attributes:
        gate: While it is clear, a pack waits before it runs.
        arrived: Set when a pack has come to the gate.
        packs: Those that ran, failed ones included.
        fail: Called with every pack before it runs; may raise.
        closed: Whether `close` was called.
        slots: How many threads may run a pack at a time.
    """

    gate: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)
    packs: list[Pack] = field(default_factory=list)
    fail: object = None
    closed: bool = False
    slots: int = 1
    _running: int = 0
    _most_running: int = 0
    _waits: int = 3
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: set[bytes] = field(default_factory=set)
    _seen: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def pool(self) -> PoolCounters:
        return PoolCounters(self.slots << 20, self.slots, self._running, self._most_running, self._waits)

    def knows(self, prefix: EncodedSegment) -> bool:
        return prefix.digest in self._known

    def run(self, pack: Pack) -> PackResult:
        assert not self.closed
        with self._lock:
            self._running += 1
            assert self._running <= self.slots, "more packs at a time than the engine has slots"
            self._most_running = max(self._most_running, self._running)
        try:
            return self._run(pack)
        finally:
            with self._lock:
                self._running -= 1

    def _run(self, pack: Pack) -> PackResult:
        self.arrived.set()
        assert self.gate.wait(30), "the test never opened the gate"
        self.packs.append(pack)
        if self.fail is not None:
            self.fail(pack)
        margins = []
        tokens = 0
        for group in pack.groups:
            tokens += sum(len(document) for document in group.documents)
            tokens += 0 if self.knows(group.prefix) else len(group.prefix)
            for document in group.documents:
                if bytes(i for i in document.ids.tolist() if i < 256) == POISON.encode():
                    raise NonFiniteScoreError("a margin is not finite", item="documents")
                margins.append(margin_of(group.prefix, document))
        digests = frozenset(image.digest for part in pack.segments() for image in part.images)
        result = PackResult(np.asarray(margins, dtype=np.float32), digests - self._seen, digests & self._seen, tokens)
        self._seen |= digests
        self._known |= {group.prefix.digest for group in pack.groups}
        return result

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeModel:
    """Satisfies `serving.ports.ServedModel`."""

    name: str = "fake"
    digest: str = "0" * 64
    profile: PromptProfile = field(
        default_factory=lambda: PromptProfile(PromptFamily.TEXT, 4096, "default", image=None)
    )
    encoder: FakeEncoder = field(default_factory=FakeEncoder)
    runner: FakeRunner = field(default_factory=FakeRunner)
    budget: TokenBudget = field(default_factory=lambda: TokenBudget.fixed(256))
    info: EngineInfo = field(default_factory=lambda: EngineInfo("fake-cpu", "fp32", 8192, 64))
    source: str | None = None
    precision_reason: str = "no INT8 engine is installed"
    engine_reason: str = "the processor was asked for"
    picture_bytes: int = 0

    def close(self) -> None:
        self.runner.close()
