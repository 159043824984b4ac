"""What the kernel tells of memory: the machine's and this process's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orin_rerank.board.load import MEMINFO
from orin_rerank.board.paths import BoardPaths
from orin_rerank.engines.host_memory import HostMemory, peak_bytes, read_host_memory
from orin_rerank.errors import EngineError


def test_the_kernel_says_how_much_memory_there_is(tmp_path: Path) -> None:
    paths = BoardPaths(tmp_path)
    meminfo = paths.at(MEMINFO)
    meminfo.parent.mkdir()
    meminfo.write_text("MemTotal:       16031236 kB\nMemFree:  1 kB\nMemAvailable:    9000000 kB\nSwapFree: 5 kB\n")
    assert read_host_memory(paths) == HostMemory(16031236 << 10, 9000000 << 10, 5 << 10)
    meminfo.write_text("MemFree:       16031236 kB\n")
    with pytest.raises(EngineError, match="meminfo: does not say how much memory there is"):
        read_host_memory(paths)
    with pytest.raises(EngineError, match="missing/proc/meminfo: does not say"):
        read_host_memory(BoardPaths(tmp_path / "missing"))
    here = read_host_memory()
    assert 0 < here.available_bytes < here.total_bytes


def test_a_peak_is_of_this_process_alone() -> None:
    """A child that `subprocess` starts is not charged with what its parent holds."""
    code = (
        "from orin_rerank.engines.host_memory import peak_bytes\n"
        "before = peak_bytes()\nb'x' * (200 << 20)\nprint(before, peak_bytes())"
    )
    held = bytearray(b"x") * (400 << 20)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert peak_bytes() > len(held)
    assert before < 200 << 20 < after < len(held)
