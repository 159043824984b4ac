"""All checks, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.errors import OrinRerankError
from orin_rerank.lifecycle.doctor import board, disk, gpu, heat, memory, model, power, service
from orin_rerank.lifecycle.doctor.finding import Finding, Verdict, fail, warn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.finding import Check

__all__ = ["ALL_CHECKS", "Examined", "Report", "examine"]

ALL_CHECKS: Final = (
    *board.CHECKS,
    *power.CHECKS,
    *heat.CHECKS,
    *memory.CHECKS,
    *disk.CHECKS,
    *gpu.CHECKS,
    *model.CHECKS,
    *service.CHECKS,
)
"""In the order in which they are shown: what lies beneath comes first."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A check and what it found."""

    check: Check
    finding: Finding

    def as_dict(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "subject": self.check.subject,
            "check": self.check.name,
            "verdict": self.finding.verdict.value,
            "finding": self.finding.text,
            "remedy": self.finding.remedy,
            "command": self.finding.command,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks found.

    Attributes:
        examined: Check by check; those that do not apply to this machine are left out.
    """

    examined: tuple[Examined, ...]

    def count(self, verdict: Verdict) -> int:
        """How many checks came to a verdict."""
        return sum(one.finding.verdict is verdict for one in self.examined)

    @property
    def healthy(self) -> bool:
        """Whether nothing fails."""
        return self.count(Verdict.FAIL) == 0

    def as_dict(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "healthy": self.healthy,
            **{verdict.value: self.count(verdict) for verdict in Verdict},
            "checks": [one.as_dict() for one in self.examined],
        }


def examine(paths: BoardPaths, context: Context, checks: Iterable[Check] = ALL_CHECKS) -> Report:
    """Runs checks. One that goes wrong is a finding itself, and keeps no other from being run."""
    examined = []
    for check in checks:
        finding = _run(check, paths, context)
        if finding is not None:
            examined.append(Examined(check, finding))
    return Report(tuple(examined))


def _run(check: Check, paths: BoardPaths, context: Context) -> Finding | None:
    try:
        return check.run(paths, context)
    except PermissionError as error:
        return _needs_root(f"{error.filename} may not be read")
    except OrinRerankError as error:
        if isinstance(error.__cause__, PermissionError):
            return _needs_root(str(error))
        return fail(str(error))
    except Exception as error:  # noqa: BLE001 - a doctor that falls ill helps nobody
        return warn(f"could not be checked: {type(error).__name__}: {error}", "that is a bug of orin-rerank's")


def _needs_root(text: str) -> Finding:
    return warn(text, "root can look at it", "sudo orin-rerank doctor")
