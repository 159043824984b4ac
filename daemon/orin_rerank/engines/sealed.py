"""JSON that carries a digest of itself, so that a flipped bit in it is an error and never another value."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FormatError", "json_digest", "seal", "unseal"]


class FormatError(ValueError):
    """The text is of another format than the one asked for.

    Attributes:
        newer: Whether it is a later one, which an older version cannot know.
    """

    def __init__(self, found: object, known: int) -> None:
        super().__init__(f"is of format {found!r}; this version reads {known}")
        self.newer = isinstance(found, int) and found > known


def seal(value: Mapping[str, Any]) -> str:
    """The text of a JSON object with its own SHA-256 in it; the same for the same value."""
    return _dump({**value, "sha256": _digest(value)})


def unseal(text: str, format_number: int) -> dict[str, Any]:
    """Reads what `seal` wrote, without the digest.

    Args:
        text: What was read.
        format_number: What its `format` must be.

    Raises:
        FormatError: If it is of another format.
        ValueError: If it is damaged; the message says how, for a person.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is malformed: {error}") from error
    if not isinstance(value, dict) or not {"format", "sha256"} <= value.keys():
        raise ValueError("is malformed: no object with a format and a SHA-256")
    if value["format"] != format_number:
        raise FormatError(value["format"], format_number)
    if value.pop("sha256") != _digest(value):
        raise ValueError("does not have the contents that its own SHA-256 names")
    return value


def json_digest(value: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object's contents, in hexadecimal, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _digest(value: Mapping[str, Any]) -> str:
    """Of the object without its digest."""
    return hashlib.sha256(_dump(value).encode("utf-8", "surrogatepass")).hexdigest()
