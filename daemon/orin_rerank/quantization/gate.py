"""The gate: decides from a paired comparison with full precision whether an INT8 engine may be served.

It fails closed. A figure that is missing, not a number or at odds with the others refuses as surely as a bad one does,
and so does a record that is damaged or of another engine. The verdict is never taken from the record: whoever loads an
engine judges the recorded figures again.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.sealed import json_digest
from orin_rerank.errors import RefusedPrecisionError, SettingsError
from orin_rerank.evaluation.paired import PairedFigures, PairedReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from orin_rerank.engines.bundle import FileEntry

__all__ = [
    "GATE_FILE",
    "GateRecord",
    "GateSubject",
    "GateThresholds",
    "GateVerdict",
    "engine_digest",
    "judge",
    "read_gate",
]

GATE_FILE: Final = "quantization/gate.json"
_FORMAT: Final = 1
_FEW_QUERIES: Final = 10
"""A split of fewer queries has no interval worth the name and is judged as part of the whole alone."""

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class GateThresholds:
    """What an INT8 engine may cost; settings, checked when made.

    The loss and the correlation over all queries are the product's promise. The others are wide enough that an engine
    which keeps that promise evenly meets them: with white noise on the margins of the mini model on the shipped set, a
    correlation of .995 goes with 6 % of flips, a largest shift of 0.44 spreads and .975 as the lowest correlation of a
    split. They are there for engines that are good on average and ruined somewhere: a modality, a scale, an outlier.

    Attributes:
        max_ndcg_loss: By how much NDCG@10 over all queries may fall; 0.005 is half a point.
        min_correlation: Least correlation of all margins.
        max_flips: Largest share of document pairs whose order changed.
        max_rms_shift: Root mean square by which margins may move, in standard deviations of the reference's margins:
            correlation and flips do not see all scores moved or stretched alike, but who compares scores does.
        max_largest_shift: The most by which one margin may move, in the same unit.
        max_split_ndcg_loss: A split is refused if it surely lost more: if the whole interval of its difference lies
            below. Splits of fewer than ten queries are left out.
        min_split_correlation: Least correlation of a split's margins; the same splits are left out.
        min_distinct: Least share of the reference's different margins that the candidate still tells apart.
        min_queries: Fewer judged queries decide nothing.

    Raises:
        SettingsError: If a value is out of its range; the item names it.
    """

    max_ndcg_loss: float = 0.005
    min_correlation: float = 0.995
    max_flips: float = 0.08
    max_rms_shift: float = 0.25
    max_largest_shift: float = 1.0
    max_split_ndcg_loss: float = 0.02
    min_split_correlation: float = 0.97
    min_distinct: float = 0.99
    min_queries: int = 50

    def __post_init__(self) -> None:
        for name, high in (
            ("max_ndcg_loss", 1.0),
            ("min_correlation", 1.0),
            ("max_flips", 1.0),
            ("max_rms_shift", 100.0),
            ("max_largest_shift", 100.0),
            ("max_split_ndcg_loss", 1.0),
            ("min_split_correlation", 1.0),
            ("min_distinct", 1.0),
            ("min_queries", 1_000_000),
        ):
            value, low = getattr(self, name), 1 if name == "min_queries" else 0
            if not low <= value <= high:  # NaN is neither
                raise SettingsError(f"must be from {low} to {high:g}, not {value}", item=name)

    @property
    def loosened(self) -> tuple[str, ...]:
        """The limits that let more pass than the usual ones do."""
        return tuple(
            one.name
            for one in fields(self)
            if (getattr(self, one.name) < one.default) is one.name.startswith("min_")
            and getattr(self, one.name) != one.default
        )


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What the gate says.

    Attributes:
        reasons: Why the engine is refused, a sentence each; empty if it passed.
    """

    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the engine may be served."""
        return not self.reasons


@dataclass(frozen=True, slots=True)
class GateSubject:
    """Which engine was compared with which: a record of another one says nothing.

    Attributes:
        source: Digest of the full-precision bundle.
        engine: `engine_digest` of the INT8 bundle.
    """

    source: str
    engine: str


@dataclass(frozen=True, slots=True)
class GateRecord:
    """What the gate saw; kept with the engine in `quantization/gate.json`.

    Attributes:
        subject: What was compared.
        dataset: SHA-256 of the evaluation set.
        thresholds: By which it was judged.
        report: The comparison: INT8 is the candidate, full precision the reference.
        golden: What the engine gave the bundle's golden pairs when it was judged, in their order, to compare with at
            every start; None where the bundle itself has its margins.
    """

    subject: GateSubject
    dataset: str
    thresholds: GateThresholds
    report: PairedReport
    golden: tuple[float, ...] | None = None

    @property
    def verdict(self) -> GateVerdict:
        """What the figures amount to under the record's thresholds, judged now."""
        return judge(self.report, self.thresholds)

    def to_json(self) -> str:
        """The record's text."""
        verdict = self.verdict
        value = {
            "format": _FORMAT,
            "subject": asdict(self.subject),
            "dataset": self.dataset,
            "thresholds": asdict(self.thresholds),
            "verdict": {"passed": verdict.passed, "reasons": list(verdict.reasons)},
            "report": self.report.as_dict(),
            **({} if self.golden is None else {"golden": list(self.golden)}),
        }
        return json.dumps({**value, "sha256": json_digest(value)}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> GateRecord:
        """Reads a record that need not have passed.

        Raises:
            RefusedPrecisionError: If it is malformed, edited or of another format.
        """
        try:
            value = json.loads(text)
            if value["format"] != _FORMAT:
                raise RefusedPrecisionError(f"the gate's record is of format {value['format']!r}, not {_FORMAT}")
            if value.pop("sha256") != json_digest(value):
                raise RefusedPrecisionError("the gate's record does not have the contents that its own SHA-256 names")
            record = cls(
                GateSubject(str(value["subject"]["source"]), str(value["subject"]["engine"])),
                str(value["dataset"]),
                GateThresholds(**{field.name: value["thresholds"][field.name] for field in fields(GateThresholds)}),
                PairedReport.from_dict(value["report"]),
                tuple(map(float, value["golden"])) if "golden" in value else None,
            )
            passed = value["verdict"]["passed"] is True
        except (KeyError, TypeError, ValueError, AttributeError, SettingsError) as error:
            raise RefusedPrecisionError(f"the gate's record is damaged: {type(error).__name__}: {error}") from error
        if not passed and record.verdict.passed:
            raise RefusedPrecisionError("the gate's record says that it refused figures which would pass")
        return record


def judge(report: PairedReport, thresholds: GateThresholds) -> GateVerdict:
    """Judges a comparison.

    Args:
        report: INT8 as the candidate, full precision as the reference.
        thresholds: What it may cost.
    """
    reasons = list(_hollow(report, thresholds))
    if not reasons:
        reasons += _too_costly(report.total, thresholds)
    if not reasons:
        reasons += [
            reason for split in report.splits if split.queries >= _FEW_QUERIES for reason in _ruined(split, thresholds)
        ]
    return GateVerdict(tuple(reasons))


def read_gate(path: Path, subject: GateSubject) -> GateRecord:
    """Reads the record of an engine that is to be served, and judges it again.

    Args:
        path: The record, `GATE_FILE` in the engine's bundle.
        subject: The engine at hand.

    Raises:
        RefusedPrecisionError: If there is no record, it is damaged, edited or of another engine, or the gate refuses.
    """
    try:
        record = GateRecord.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RefusedPrecisionError(f"the gate's record cannot be read: {reason}", item=str(path)) from error
    except RefusedPrecisionError as error:
        error.item = str(path)
        raise
    for what, recorded, here in (
        ("source bundle", record.subject.source, subject.source),
        ("INT8 engine", record.subject.engine, subject.engine),
    ):
        if recorded != here:
            raise RefusedPrecisionError(
                f"the gate's record is of {what} {recorded[:12]}, and this is {here[:12]}", item=str(path)
            )
    verdict = record.verdict
    if not verdict.passed:
        raise RefusedPrecisionError(f"the gate refuses INT8: {'; '.join(verdict.reasons)}", item=str(path))
    return record


def engine_digest(files: Mapping[str, FileEntry]) -> str:
    """Identifies what an INT8 bundle computes: its files apart from `quantization/`, where the record itself lies.

    Args:
        files: By path, as in the bundle's manifest.

    Returns:
        SHA-256 in hexadecimal.
    """
    folder = GATE_FILE.partition("/")[0]
    return json_digest({name: entry.sha256 for name, entry in files.items() if name.partition("/")[0] != folder})


def _hollow(report: PairedReport, thresholds: GateThresholds) -> Iterator[str]:
    """Why a report is nothing to go by."""
    total = report.total
    if total.queries < thresholds.min_queries:
        yield f"{total.queries} judged queries decide nothing; {thresholds.min_queries} are needed"
    if total.non_finite:
        yield f"{total.non_finite} of {total.documents} margins are not finite"
        return
    if not total.candidate_distinct >= thresholds.min_distinct * total.reference_distinct:
        yield (
            f"scores collapsed: {total.candidate_distinct} different margins are left "
            f"of {total.reference_distinct} in full precision"
        )
    if unknown := [name for name, value in _figures(total) if not math.isfinite(value)]:
        yield f"not a number: {', '.join(unknown)}"
    elif contradiction := _contradiction(report):
        yield f"the figures contradict each other: {contradiction}"


def _too_costly(total: PairedFigures, thresholds: GateThresholds) -> Iterator[str]:
    """What the whole costs too much in."""
    loss = -total.difference.mean
    if not loss <= thresholds.max_ndcg_loss:
        yield (
            f"NDCG@10 falls by {loss:.4f}, from {total.reference.mean:.4f} to {total.candidate.mean:.4f}; "
            f"at most {thresholds.max_ndcg_loss:g} is allowed"
        )
    if not total.correlation >= thresholds.min_correlation:
        yield f"margins correlate by {total.correlation:.4f}; at least {thresholds.min_correlation:g} is asked for"
    if not total.flips <= thresholds.max_flips:
        yield f"{total.flips:.1%} of the document pairs change their order; at most {thresholds.max_flips:.1%} may"
    for name, shift, most in (
        ("the root mean square", total.rms_shift, thresholds.max_rms_shift),
        ("the largest", total.largest_shift, thresholds.max_largest_shift),
    ):
        if not shift <= most * total.spread:
            yield (
                f"{name} shift of a margin is {shift:.2f}; at most {most * total.spread:.2f} is allowed, "
                f"{most:g} times their standard deviation"
            )


def _ruined(split: PairedFigures, thresholds: GateThresholds) -> Iterator[str]:
    """What one split lost that an average over all might hide."""
    if not split.difference.high >= -thresholds.max_split_ndcg_loss:
        yield (
            f"NDCG@10 of {split.name} falls by {-split.difference.mean:.4f}, "
            f"and surely by more than {thresholds.max_split_ndcg_loss:g}"
        )
    if not split.correlation >= thresholds.min_split_correlation:
        yield (
            f"margins of {split.name} correlate by {split.correlation:.4f}; "
            f"at least {thresholds.min_split_correlation:g} is asked for"
        )


def _figures(one: PairedFigures) -> Iterator[tuple[str, float]]:
    """Every figure that must be a number, with its name."""
    for name, value in asdict(one).items():
        if isinstance(value, dict):
            yield from ((f"{name}.{part}", number) for part, number in value.items())
        elif not isinstance(value, str):
            yield name, value


_WHOLES: Final[tuple[tuple[str, Callable[[list[float]], float]], ...]] = (
    *((name, sum) for name in ("queries", "documents", "pairs", "reference_distinct", "candidate_distinct")),
    ("largest_shift", max),
)
"""How a figure of the whole follows from those of the splits."""


def _contradiction(report: PairedReport) -> str | None:
    """The first figure of the whole that does not follow from the others; None if all do."""
    total, splits = report.total, report.splits
    for name, follows in _WHOLES:
        if not splits or follows([getattr(split, name) for split in splits]) != getattr(total, name):
            return f"{name} of the whole and of its splits"
    for one in (*splits, total):
        if not abs(one.candidate.mean - one.reference.mean - one.difference.mean) <= _ROUNDING:
            return f"NDCG@10 of {one.name} and its difference"
    gained = sum(split.queries * split.difference.mean for split in splits)
    if not abs(gained - total.queries * total.difference.mean) <= _ROUNDING * total.queries:
        return "difference of the whole and of its splits"
    return None
