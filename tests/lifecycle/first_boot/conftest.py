"""A machine to prepare: the tiny bundle, sets that fit it, and a board that is a directory tree."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fakes.board import AGX_ORIN_64, make_board, make_pc
from lifecycle.calibration_sets import write_calibration_set, write_judged_set
from lifecycle.conftest import bundle_folder, checkpoint, margins
from lifecycle.first_boot.boots import open_boots
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import UnavailableError
from orin_rerank.lifecycle.first_boot.backoff import Moment
from orin_rerank.lifecycle.first_boot.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.first_boot.boots import Boots
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.first_boot.progress import Progress

__all__ = ["bundle_folder", "checkpoint", "margins"]


@dataclass
class Told:
    """A listener that remembers what it heard, and may want an end from a step on."""

    heard: list[Progress] = field(default_factory=list)
    stop_at: str | None = None
    stopping: bool = False

    def __call__(self, progress: Progress) -> None:
        self.heard.append(progress)
        if self.stop_at is not None and self.stop_at in str(progress):
            self.stopping = True
        if self.stopping:
            raise UnavailableError("the daemon stops")

    @property
    def steps(self) -> list[str]:
        """Steps in their order, each once."""
        return list(dict.fromkeys(progress.step.value for progress in self.heard))


@dataclass
class Clock:
    """A clock that stands still until it is told to go on."""

    wall_s: float = 1_800_000_000.0
    boot: int = 1
    boot_s: float = 100.0

    def __call__(self) -> Moment:
        return Moment(self.wall_s, f"boot-{self.boot}", self.boot_s)

    def sleep(self, seconds: float) -> None:
        self.wall_s += seconds
        self.boot_s += seconds

    def reboot(self, wall_s: float | None = None) -> None:
        self.boot += 1
        self.boot_s = 5.0
        self.wall_s = self.wall_s + 60 if wall_s is None else wall_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def sets(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A calibration set and a judged set."""
    root = tmp_path_factory.mktemp("sets")
    judged = write_judged_set(root / "judged", Bundle.open(bundle_folder))
    return write_calibration_set(root / "calibration"), judged


@pytest.fixture(scope="session")
def boots(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boots]:
    """First boots that are done harm."""
    if shutil.which("gcc") is None:
        pytest.skip("the shim takes gcc: apt install gcc libc6-dev")
    with open_boots(bundle_folder, tmp_path_factory.mktemp("boots")) as boots:
        yield boots


@pytest.fixture
def pc(tmp_path: Path) -> BoardPaths:
    return make_pc(tmp_path / "board")


@pytest.fixture
def jetson(tmp_path: Path) -> BoardPaths:
    """An AGX Orin whose GPU's driver is up."""
    paths = make_board(tmp_path / "jetson", AGX_ORIN_64)
    node = paths.at("/dev/nvhost-gpu")
    node.parent.mkdir(parents=True)
    node.touch()
    return paths


@pytest.fixture
def place(bundle_folder: Path, sets: tuple[Path, Path], pc: BoardPaths, tmp_path: Path, clock: Clock) -> Place:
    """A PC with nothing prepared."""
    return Place(
        bundle_folder,
        tmp_path / "state",
        *sets,
        EngineSettings(threads=1, token_budget=256),
        paths=pc,
        now=clock,
        sleep=clock.sleep,
    )


def changed(place: Place, **changes: Any) -> Place:
    """The same machine with something else."""
    return dataclasses.replace(place, **changes)
