"""Checks of memory, swap and disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fakes.board import BOARDS, NANO_4, NANO_8, BoardSpec, make_pc
from lifecycle.doctor.places import APP, MINI, board, context_of, said
from orin_rerank.board.load import Memory
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.cuda_driver import DeviceInfo
from orin_rerank.engines.settings import DeviceChoice, EngineSettings
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.doctor.accounts import User
from orin_rerank.lifecycle.doctor.context import DaemonAnswer
from orin_rerank.lifecycle.doctor.disk import check_room, check_state_folder, missing_bytes
from orin_rerank.lifecycle.doctor.finding import Verdict
from orin_rerank.lifecycle.doctor.memory import check_fit, check_free, check_swap, swap_finding
from orin_rerank.lifecycle.doctor.probe import MachineProbe
from orin_rerank.lifecycle.first_boot.preflight import engine_disk_bytes

NOBODY = DaemonAnswer()


@pytest.mark.parametrize("spec", BOARDS, ids=lambda spec: spec.key)
def test_the_mini_fits_everywhere_but_on_the_smallest(tmp_path: Path, spec: BoardSpec) -> None:
    paths, context = board(tmp_path, spec), context_of(tmp_path, daemon=NOBODY)
    assert said(check_fit(paths, context))[0] is (Verdict.FAIL if spec is NANO_4 else Verdict.OK)
    for check in (check_free, check_swap):
        assert said(check(paths, context))[0] is Verdict.OK


def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    paths = board(tmp_path, NANO_8)
    paths.at("/proc/meminfo").write_text("MemTotal: 1900000 kB\nMemAvailable: 900000 kB\n")
    finding = check_fit(paths, context_of(tmp_path, daemon=NOBODY))
    verdict, text = said(finding)
    assert verdict is Verdict.FAIL
    assert "even in INT8 alone; this machine has" in text
    assert finding is not None
    assert finding.command == "orin-rerank plan"


def test_memory_that_others_have(tmp_path: Path) -> None:
    paths = board(tmp_path, NANO_8)
    paths.at("/proc/meminfo").write_text("MemTotal: 7810000 kB\nMemAvailable: 500000 kB\n")
    assert said(check_free(paths, context_of(tmp_path, daemon=NOBODY)))[0] is Verdict.WARN
    assert said(check_free(paths, context_of(tmp_path))) == (
        Verdict.OK,
        "0.5 GiB of 7.4 GiB are free, beside the daemon",
    )


def test_a_gpu_with_a_memory_of_its_own_is_not_planned_by_the_machine_s(tmp_path: Path) -> None:
    probe = MachineProbe(gpu=DeviceInfo("H", (9, 0), integrated=False, total_bytes=80 << 30, driver_version=13000))
    paths = make_pc(tmp_path / "pc")
    assert check_fit(paths, context_of(tmp_path, probe=probe)) is None
    processor = context_of(tmp_path, probe=probe, engine=EngineSettings(device=DeviceChoice.CPU))
    assert said(check_fit(paths, processor))[0] is Verdict.OK


def test_swap_that_is_compressed_memory_does_not_help_compiling() -> None:
    gib = 1 << 30
    finding = swap_finding(Memory(8 * gib, 6 * gib, 4 * gib, 4 * gib, 4 * gib), 3 * gib)
    assert said(finding) == (
        Verdict.WARN,
        "4.0 GiB of compressed memory (zram); compiling the model takes 3.0 GiB of swap on disk",
    )
    assert finding.command == "sudo swapoff /dev/zram*"  # nvzramconfig has nothing that stops it
    assert said(swap_finding(Memory(8 * gib, 6 * gib, 8 * gib, 8 * gib, 4 * gib), 3 * gib)) == (
        Verdict.OK,
        "4.0 GiB on disk and 4.0 GiB of compressed memory (zram)",
    )
    finding = swap_finding(Memory(8 * gib, 6 * gib, 0, 0, 0), 1)
    assert (finding.text, finding.command) == ("none; compiling the model takes 0.0 GiB of swap on disk", None)
    assert said(swap_finding(Memory(8 * gib, 6 * gib, 0, 0, 0), 0)) == (Verdict.OK, "none")


def test_the_state_folder(open_folder: Path) -> None:
    tmp_path = open_folder
    paths, context = board(tmp_path), context_of(tmp_path)
    assert said(check_state_folder(paths, context)) == (Verdict.OK, str(context.state))
    later = context_of(tmp_path, state=tmp_path / "later" / "state")
    assert said(check_state_folder(paths, later))[1].endswith("which is made when it is needed")
    context.state.chmod(0o750)
    finding = check_state_folder(paths, context_of(tmp_path, daemon_user=APP))
    assert said(finding) == (Verdict.FAIL, f"app may not write to {context.state}")
    assert finding.command == f"sudo chown -R app: {context.state}"
    member = context_of(tmp_path, daemon_user=User("app", 12345, frozenset((context.state.stat().st_gid,))))
    assert said(check_state_folder(paths, member))[0] is Verdict.FAIL  # 0750 lets the group read
    context.state.chmod(0o770)
    assert said(check_state_folder(paths, member))[0] is Verdict.OK


def _read_only_folder() -> Path | None:
    mounts = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    folders = (Path(place) for place in mounts if "\\" not in place)
    return next((f for f in folders if f.is_dir() and os.statvfs(f).f_flag & os.ST_RDONLY), None)


@pytest.mark.skipif(_read_only_folder() is None, reason="nothing is mounted read-only here")
def test_a_file_system_that_is_read_only(tmp_path: Path) -> None:
    there = _read_only_folder()
    assert there is not None
    verdict, text = said(check_state_folder(board(tmp_path), context_of(tmp_path, state=there / "state")))
    assert verdict is Verdict.FAIL
    assert text.endswith("is on a file system that is read-only")


def test_room_on_the_disk(tmp_path: Path) -> None:
    paths, context = board(tmp_path), context_of(tmp_path)
    bundle = Bundle.open(MINI)
    wide, quantized = (engine_disk_bytes(bundle, one) for one in (Precision.FP16, Precision.INT8_FP16))
    assert missing_bytes(context) == wide + 2 * quantized  # the INT8 engine, and plans of both
    assert missing_bytes(context_of(tmp_path, probe=MachineProbe())) == quantized
    assert missing_bytes(context_of(tmp_path, bundle=None)) == 0
    free = shutil.disk_usage(tmp_path).free
    verdict, text = said(check_room(paths, context))
    assert verdict is (Verdict.OK if free > (1 << 30) else Verdict.WARN)
    assert "still to be made" in text
