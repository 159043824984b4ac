"""A Jetson whose compiler and GPU are fakes; its board is a directory tree, and all else is the project's."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from engines.tensorrt.fake_bindings import FakeGpu
from lifecycle.test_device_choice import RELEASE, with_gpu
from lifecycle.test_plan_judging import Compiler
from orin_rerank.board.request import OUTCOME
from orin_rerank.board.tuner import tune_board
from orin_rerank.board.tuning import Tuning
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.engines.tensorrt.builder import BuildReport, PlanBuilder
from orin_rerank.errors import BuildError, UnavailableError
from orin_rerank.lifecycle.compile_target import CompileTarget
from orin_rerank.lifecycle.doctor.probe import MachineProbe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.engines.tensorrt.job import BuildJob
    from orin_rerank.lifecycle.first_boot.place import Place

__all__ = ["Builder", "on_jetson", "tuned"]


class Builder(PlanBuilder):
    """Compiles at once; `fails` says for which precisions it does not."""

    def __init__(self) -> None:
        self.compiler = Compiler()
        self.fails: set[str] = set()
        self.hangs = False

    def build(
        self,
        job: BuildJob,
        watch: Callable[[Any], None] = lambda _: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> BuildReport:
        while self.hangs and not is_cancelled():
            time.sleep(0.01)
        if is_cancelled():
            raise UnavailableError("the daemon stops")
        if any(precision in job.graph.name for precision in self.fails):
            raise BuildError("could not find any implementation", item=job.graph.name)
        return self.compiler.build(job, watch)


def on_jetson(place: Place, builder: Builder, gpu: FakeGpu, release: str = RELEASE) -> Place:
    return dataclasses.replace(
        place,
        accelerators=with_gpu(gpu, release),
        find_target=lambda: CompileTarget(release, FakeGpu(integrated=True).open(0)),
        probe=lambda: MachineProbe(pycuda="2026.1", gpu=FakeGpu(integrated=True).open(0)),
        builder=builder,
        engine=EngineSettings(threads=1, token_budget=64),
    )


def tuned(paths: BoardPaths, state: Path, **outcome: Any) -> None:
    """What the root service does at boot, and notes; `outcome` says otherwise."""
    done = tune_board(paths, Tuning(), state, lambda _: None)
    file = paths.at(str(OUTCOME))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(dataclasses.replace(done, **outcome).to_json())
