"""What a check of a bundle gives."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.engines.bundle import Bundle

__all__ = ["BundleReport", "Check", "CheckResult", "Fault", "State"]


class Check(enum.Enum):
    """What is looked at, in this order."""

    MANIFEST = "manifest"
    FILES = "files"
    WEIGHTS = "weights"
    GRAPHS = "graphs"
    TOKENIZER = "tokenizer"
    GOLDEN = "golden pairs"
    INT8 = "int8"
    SELF_TEST = "self-test"


class State(enum.Enum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong.

    Attributes:
        item: The file, by its path in the bundle, and the place in it where there is one.
        problem: What is wrong with it, for people.
        hint: What to do about it, where that is known.
    """

    item: str
    problem: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found.

    Attributes:
        check: Which.
        state: What came of it.
        detail: What was seen, or why it was skipped; for people.
        faults: What is wrong; none unless it failed.
    """

    check: Check
    state: State
    detail: str
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What all checks found.

    Attributes:
        folder: Where the bundle lies.
        bundle: None where its manifest cannot be read.
        results: One of every check that concerns it.
        notes: What is no fault, but good to know.
    """

    folder: Path
    bundle: Bundle | None
    results: tuple[CheckResult, ...]
    notes: tuple[str, ...]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything that is wrong."""
        return tuple(fault for result in self.results for fault in result.faults)
