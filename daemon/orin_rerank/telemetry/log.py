"""The journal: `logging` with named values, readable on a terminal and JSON lines elsewhere.

A record's values go through `extra=fields(...)`, so that no message is composed of them::

    _log.warning("pack failed", extra=fields(documents=12, tokens=700))

Contents of requests never reach a record. The one way in which they could slip through is the text of a foreign
exception (`KeyError: '<somebody's document>'`), so tracebacks are written as frames and type names; only the project's
own errors, whose messages hold no contents, and those of the operating system speak for themselves.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import traceback
from typing import Any, TextIO

from orin_rerank.errors import OrinRerankError

__all__ = ["configure", "fields"]

_FIELDS = "orin_rerank_fields"
_ROOT = "orin_rerank"


def fields(**values: str | float | bool | None) -> dict[str, Any]:
    """Returns the `extra` of a log call that carries these values."""
    return {_FIELDS: values}


def configure(level: str = "info", *, stream: TextIO | None = None, as_json: bool | None = None) -> None:
    """Sends the records of this process to one stream, in place of whatever was set up before.

    Args:
        level: Least severe level of the project's own records (`debug`, `info`, `warning`, `error`); those of
            libraries are shown from warnings on.
        stream: Where to; standard error by default.
        as_json: JSON lines or text; None chooses text on a terminal.
    """
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonFormatter() if (not target.isatty() if as_json is None else as_json) else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper())


def _values(record: logging.LogRecord) -> dict[str, Any]:
    values: dict[str, Any] = getattr(record, _FIELDS, {})
    return values


def _logger(record: logging.LogRecord) -> str:
    return record.name.removeprefix(f"{_ROOT}.")


def _exception(error: BaseException) -> str:
    """A traceback without the texts of foreign exceptions and without source lines' values."""
    lines: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        spoken = isinstance(current, (OrinRerankError, OSError))
        name = f"{type(current).__module__}.{type(current).__qualname__}".removeprefix("builtins.")
        frames = traceback.extract_tb(current.__traceback__)
        where = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
        lines.append(f"{name}: {current}{where}" if spoken else f"{name}{where}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\ncaused by ".join(lines)


class TextFormatter(logging.Formatter):
    """`12:00:01 INFO serving.daemon: serving model=mini seconds=2.1`."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as text; a traceback follows on lines of its own."""
        time = dt.datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        head = f"{time} {record.levelname} {_logger(record)}: {record.getMessage()}"
        pairs = (f"{key}={_quoted(value)}" for key, value in _values(record).items() if value is not None)
        text = " ".join((head, *pairs))
        error = record.exc_info[1] if record.exc_info else None
        return f"{text}\n{_exception(error)}" if error is not None else text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the record's own values, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line."""
        time = dt.datetime.fromtimestamp(record.created, tz=dt.timezone.utc)
        head = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": _logger(record),
            "message": record.getMessage(),
        }
        line: dict[str, Any] = head | _values(record) | head
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["exception"] = _exception(error)
        return json.dumps(line, ensure_ascii=False, default=str)


def _quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    plain = text and all(c.isprintable() and c not in ' "=' for c in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
