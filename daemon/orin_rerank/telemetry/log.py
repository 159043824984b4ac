"""The journal: `logging` with named values: text on a terminal, fields in systemd's journal, JSON lines elsewhere.

A record's values go through `extra=fields(...)`, so that no message is composed of them::

    _log.warning("pack failed", extra=fields(documents=12, tokens=700))

In systemd's journal a value is a field, so that `journalctl -u orin-rerank ORIN_RERANK_MODEL=mini` finds it; that takes
systemd-python, which Debian and Ubuntu call python3-systemd.

Contents of requests never reach a record. The one way in which they could slip through is the text of a foreign
exception (`KeyError: '<somebody's document>'`), so tracebacks are written as frames and type names; only the project's
own errors, whose messages hold no contents, and those of the operating system speak for themselves. asyncio writes
exceptions into its messages, from the second line on: of those the first is kept.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
import traceback
from typing import Any, Final, Protocol, TextIO

from orin_rerank.errors import OrinRerankError

__all__ = ["JournalHandler", "configure", "fields"]

_FIELDS = "orin_rerank_fields"
_ROOT = "orin_rerank"
_ASYNCIO: Final = "asyncio"

_PREFIX: Final = "ORIN_RERANK_"
"""Of the journal's fields for a record's own values, so that none passes for one of those that everybody knows."""

_PRIORITIES: Final = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""syslog(3)'s numbers."""


class _Send(Protocol):
    """`systemd.journal.send`."""

    def __call__(self, MESSAGE: str, **fields: str | int) -> object: ...  # noqa: N803 - its name


def fields(**values: str | float | bool | None) -> dict[str, Any]:
    """Returns the `extra` of a log call that carries these values."""
    return {_FIELDS: values}


def configure(level: str = "info", *, stream: TextIO | None = None, as_json: bool | None = None) -> None:
    """Sends the records of this process to one place, instead of wherever they went before.

    Args:
        level: Least severe level of the project's own records (`debug`, `info`, `warning`, `error`); those of
            libraries are shown from warnings on.
        stream: Where to; standard error by default, or systemd's journal where standard error leads there.
        as_json: JSON lines or text; None chooses text on a terminal.
    """
    root = logging.getLogger()
    root.handlers[:] = [_handler(stream, as_json)]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper())


def _handler(stream: TextIO | None, as_json: bool | None) -> logging.Handler:
    if stream is None and as_json is None and _leads_to_journal(sys.stderr):
        send = _journal_send()
        if send is not None:
            return JournalHandler(send)
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonFormatter() if (not target.isatty() if as_json is None else as_json) else TextFormatter())
    return handler


def _leads_to_journal(stream: TextIO) -> bool:
    """Whether systemd has connected a stream to its journal, which it tells by device and inode."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _journal_send() -> _Send | None:
    """The journal's own entrance; None without systemd-python."""
    try:
        from systemd import journal  # noqa: PLC0415 - not every machine has it
    except ImportError:
        return None
    send: _Send = journal.send
    return send


def _values(record: logging.LogRecord) -> dict[str, Any]:
    values: dict[str, Any] = getattr(record, _FIELDS, {})
    return values


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage()
    return message.partition("\n")[0] if record.name.partition(".")[0] == _ASYNCIO else message


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


def _as_text(record: logging.LogRecord) -> str:
    pairs = (f"{key}={_quoted(value)}" for key, value in _values(record).items() if value is not None)
    text = " ".join((f"{_logger(record)}: {_message(record)}", *pairs))
    error = record.exc_info[1] if record.exc_info else None
    return f"{text}\n{_exception(error)}" if error is not None else text


class TextFormatter(logging.Formatter):
    """`12:00:01 INFO serving.daemon: serving model=mini seconds=2.1`."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as text; a traceback follows on lines of its own."""
        time = dt.datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        return f"{time} {record.levelname} {_as_text(record)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the record's own values, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line."""
        time = dt.datetime.fromtimestamp(record.created, tz=dt.timezone.utc)
        head = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": _logger(record),
            "message": _message(record),
        }
        line: dict[str, Any] = head | _values(record) | head
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["exception"] = _exception(error)
        return json.dumps(line, ensure_ascii=False, default=str)


class JournalHandler(logging.Handler):
    """Into systemd's journal: a message for people, and every value as a field.

    systemd-python has a handler too, but that one sends whole exceptions, with what foreign ones quote.

    Args:
        send: `systemd.journal.send`, or what stands for it.
    """

    def __init__(self, send: _Send) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Sends one record."""
        try:
            values = {**_values(record), "logger": _logger(record)}
            self._send(
                MESSAGE=_as_text(record),
                PRIORITY=str(_PRIORITIES.get(record.levelno, 5)),
                SYSLOG_IDENTIFIER="orin-rerank",
                CODE_FILE=record.pathname,
                CODE_LINE=record.lineno,
                CODE_FUNC=record.funcName,
                **{f"{_PREFIX}{key.upper()}": str(value) for key, value in values.items() if value is not None},
            )
        except Exception:  # noqa: BLE001 - as every handler of logging: what is said must not stop what is done
            self.handleError(record)


def _quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    plain = text and all(c.isprintable() and c not in ' "=' for c in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
