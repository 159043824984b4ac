"""Checks of power mode, clocks and the root service."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.board import BOARDS, NX_16, BoardSpec, make_pc
from lifecycle.doctor.places import board, context_of, said
from orin_rerank.board.request import OUTCOME
from orin_rerank.board.tuner import tune_board
from orin_rerank.board.tuning import Tuning, TuningOutcome
from orin_rerank.lifecycle.doctor.finding import Verdict
from orin_rerank.lifecycle.doctor.power import CHECKS, check_clocks, check_power_mode, check_root_service


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_a_board_that_was_tuned_is_fine(tmp_path: Path, spec: BoardSpec) -> None:
    paths, context = board(tmp_path, spec), context_of(tmp_path)
    fastest = next(mode.name for mode in spec.modes if mode.id == spec.fastest)
    before = said(check_power_mode(paths, context))
    assert before[0] is (Verdict.OK if spec.default == spec.fastest else Verdict.WARN)
    finding = check_clocks(paths, context)
    assert said(finding)[0] is Verdict.WARN
    assert finding is not None
    assert finding.command == "sudo orin-rerank board apply"
    tune_board(paths, Tuning(), tmp_path / "kept", sleep=lambda _: None)
    assert said(check_power_mode(paths, context)) == (Verdict.OK, f"{fastest}, the fastest")
    assert said(check_clocks(paths, context))[1].startswith("locked: GPU at ")


def test_settings_decide_on_the_mode(tmp_path: Path) -> None:
    paths = board(tmp_path)
    named = context_of(tmp_path, tuning=Tuning(power_mode="25W"))
    assert said(check_power_mode(paths, named)) == (Verdict.WARN, "15W, though it should be 25W, as the settings say")
    tune_board(paths, Tuning("25W", lock_clocks=False), tmp_path / "kept", sleep=lambda _: None)
    assert said(check_power_mode(paths, named)) == (Verdict.OK, "25W, as the settings say; MAXN is the fastest")
    kept = context_of(tmp_path, tuning=Tuning("keep", lock_clocks=False))
    assert said(check_power_mode(paths, kept))[0] is Verdict.OK
    assert said(check_clocks(paths, kept)) == (Verdict.OK, "not locked, as the settings say: GPU from 306 to 408 MHz")
    wrong = context_of(tmp_path, tuning=Tuning(power_mode="1000W"))
    assert said(check_power_mode(paths, wrong))[0] is Verdict.FAIL


def test_a_mode_that_nobody_tells(tmp_path: Path) -> None:
    paths = board(tmp_path)
    program = paths.program("nvpmodel")
    assert program is not None
    program.unlink()
    paths.at("/var/lib/nvpmodel/status").unlink()
    assert said(check_power_mode(paths, context_of(tmp_path)))[0] is Verdict.WARN
    paths.at("/etc/nvpmodel.conf").unlink()
    assert said(check_power_mode(paths, context_of(tmp_path))) == (Verdict.FAIL, "/etc/nvpmodel.conf is missing")


def test_a_gpu_whose_clock_is_not_there(tmp_path: Path) -> None:
    paths = board(tmp_path)
    for file in paths.at("/sys/class/devfreq/17000000.gpu").iterdir():
        file.unlink()
    assert said(check_clocks(paths, context_of(tmp_path)))[1].startswith("the GPU's clock cannot be read")


@pytest.mark.parametrize(
    ("outcome", "verdict", "text"),
    [
        (TuningOutcome("MAXN", "MAXN", clocks_locked=True), Verdict.OK, "everything was as it should be"),
        (TuningOutcome("MAXN", changed=("clocks locked",)), Verdict.OK, "clocks locked"),
        (TuningOutcome("15W", "MAXN", problem="nvpmodel failed: x"), Verdict.WARN, "nvpmodel failed: x"),
        (
            TuningOutcome("15W", "MAXN", reboot_needed=True, problem="p"),
            Verdict.WARN,
            "the power mode MAXN waits for a reboot that is made for it",
        ),
        (None, Verdict.WARN, "power mode and clocks have not been set since boot"),
    ],
)
def test_what_the_root_service_said(tmp_path: Path, outcome: TuningOutcome | None, verdict: Verdict, text: str) -> None:
    paths = board(tmp_path, NX_16)
    if outcome is not None:
        file = paths.at(str(OUTCOME))
        file.parent.mkdir(parents=True)
        file.write_bytes(outcome.to_json())
    assert said(check_root_service(paths, context_of(tmp_path))) == (verdict, text)


def test_a_reboot_that_helps_is_named(tmp_path: Path) -> None:
    """Any other leaves the board in its mode, since nvpmodel notes a mode only when its question is answered."""
    paths = board(tmp_path, NX_16)
    file = paths.at(str(OUTCOME))
    file.parent.mkdir(parents=True)
    file.write_bytes(TuningOutcome("15W", "MAXN", reboot_needed=True, problem="p").to_json())
    finding = check_root_service(paths, context_of(tmp_path))
    assert finding is not None
    assert finding.command == "sudo nvpmodel -m 0"


def test_clocks_of_a_gpu_that_only_root_sees(tmp_path: Path) -> None:
    paths = board(tmp_path, NX_16)
    outcome = tune_board(paths, Tuning(), tmp_path / "kept", sleep=lambda _: None)
    paths.at("/sys/class/devfreq/17000000.gpu").rename(paths.at("/sys/class/devfreq/elsewhere"))
    file = paths.at(str(OUTCOME))
    file.parent.mkdir(parents=True)
    file.write_bytes(outcome.to_json())
    assert said(check_clocks(paths, context_of(tmp_path)))[0] is Verdict.OK
    file.unlink()
    assert said(check_clocks(paths, context_of(tmp_path)))[0] is Verdict.WARN


def test_a_pc_has_nothing_of_this(tmp_path: Path) -> None:
    paths = make_pc(tmp_path / "pc")
    assert [check.run(paths, context_of(tmp_path)) for check in CHECKS] == [None, None, None]
