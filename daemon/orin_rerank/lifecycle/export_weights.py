"""Writes the weights of a bundle so that an export which is killed goes on from where it was.

At the end of a tensor, whenever enough has been written since the last time, the file is brought to disk and a line is
added to a journal: how far the file has come, and the SHA-256 of it so far. An export that finds a journal of its own
reads the file up to the last line, which gives the state of the hash and proves at once that the bytes are those that
were written, and continues behind it. Reading, converting and the one line are this thread's; hashing and writing are
another's, so that the slowest of them, the disk as a rule, sets the pace.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from orin_rerank.durable import replace_file
from orin_rerank.errors import InternalError
from orin_rerank.graph.narrowing import Narrowing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path
    from typing import BinaryIO

    import numpy.typing as npt

    from orin_rerank.graph.weights import TensorSource, WeightFile

__all__ = ["WeightProgress", "WeightWriting", "WrittenWeights"]

_JOURNAL: Final = "progress.jsonl"
_BLOCK: Final = 8 << 20
_PENDING: Final = 8
"""Pieces that may wait to be written, of 16 MB at most."""


class WeightProgress(Protocol):
    """Told how far weights have come."""

    def on_checked(self, done: int, total: int) -> None:
        """Bytes that were there already and have been read again, of how many."""

    def on_written(self, done: int, total: int) -> None:
        """Bytes that the file has, of how many."""


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """What came of it.

    Attributes:
        sha256: Of the file, in hexadecimal.
        resumed: Bytes that an earlier export had written.
        losses: What storing a tensor lost, for each that lost anything.
    """

    sha256: str
    resumed: int
    losses: Mapping[str, Narrowing]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A line of the journal: tensors and bytes that the file has, their SHA-256, and what was lost since the last."""

    tensors: int
    bytes: int
    sha256: str
    losses: dict[str, Narrowing]

    def to_line(self) -> str:
        return json.dumps(dataclasses.asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> _Mark:
        """Raises KeyError, TypeError, ValueError or AttributeError for what `to_line` did not write."""
        value = json.loads(line)
        losses = {str(name): Narrowing(**counts) for name, counts in value["losses"].items()}
        return cls(int(value["tensors"]), int(value["bytes"]), str(value["sha256"]), losses)


@dataclass(slots=True)
class _Reached:
    """How far a file has come: tensors, bytes, the hash so far, and what those tensors lost."""

    tensors: int
    bytes: int
    digest: Any = field(default_factory=hashlib.sha256)
    losses: dict[str, Narrowing] = field(default_factory=dict)


class WeightWriting:
    """A weight file while it is being written.

    Args:
        weights: Its layout.
        folder: Where it is written; the journal lies beside it.
        identity: What its contents follow from; a journal of another identity is not gone on with.
        mark_bytes: How much may be written between two lines of the journal.
    """

    def __init__(self, weights: WeightFile, folder: Path, identity: str, mark_bytes: int) -> None:
        self._weights = weights
        self._path = folder / weights.name
        self._journal = folder / _JOURNAL
        self._first_line = json.dumps({"identity": identity}) + "\n"
        self._mark_bytes = mark_bytes

    @property
    def remaining(self) -> int:
        """Bytes yet to be written, as far as the journal can be believed."""
        marks = self._read_journal()
        return self._weights.nbytes - (marks[-1].bytes if marks and self._path.exists() else 0)

    def write(self, source: TensorSource, progress: WeightProgress) -> WrittenWeights:
        """Writes what is missing of the file; it is on disk afterwards.

        Raises:
            CheckpointError: If a tensor cannot be read or is not finite; the item names it.
            OSError: If the disk is full or fails; the journal stands.
        """
        reached = self._resume(progress) or self._begin()
        resumed = reached.bytes if reached.tensors else 0
        with self._path.open("r+b") as out, self._journal.open("a", encoding="utf-8") as journal:
            out.truncate(reached.bytes)
            out.seek(reached.bytes)
            sink = _Sink(out, journal, reached)
            self._write_rest(source, sink, progress)
        return WrittenWeights(reached.digest.hexdigest(), resumed, dict(reached.losses))

    def _write_rest(self, source: TensorSource, sink: _Sink, progress: WeightProgress) -> None:
        total, marked = self._weights.nbytes, sink.reached.bytes
        submitted, last = marked, len(self._weights.specs)
        progress.on_written(marked, total)
        with ThreadPoolExecutor(1, thread_name_prefix="export") as pool:
            pending: deque[Future[int]] = deque()
            for count, spec in enumerate(self._weights.specs[sink.reached.tensors :], sink.reached.tensors + 1):
                loss = Narrowing()
                for piece, lost in self._weights.stored_pieces(source, spec):
                    loss += lost
                    pending.append(pool.submit(sink.write, piece))
                    while len(pending) > _PENDING:
                        progress.on_written(pending.popleft().result(), total)
                submitted += spec.nbytes
                pending.append(pool.submit(sink.finish_tensor, spec.name, loss))
                if submitted - marked >= self._mark_bytes or count == last:
                    marked = submitted
                    pending.append(pool.submit(sink.mark))
            for future in pending:
                progress.on_written(future.result(), total)

    def _begin(self) -> _Reached:
        self._path.write_bytes(self._weights.header)
        self._write_journal([])
        reached = _Reached(0, len(self._weights.header))
        reached.digest.update(self._weights.header)
        return reached

    def _resume(self, progress: WeightProgress) -> _Reached | None:
        """Where an earlier export of the same had come to; None if there was none, or its file is not as it left it."""
        marks = self._read_journal()
        if not marks or not self._path.exists():
            return None
        last = marks[-1]
        reached = _Reached(last.tensors, last.bytes)
        for mark in marks:
            reached.losses |= mark.losses
        done = 0
        with self._path.open("rb") as file:
            while block := file.read(min(_BLOCK, reached.bytes - done)):
                reached.digest.update(block)
                done += len(block)
                progress.on_checked(done, reached.bytes)
        if reached.digest.hexdigest() != last.sha256:
            return None
        self._write_journal(marks)  # without a line that was cut short
        return reached

    def _write_journal(self, marks: list[_Mark]) -> None:
        lines = [self._first_line, *(mark.to_line() for mark in marks)]
        replace_file(self._journal, "".join(lines).encode())

    def _read_journal(self) -> list[_Mark]:
        """What a process wrote whole, of an export with the same identity."""
        try:
            text = self._journal.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        first, *lines = text.splitlines(keepends=True) or [""]
        marks: list[_Mark] = []
        # A process that was killed may have left half a line.
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            for line in lines if first == self._first_line else ():
                marks.append(_Mark.from_line(line))  # noqa: PERF401 - those before a bad one count
        return marks


class _Sink:
    """The writing thread's part: it alone touches file, journal and hash while the thread runs.

    Every method returns the bytes that the file has.
    """

    def __init__(self, out: BinaryIO, journal: Any, reached: _Reached) -> None:
        self.reached = reached
        self._out = out
        self._journal = journal
        self._unmarked: dict[str, Narrowing] = {}
        self._sound = True

    def write(self, piece: npt.NDArray[Any]) -> int:
        data = piece.reshape(-1).view(np.uint8).data
        with self._all_or_nothing_more():
            self.reached.digest.update(data)
            self._out.write(data)
            self.reached.bytes += len(data)
        return self.reached.bytes

    def finish_tensor(self, name: str, loss: Narrowing) -> int:
        self.reached.tensors += 1
        if loss.clipped or loss.vanished:
            self._unmarked[name] = loss
        return self.reached.bytes

    def mark(self) -> int:
        """Brings the file to disk, and then says so in the journal."""
        with self._all_or_nothing_more():
            self._out.flush()
            os.fdatasync(self._out.fileno())
            reached = self.reached
            mark = _Mark(reached.tensors, reached.bytes, reached.digest.hexdigest(), self._unmarked)
            self._journal.write(mark.to_line())
            self._journal.flush()
            os.fsync(self._journal.fileno())
        reached.losses |= self._unmarked
        self._unmarked = {}
        return reached.bytes

    @contextlib.contextmanager
    def _all_or_nothing_more(self) -> Iterator[None]:
        """Keeps what is queued behind a write that failed from being written, or vouched for, at the wrong place."""
        if not self._sound:
            raise InternalError("an earlier write failed")
        self._sound = False
        yield
        self._sound = True
