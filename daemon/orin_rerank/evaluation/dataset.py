"""Reads an evaluation set: queries with graded documents, of text and pictures.

A set is a folder with `dataset.jsonl` and the pictures that it names. One line is one query::

    {"id": "q17", "split": "text-to-image/unseen-style", "language": "en",
     "query": [{"text": "red fire engine"}],
     "documents": [{"content": [{"image": "images/a.webp"}], "relevance": 2},
                   {"content": [{"text": "a ladder"}, {"image": "images/b.png"}], "relevance": 0}],
     "instruction": "Given a caption, retrieve its picture."}

Content is a list of parts in the prompt's order, each `{"text": ...}` or `{"image": PATH}` with a path inside the
folder. `relevance` is a grade from 0 to 9; 0 is irrelevant. `instruction` and `language` may be left out. Everything
else is checked, since a set that is quietly misread gives figures that are quietly wrong.
"""

from __future__ import annotations

import io
import json
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image, UnidentifiedImageError

from orin_rerank.errors import DatasetError
from orin_rerank.prompt.content import Content, ImagePart, TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = [
    "DATASET_FILE",
    "DatasetLine",
    "JudgedDocument",
    "JudgedQuery",
    "is_picture",
    "parse_content",
    "read_dataset",
    "read_lines",
    "text_of",
]

DATASET_FILE = "dataset.jsonl"
MAX_RELEVANCE = 9


@dataclass(frozen=True, slots=True)
class JudgedDocument:
    """A document and how relevant it is to its query.

    Attributes:
        content: Its parts.
        relevance: Grade from 0, irrelevant, to 9.
    """

    content: Content
    relevance: int


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """One line of a set.

    Attributes:
        id: Unique in the set.
        split: Which part of the set, such as `text-to-image/unseen-style`.
        language: BCP 47 tag of the query, or an empty string.
        query: Its parts.
        documents: At least two, of at least two different grades.
        instruction: None is the model's default.
    """

    id: str
    split: str
    language: str
    query: Content
    documents: tuple[JudgedDocument, ...]
    instruction: str | None

    @property
    def grades(self) -> tuple[int, ...]:
        """The documents' grades in their order."""
        return tuple(document.relevance for document in self.documents)


def read_dataset(root: Path) -> Iterator[JudgedQuery]:
    """Yields the queries of the set in `root`, checked, with their pictures as bytes, one line at a time.

    Raises:
        DatasetError: If the folder has no set, a line is malformed or a picture is missing or unreadable; the item
            names file, line and key, such as `dataset.jsonl:7: documents[2].content[0].image`.
    """
    seen: dict[str, int] = {}
    for line in read_lines(root):
        query = _judged_query(line)
        if query.id in seen:
            raise line.error("id", f"is also the id of line {seen[query.id]}")
        seen[query.id] = line.number
        yield query


def read_lines(root: Path) -> Iterator[DatasetLine]:
    """Yields the lines of the set in `root` as JSON objects whose keys nobody has looked at yet.

    Raises:
        DatasetError: If the folder has no set, the set is empty or a line is no JSON object.
    """
    path = root / DATASET_FILE
    try:
        lines = path.open(encoding="utf-8")
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", item=str(path)) from error
    empty = True
    with lines:
        number = 0
        while True:
            try:
                line = lines.readline()
            except UnicodeDecodeError as error:
                raise DatasetError("is not valid UTF-8", item=f"{path}:{number + 1}") from error
            if not line:
                break
            number += 1
            if line.strip():
                empty = False
                yield DatasetLine(root, number, _json_object(line, f"{path}:{number}"))
    if empty:
        raise DatasetError("holds no queries", item=str(path))


