"""Reads a calibration set: requests such as the appliance will get, from which INT8 is made.

The format is the evaluation sets' (see `evaluation.dataset`), of which `id`, `split` and `relevance` may be left out,
and one document to a query is enough; docs/calibration-data.md says how to choose what goes in.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.errors import DatasetError, ImageError
from orin_rerank.evaluation.dataset import DATASET_FILE, DatasetLine, read_lines, text_of
from orin_rerank.prompt.content import Content, ImagePart, RerankInput
from orin_rerank.prompt.images import ImageSettings, decode_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["CalibrationRequest", "dataset_digest", "read_calibration_set"]


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """One line of a set.

    Attributes:
        query: Its parts.
        documents: At least one.
        instruction: None is the model's default.
        language: BCP 47 tag of the query, or an empty string.
        where: File and line, for errors.
    """

    query: Content
    documents: tuple[Content, ...]
    instruction: str | None
    language: str
    where: str

    @property
    def request(self) -> RerankInput:
        """As the prompt path takes it."""
        return RerankInput(self.query, self.documents, self.instruction)


def read_calibration_set(root: Path, *, decode: bool = True) -> Iterator[CalibrationRequest]:
    """Yields the requests of the set in `root`, checked, with their pictures as bytes, one line at a time.

    Args:
        root: The set's folder.
        decode: Whether every picture is decoded to its last pixel as a check; a set that has been read so before need
            not be again.

    Raises:
        DatasetError: If the folder has no set, a line is malformed or a picture is missing, cut short or unreadable;
            the item names file, line and key, such as `dataset.jsonl:7: documents[2].content[0].image`.
    """
    for line in read_lines(root):
        request = _request(line)
        if decode:
            _check_pictures(request.query, f"{line.where}: query")
            for place, document in enumerate(request.documents):
                _check_pictures(document, f"{line.where}: documents[{place}].content")
        yield request


def dataset_digest(root: Path) -> str:
    """SHA-256 of a set, in hexadecimal: over its lines, and its pictures in the order in which they are named.

    Raises:
        DatasetError: See `read_calibration_set`.
    """
    digest = hashlib.sha256()
    for request in read_calibration_set(root, decode=False):
        for content in (request.query, *request.documents):
            for part in content:
                if isinstance(part, ImagePart):
                    digest.update(hashlib.sha256(part.data).digest())
    # Read after the lines were: a file that cannot be is reported by the reader.
    with (root / DATASET_FILE).open("rb") as lines:
        while block := lines.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _request(line: DatasetLine) -> CalibrationRequest:
    line.check_keys({"query", "documents"}, {"id", "split", "language", "instruction"})
    for key in ("id", "split"):
        line.optional_string(key)
    query = line.content("query")
    documents = tuple(content for content, _ in line.documents(1, judged=False))
    _check_not_blank(line, "query", query)
    for place, document in enumerate(documents):
        _check_not_blank(line, f"documents[{place}].content", document)
    return CalibrationRequest(
        query=query,
        documents=documents,
        instruction=line.optional_string("instruction"),
        language=line.optional_string("language") or "",
        where=line.where,
    )


def _check_not_blank(line: DatasetLine, key: str, content: Content) -> None:
    if not text_of(content).strip() and not any(isinstance(part, ImagePart) for part in content):
        raise line.error(key, "holds neither text nor picture")


def _check_pictures(content: Content, where: str) -> None:
    """Decodes every picture, as serving would."""
    for place, part in enumerate(content):
        if isinstance(part, ImagePart):
            try:
                decode_image(part.data, ImageSettings())
            except ImageError as error:
                raise DatasetError(error.message, item=f"{where}[{place}].image") from error
