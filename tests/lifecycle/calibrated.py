"""A tiny model that has been calibrated once, and places to do it again."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.calibration_sets import write_calibration_set, write_judged_set
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.store import EngineStore
from orin_rerank.lifecycle.calibrate import CalibrationOptions, CalibrationResult, Spectator, calibrate

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.quantization.coverage import Coverage
    from orin_rerank.quantization.gate import GateRecord
    from orin_rerank.quantization.plan import QuantizationPlan


@dataclass(frozen=True)
class Workplace:
    """A bundle, sets that fit it, and a store."""

    bundle: Bundle
    calibration: Path
    judged: Path
    store: EngineStore

    def options(self, **changes: Any) -> CalibrationOptions:
        return CalibrationOptions(**{"data": self.calibration, "evaluation": self.judged, "threads": 1, **changes})

    def calibrate(self, spectator: Spectator | None = None, **changes: Any) -> CalibrationResult:
        return calibrate(self.bundle, self.options(**changes), self.store, spectator)

    @property
    def in_service(self) -> Path | None:
        return self.store.quantized(self.bundle.digest)

    @property
    def place(self) -> Path:
        return self.store.root / "engines" / self.bundle.digest


@dataclass
class Diary(Spectator):
    """Keeps what it was told."""

    stages: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    cards: list[Coverage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    attempts: list[tuple[QuantizationPlan, GateRecord]] = field(default_factory=list)

    def on_stage(self, stage: str, done: int, total: int) -> None:
        self.stages.setdefault(stage, []).append((done, total))

    def on_coverage(self, card: Coverage) -> None:
        self.cards.append(card)

    def on_warning(self, warning: str) -> None:
        assert self.cards, "the card is shown before what is wrong with it"
        self.warnings.append(warning)

    def on_attempt(self, plan: QuantizationPlan, record: GateRecord) -> None:
        self.attempts.append((plan, record))


@dataclass(frozen=True)
class Made:
    """A first calibration."""

    at: Workplace
    result: CalibrationResult
    diary: Diary
    ranges: Path

    def elsewhere(self, folder: Path) -> Workplace:
        """The same with a store of its own, in which the same engine is in service."""
        shutil.copytree(self.at.store.root, folder / "state", symlinks=True)
        return dataclasses.replace(self.at, store=EngineStore(folder / "state"))


@pytest.fixture(scope="session")
def made(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("calibrated")
    bundle = Bundle.open(bundle_folder)
    at = Workplace(
        bundle,
        write_calibration_set(root / "calibration"),
        write_judged_set(root / "judged", bundle),
        EngineStore(root / "state"),
    )
    diary, ranges = Diary(), root / "ranges.safetensors"
    return Made(at, at.calibrate(diary, ranges=ranges), diary, ranges)