@dataclass(frozen=True, slots=True)
class DatasetLine:
    """One line of a set, and the checks that every kind of set makes.

    Attributes:
        root: The set's folder.
        number: Of the line, from 1.
        value: The line as JSON gives it.
    """

    root: Path
    number: int
    value: Mapping[str, object]

    @property
    def where(self) -> str:
        """File and number, for errors."""
        return f"{self.root / DATASET_FILE}:{self.number}"

    def check_keys(self, required: set[str], optional: set[str]) -> None:
        """Refuses a missing key, and an unknown one."""
        _check_keys(self.value, required, optional, self.where)

    def content(self, key: str) -> tuple[TextPart | ImagePart, ...]:
        """The parts under a key that is there."""
        return parse_content(self.value[key], root=self.root, where=f"{self.where}: {key}")

    def optional_string(self, key: str) -> str | None:
        """The string under a key, or None where there is no such key."""
        return self.string(key) if key in self.value else None

    def string(self, key: str) -> str:
        """The string under a key that is there."""
        text = self.value[key]
        if not isinstance(text, str) or not text.strip():
            raise self.error(key, "must be a string that is not empty")
        return text

    def documents(self, least: int, *, judged: bool) -> Iterator[tuple[tuple[TextPart | ImagePart, ...], int | None]]:
        """Yields the documents' parts and relevance.

        Args:
            least: How many there must be.
            judged: Whether each must have a relevance; otherwise None stands for one that is not there.
        """
        documents = self.value["documents"]
        if not isinstance(documents, list) or len(documents) < least:
            count = "one document" if least == 1 else "two documents"
            raise self.error("documents", f"must be a list of at least {count}")
        for place, value in enumerate(documents):
            key = f"documents[{place}]"
            if not isinstance(value, dict):
                raise self.error(key, "must be a JSON object")
            where = f"{self.where}: {key}"
            optional = {"relevance"}
            _check_keys(value, {"content", *(optional if judged else ())}, set() if judged else optional, where)
            relevance = self._relevance(value, key) if "relevance" in value else None
            yield parse_content(value["content"], root=self.root, where=f"{where}.content"), relevance

    def error(self, key: str, message: str) -> DatasetError:
        """An error that names a key of this line."""
        return DatasetError(message, item=f"{self.where}: {key}")

    def _relevance(self, document: Mapping[str, object], key: str) -> int:
        relevance = document["relevance"]
        if not isinstance(relevance, int) or isinstance(relevance, bool) or not 0 <= relevance <= MAX_RELEVANCE:
            raise self.error(f"{key}.relevance", f"must be a whole number from 0 to {MAX_RELEVANCE}")
        return relevance


def parse_content(value: object, *, root: Path, where: str, confined: bool = True) -> tuple[TextPart | ImagePart, ...]:
    """A list of parts as JSON gives it, with the pictures read.

    Args:
        value: The JSON value.
        root: Where relative picture paths start.
        where: What to call the value in errors.
        confined: Whether a path may not lead out of `root`.

    Raises:
        DatasetError: If the value is no such list or a picture cannot be read.
    """
    if not isinstance(value, list) or not value:
        raise DatasetError("must be a list of at least one part", item=where)
    return tuple(_part(part, root, f"{where}[{place}]", confined=confined) for place, part in enumerate(value))


def text_of(content: Content) -> str:
    """The text parts of some content, one a line; empty for a picture alone."""
    return "\n".join(part.text for part in content if isinstance(part, TextPart))


def is_picture(data: bytes) -> bool:
    """Whether the bytes begin like a picture; whether all of it can be decoded is for the prompt path to say."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            Image.open(io.BytesIO(data)).close()
    except Image.DecompressionBombError:
        return True  # a picture, whose size is what is wrong with it
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return False
    return True


def _judged_query(line: DatasetLine) -> JudgedQuery:
    line.check_keys({"id", "split", "query", "documents"}, {"language", "instruction"})
    judged = tuple(
        JudgedDocument(content, relevance)
        for content, relevance in line.documents(2, judged=True)
        if relevance is not None
    )
    if len({document.relevance for document in judged}) < 2:
        raise line.error("documents", "all have the same relevance: there is nothing to order")
    return JudgedQuery(
        id=line.string("id"),
        split=line.string("split"),
        language=line.optional_string("language") or "",
        query=line.content("query"),
        documents=judged,
        instruction=line.optional_string("instruction"),
    )


def _json_object(line: str, where: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DatasetError(f"is not JSON: {error}", item=where) from error
    if not isinstance(value, dict):
        raise DatasetError("must be a JSON object", item=where)
    return value


def _check_keys(value: Mapping[str, object], required: set[str], optional: set[str], where: str) -> None:
    """Refuses a missing key, and an unknown one, which is most often a misspelt optional one."""
    if missing := sorted(required - value.keys()):
        raise DatasetError(f"lacks the key {missing[0]!r}", item=where)
    if unknown := sorted(value.keys() - required - optional):
        raise DatasetError(f"has an unknown key {unknown[0]!r}", item=where)


def _part(value: object, root: Path, where: str, *, confined: bool) -> TextPart | ImagePart:
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= {"text", "image"}:
        raise DatasetError('must be {"text": ...} or {"image": PATH}', item=where)
    (kind, content) = next(iter(value.items()))
    if not isinstance(content, str) or not content:
        raise DatasetError("must be a string that is not empty", item=f"{where}.{kind}")
    return TextPart(content) if kind == "text" else ImagePart(_read_image(root, content, where, confined=confined))


def _read_image(root: Path, name: str, where: str, *, confined: bool) -> bytes:
    """The picture's bytes; a file that is no picture is named here, with its place."""
    item = f"{where}.image"
    path = root / name
    try:
        if confined and not path.resolve().is_relative_to(root.resolve()):
            raise DatasetError(f"{name!r} leads out of the folder", item=item)
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is no path"
        raise DatasetError(f"{name!r} cannot be read: {reason}", item=item) from error
    if not is_picture(data):
        raise DatasetError(f"{name!r} is not a picture that can be read", item=item)
    return data
