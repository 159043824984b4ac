"""How commands write: tables for people, JSON for programs, one line for an error."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["console", "counted", "print_error", "print_json", "progress_console", "score_bar", "snippet"]

_PIPE_WIDTH = 120
_BAR_CELLS = 10
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def console() -> Console:
    """For results, on standard output. A pipe has no width of its own: it gets 120 columns or what COLUMNS says."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPE_WIDTH if piped else None, highlight=False)


def progress_console() -> Console:
    """For progress, on standard error, so that results can be piped on."""
    return Console(stderr=True, highlight=False)


def print_json(value: Mapping[str, object]) -> None:
    """Writes a value as indented JSON on standard output."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")


def print_error(message: str, hint: str | None = None) -> None:
    """Writes an error as one line on standard error, with a line for what to do about it where that is known."""
    sys.stderr.write(f"orin-rerank: error: {snippet(message, 1000)}\n")
    if hint:
        sys.stderr.write(f"  hint: {snippet(hint, 1000)}\n")


def snippet(text: str, limit: int) -> str:
    """A text as one printable line of at most `limit` characters.

    What cannot be printed is replaced: a document may hold escape sequences, which must not reach the terminal.
    """
    line = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in _flat(text))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 picture`, `2 pictures`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def score_bar(score: float) -> Text:
    """A bar for a score from 0 to 1."""
    eighths = round(min(max(score, 0.0), 1.0) * _BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    bar = "█" * full + (_EIGHTHS[rest] if rest else "")
    return Text(bar.ljust(_BAR_CELLS), style="green" if score >= 0.5 else "yellow")


def _flat(text: str) -> str:
    return " ".join(text.split())
