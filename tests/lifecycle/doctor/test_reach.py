"""What the daemon can get at."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from lifecycle.doctor.places import APP, MINI, board, context_of, said
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.lifecycle.doctor.accounts import User
from orin_rerank.lifecycle.doctor.disk import check_state_folder
from orin_rerank.lifecycle.doctor.finding import Verdict
from orin_rerank.lifecycle.doctor.model import check_bundle, check_int8, check_sets
from orin_rerank.lifecycle.doctor.power import check_root_service
from orin_rerank.lifecycle.doctor.reach import MAY_READ, out_of_reach

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths

ROOT = User("root", 0, frozenset((0,)))


def with_the_service(paths: BoardPaths) -> BoardPaths:
    unit = paths.at("/lib/systemd/system/orin-rerank.service")
    unit.parent.mkdir(parents=True)
    unit.touch()
    return paths


def test_the_first_folder_that_is_shut_is_named(open_folder: Path) -> None:
    inner = open_folder / "outer" / "inner"
    inner.mkdir(parents=True)
    assert APP.kept_from(inner, MAY_READ) is None
    (open_folder / "outer").chmod(0o700)
    assert APP.kept_from(inner, MAY_READ) == open_folder / "outer"
    assert ROOT.kept_from(inner, MAY_READ) is None
    link = open_folder / "link"
    link.symlink_to(inner)
    assert APP.kept_from(link, MAY_READ) == open_folder / "outer"  # it is the way there that counts
    with pytest.raises(FileNotFoundError):
        APP.kept_from(open_folder / "missing", MAY_READ)


def test_a_bundle_that_the_daemon_may_not_read(open_folder: Path) -> None:
    paths = board(open_folder)
    bundle = open_folder / "models" / "mini"
    shutil.copytree(MINI, bundle)
    context = context_of(open_folder, bundle=bundle, daemon_user=APP, caller=ROOT)
    assert said(check_bundle(paths, context))[0] is Verdict.OK
    bundle.parent.chmod(0o700)
    finding = check_bundle(paths, context)
    assert said(finding) == (Verdict.FAIL, f"app may not read {bundle}: {bundle.parent} is shut")
    assert finding.command == f"sudo chmod o+rx {bundle.parent}"
    bundle.parent.chmod(0o755)
    (bundle / "tokenizer.json").chmod(0o600)
    finding = check_bundle(paths, context)
    assert said(finding) == (Verdict.FAIL, f"app may not read tokenizer.json in {bundle}")
    assert finding.command == f"sudo chmod -R a+rX {bundle}"


def test_a_service_sees_no_home_folders(open_folder: Path) -> None:
    paths = board(open_folder)
    home = open_folder.__class__("/root")
    context = context_of(open_folder, daemon_user=ROOT)
    assert out_of_reach(paths, context, home, MAY_READ) is None
    finding = out_of_reach(with_the_service(paths), context, home, MAY_READ)
    assert said(finding) == (Verdict.FAIL, "/root: the service sees nothing below /root")


def test_a_state_folder_that_the_unit_does_not_let_it_write_to(open_folder: Path) -> None:
    paths = with_the_service(board(open_folder))
    context = context_of(open_folder)
    finding = check_state_folder(paths, context)
    text = f"{context.state}: systemd lets the service write below /var/lib/orin-rerank alone"
    assert said(finding) == (Verdict.FAIL, text)
    assert finding.command == "sudo systemctl edit orin-rerank"
    more = paths.at("/etc/systemd/system/orin-rerank.service.d/override.conf")
    more.parent.mkdir(parents=True)
    more.write_text(f"[Service]\nReadWritePaths=/elsewhere -{context.state}\n")
    assert said(check_state_folder(paths, context)) == (Verdict.OK, str(context.state))


def test_sets_that_the_daemon_may_not_read(open_folder: Path) -> None:
    paths = board(open_folder)
    sets = {"calibration set": open_folder / "calibration", "judged set": open_folder / "judged"}
    for folder in sets.values():
        folder.mkdir()
    context = context_of(open_folder, sets=sets, daemon_user=APP)
    assert said(check_sets(paths, context)) == (Verdict.OK, "calibration set and judged set")
    sets["judged set"].chmod(0o700)
    assert said(check_sets(paths, context)) == (Verdict.FAIL, f"app may not read {sets['judged set']}")
    sets["calibration set"].rmdir()
    assert said(check_sets(paths, context))[1].startswith(f"there is no calibration set at {sets['calibration set']}")
    full = context_of(open_folder, sets=sets, engine=EngineSettings(precision=PrecisionChoice.FULL))
    assert check_sets(paths, full) is None


def test_commands_are_for_root_where_the_daemon_has_a_user_of_its_own(open_folder: Path) -> None:
    paths = board(open_folder)
    finding = check_int8(paths, context_of(open_folder, daemon_user=User("orin-rerank", 990, frozenset())))
    assert finding is not None
    assert finding.command == "sudo orin-rerank calibrate"


def test_a_board_without_the_root_service_is_set_by_hand(open_folder: Path) -> None:
    paths = board(open_folder)
    finding = check_root_service(paths, context_of(open_folder))
    assert finding is not None
    assert finding.command == "sudo orin-rerank board apply"
    finding = check_root_service(with_the_service(paths), context_of(open_folder))
    assert finding is not None
    assert finding.command == "systemctl status orin-rerank-board"
