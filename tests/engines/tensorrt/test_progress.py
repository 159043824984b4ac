from __future__ import annotations

from orin_rerank.engines.tensorrt.job import BuilderSaid, PhaseFinished, PhaseStarted, StepDone
from orin_rerank.engines.tensorrt.progress import BuildProgress


def test_phases_inside_phases() -> None:
    progress = BuildProgress()
    seen = []
    for event in (
        PhaseStarted("all", None, 4),
        StepDone("all", 0),
        PhaseStarted("tactics", "all", 2),
        StepDone("tactics", 0),
        PhaseStarted("kernel", "tactics", 10),
        StepDone("kernel", 4),
        BuilderSaid("WARNING", "something"),
        PhaseFinished("kernel"),
        StepDone("tactics", 1),
        PhaseFinished("tactics"),
        StepDone("all", 1),
        PhaseFinished("all"),
    ):
        progress(event)
        seen.append((round(progress.fraction, 4), progress.phase))
    assert seen == [
        (0.0, "all"),
        (0.25, "all"),
        (0.25, "tactics"),
        (0.375, "tactics"),
        (0.375, "kernel"),
        (0.4375, "kernel"),
        (0.4375, "kernel"),
        (0.4375, "tactics"),
        (0.5, "tactics"),
        (0.5, "all"),
        (0.5, "all"),
        (1.0, ""),
    ]


def test_it_never_goes_back_but_for_a_new_attempt() -> None:
    progress = BuildProgress()
    for event in (PhaseStarted("all", None, 2), PhaseStarted("a", "all", 2), StepDone("a", 0), PhaseFinished("a")):
        progress(event)
    assert progress.fraction == 0.25
    progress(PhaseStarted("a", "all", 100))
    assert progress.fraction == 0.25
    progress(PhaseStarted("all", None, 2))
    assert progress.fraction == 0.0


def test_what_nobody_announced_does_no_harm() -> None:
    progress = BuildProgress()
    for event in (StepDone("?", 3), PhaseFinished("?"), PhaseStarted("empty", None, 0), StepDone("empty", 7)):
        progress(event)
    assert progress.fraction == 1.0
