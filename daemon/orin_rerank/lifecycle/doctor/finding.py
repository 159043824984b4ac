"""What a check finds, and what a check is."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context

__all__ = ["Check", "Finding", "Verdict", "fail", "ok", "warn"]


class Verdict(str, enum.Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, though not as it should, or may stop working."""
    FAIL = "fail"
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        verdict: How bad it is.
        text: What was found, in one line.
        remedy: What to do about it, in one line; None where nothing need be done.
        command: What to type for that; None where no command does it.
    """

    verdict: Verdict
    text: str
    remedy: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        subject: What it belongs to, such as `power and clocks`.
        name: What it looks at, such as `power mode`; no two have the same.
        run: Looks.
    """

    subject: str
    name: str
    run: Callable[[BoardPaths, Context], Finding | None]


def ok(text: str) -> Finding:
    """All is as it should be."""
    return Finding(Verdict.OK, text)


def warn(text: str, remedy: str | None = None, command: str | None = None) -> Finding:
    """It works, but."""
    return Finding(Verdict.WARN, text, remedy, command)


def fail(text: str, remedy: str | None = None, command: str | None = None) -> Finding:
    """It does not work."""
    return Finding(Verdict.FAIL, text, remedy, command)
