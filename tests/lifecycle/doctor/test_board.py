"""Checks of the board: module, system, time."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.board import AGX_ORIN_64, BOARDS, NANO_8_SUPER, BoardSpec, make_pc
from lifecycle.doctor.places import board, context_of, said
from orin_rerank.lifecycle.doctor.board import check_module, check_system, check_time
from orin_rerank.lifecycle.doctor.finding import Verdict


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_boards_are_known(tmp_path: Path, spec: BoardSpec) -> None:
    paths, context = board(tmp_path, spec), context_of(tmp_path)
    verdict, text = said(check_module(paths, context))
    assert verdict is Verdict.OK
    assert text.endswith(f"({spec.part})")
    assert said(check_system(paths, context))[0] is Verdict.OK


def test_a_pc(tmp_path: Path) -> None:
    paths, context = make_pc(tmp_path / "pc"), context_of(tmp_path)
    assert said(check_module(paths, context)) == (Verdict.OK, "Some PC: no Jetson")
    assert check_system(paths, context) is None


def test_a_module_that_has_another_memory(tmp_path: Path) -> None:
    paths = board(tmp_path, AGX_ORIN_64)
    paths.at("/proc/meminfo").write_text("MemTotal: 31300000 kB\n")
    verdict, text = said(check_module(paths, context_of(tmp_path)))
    assert (verdict, text) == (Verdict.WARN, "p3701-0005 is Jetson AGX Orin 64GB, but the system has 29.9 GiB")


def test_a_module_that_is_not_known(tmp_path: Path) -> None:
    paths = board(tmp_path)
    paths.at("/proc/device-tree/compatible").write_text("nvidia,p3768-0000+p3767-0999\0nvidia,tegra234\0")
    assert said(check_module(paths, context_of(tmp_path)))[0] is Verdict.WARN


@pytest.mark.parametrize(
    ("release", "verdict", "text"),
    [
        ("# R35 (release), REVISION: 4.1, GCID: 1", Verdict.FAIL, "Jetson Linux 35.4.1; JetPack 6.1"),
        ("# R36 (release), REVISION: 3.0, GCID: 1", Verdict.FAIL, "Jetson Linux 36.3; JetPack 6.1"),
        ("# R36 (release), REVISION: 4.7, GCID: 1", Verdict.OK, "JetPack 6.1 or 6.2 (Jetson Linux 36.4.7)"),
        ("# R41 (release), REVISION: 1.0, GCID: 1", Verdict.WARN, "Jetson Linux 41.1, of no JetPack"),
        ("garbage", Verdict.FAIL, "/etc/nv_tegra_release is missing or unreadable"),
    ],
)
def test_systems(tmp_path: Path, release: str, verdict: Verdict, text: str) -> None:
    paths = board(tmp_path, NANO_8_SUPER)
    paths.at("/etc/nv_tegra_release").write_text(release)
    found = said(check_system(paths, context_of(tmp_path)))
    assert found[0] is verdict
    assert found[1].startswith(text)


def test_a_clock_that_cannot_be_right(tmp_path: Path) -> None:
    paths = board(tmp_path)
    finding = check_time(paths, context_of(tmp_path, now_s=86_400.0, built_s=1_780_000_000.0))
    assert said(finding) == (Verdict.WARN, "1970-01-02 00:00 UTC, which is before this program was installed")
    assert finding.command == "sudo timedatectl set-ntp true"
    assert said(check_time(paths, context_of(tmp_path)))[0] is Verdict.OK
