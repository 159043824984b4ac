"""Turns command-line arguments and JSON lines into queries and documents.

The rule for an argument never guesses in silence:

* `text:WORDS` is WORDS, whatever they look like.
* `@FILE` is what FILE holds, a picture or UTF-8 text; `@-` is standard input.
* What ends like a picture (`.png`, `.jpg`, ...) and has no blank in it is a picture, and an error if it is not there.
* What names any other file here is refused, since either reading could be meant.
* Everything else is text.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import DatasetError, SettingsError
from orin_rerank.prompt.content import ImagePart, TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.v1 import rerank_pb2

__all__ = ["Item", "image_file", "item_of", "items_of_lines", "to_proto"]

IMAGE_SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
_TEXT_PREFIX: Final = "text:"


@dataclass(frozen=True, slots=True)
class Item:
    """A query or document and what to call it in a table.

    Attributes:
        name: A file's name, or the text itself.
        parts: Its content.
    """

    name: str
    parts: tuple[TextPart | ImagePart, ...]


def item_of(argument: str, place: str) -> Item:
    """What an argument means; see the module.

    Args:
        argument: As it was given.
        place: Which one it is, such as `DOCUMENT 3`, for errors.

    Raises:
        DatasetError: If a file cannot be read.
        SettingsError: If the argument is empty, or names a file and could as well be text.
    """
    if argument.startswith(_TEXT_PREFIX):
        return _text(argument.removeprefix(_TEXT_PREFIX), place)
    if argument.startswith("@"):
        return _file(Path(argument[1:]))
    path = Path(argument)
    if path.suffix.lower() in IMAGE_SUFFIXES and not any(character.isspace() for character in argument):
        return image_file(path)
    if _is_file(path):
        raise SettingsError(
            "is a file here, so it is unclear what is meant: "
            f"@{argument} for what it holds, text:{argument} for the words",
            item=repr(argument),
        )
    return _text(argument, place)


def image_file(path: Path) -> Item:
    """A picture.

    Raises:
        DatasetError: If there is no such file or it is no picture.
    """
    data = _read(path)
    if not _is_picture(data):
        raise DatasetError("is not a picture that can be read", item=str(path))
    return Item(path.name, (ImagePart(data),))


def items_of_lines(source: Path) -> Iterator[Item]:
    """Documents from a file of JSON lines; `-` is standard input.

    A line is a string, a list of parts as an evaluation set has them (`[{"image": "a.webp"}, {"text": "a"}]`), or
    `{"content": PARTS, "name": "what to call it"}`. Picture paths start at the file's folder, or at the current
    folder for standard input.

    Raises:
        DatasetError: Names the line and key that is wrong.
    """
    from orin_rerank.evaluation.dataset import parse_content, text_of

    if str(source) == "-":
        lines, folder, label = sys.stdin.read(), Path(), "standard input"
    else:
        lines, folder, label = _decode(_read(source), str(source)), source.parent, str(source)
    for number, line in enumerate(lines.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{label}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DatasetError(f"is not JSON: {error}", item=where) from error
        if isinstance(value, str):
            value = [{"text": value}]
        name = None
        if isinstance(value, dict):
            if not value.keys() <= {"content", "name"} or not isinstance(value.get("name", ""), str):
                raise DatasetError('must be {"content": [...], "name": "..."}', item=where)
            name, value = value.get("name"), value.get("content")
        parts = parse_content(value, root=folder, where=where, confined=False)
        yield Item(name or _name(value, text_of(parts)), parts)


def to_proto(parts: tuple[TextPart | ImagePart, ...]) -> rerank_pb2.Content:
    """Content as the protocol carries it."""
    from orin_rerank.v1 import rerank_pb2

    return rerank_pb2.Content(
        parts=[
            rerank_pb2.Part(text=part.text) if isinstance(part, TextPart) else rerank_pb2.Part(image=part.data)
            for part in parts
        ]
    )


def _text(text: str, place: str) -> Item:
    if not text.strip():
        raise SettingsError("an empty text cannot be ranked", item=place)
    return Item(text, (TextPart(text),))


def _file(path: Path) -> Item:
    data = sys.stdin.buffer.read() if str(path) == "-" else _read(path)
    if _is_picture(data):
        return Item(path.name, (ImagePart(data),))
    text = _decode(data, str(path))
    if not text.strip():
        raise DatasetError("is empty", item=str(path))
    return Item(path.name, (TextPart(text),))


def _name(value: list[dict[str, str]], text: str) -> str:
    """Names content by its pictures and text: `a.webp + red engine`."""
    pictures = [Path(part["image"]).name for part in value if "image" in part]
    return " + ".join([*pictures, *([text] if text else [])])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is no path"
        raise DatasetError(f"cannot be read: {reason}", item=str(path)) from error


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError("is neither a picture nor UTF-8 text", item=name) from error


def _is_picture(data: bytes) -> bool:
    # Pillow is not wanted where only --help or text is asked for.
    from orin_rerank.evaluation.dataset import is_picture

    return is_picture(data)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        # A long text is no file name, and a NUL byte is not allowed in one.
        return False
