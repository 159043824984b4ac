"""All checks together, and checks that go wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.board import BOARDS, NANO_4, BoardSpec, make_pc
from lifecycle.doctor.places import board, context_of
from orin_rerank.board.paths import BoardPaths
from orin_rerank.errors import StoreError
from orin_rerank.lifecycle.doctor.context import Context, DaemonAnswer
from orin_rerank.lifecycle.doctor.examine import ALL_CHECKS, examine
from orin_rerank.lifecycle.doctor.finding import Check, Finding, Verdict, fail, ok
from orin_rerank.lifecycle.doctor.probe import MachineProbe


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_every_check_applies_to_every_board(tmp_path: Path, spec: BoardSpec) -> None:
    report = examine(board(tmp_path, spec), context_of(tmp_path))
    failed = [one.check.name for one in report.examined if one.finding.verdict is Verdict.FAIL]
    assert failed == (["model's memory"] if spec is NANO_4 else [])
    names = [one.check.name for one in report.examined]
    elsewhere = ("sets", "damage", "socket", "preparation", "problems", "other programs")
    assert names == [check.name for check in ALL_CHECKS if check.name not in elsewhere]
    assert len({check.name for check in ALL_CHECKS}) == len(ALL_CHECKS)
    for one in report.examined:
        texts = (one.finding.text, one.finding.remedy, one.finding.command)
        assert all(text is None or (text and "\n" not in text) for text in texts)
        if one.finding.verdict is not Verdict.OK:
            assert one.finding.remedy or one.finding.command


def test_an_empty_machine_breaks_no_check(tmp_path: Path) -> None:
    nothing = context_of(tmp_path, bundle=None, daemon=DaemonAnswer(), probe=MachineProbe())
    report = examine(BoardPaths(tmp_path / "nothing"), nothing)
    assert not any("could not be checked" in one.finding.text for one in report.examined)
    assert not examine(make_pc(tmp_path / "pc"), nothing).healthy  # no bundle


def raising(error: Exception) -> Callable[[BoardPaths, Context], Finding]:
    def run(_: BoardPaths, __: Context) -> Finding:
        raise error

    return run


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_a_check_that_goes_wrong_keeps_no_other_from_being_run(tmp_path: Path) -> None:
    denied = PermissionError(13, "Permission denied", "/var/lib/x")
    checks = [
        Check("s", "ours", raising(StoreError("cannot be read: Input/output error", item="/x"))),
        Check("s", "denied", raising(denied)),
        Check("s", "denied deeper", raising(caused(StoreError("cannot be read", item="/y"), denied))),
        Check("s", "bug", raising(ZeroDivisionError("division by zero"))),
        Check("s", "not here", lambda _, __: None),
        Check("s", "fine", lambda _, __: ok("fine")),
    ]
    report = examine(BoardPaths(tmp_path), context_of(tmp_path), checks)
    found = {one.check.name: one.finding for one in report.examined}
    assert found["ours"] == fail("/x: cannot be read: Input/output error")
    assert found["denied"].command == found["denied deeper"].command == "sudo orin-rerank doctor"
    assert found["bug"].text == "could not be checked: ZeroDivisionError: division by zero"
    assert "not here" not in found
    assert report.as_dict() == {
        "healthy": False,
        "ok": 1,
        "warn": 3,
        "fail": 1,
        "checks": [one.as_dict() for one in report.examined],
    }
