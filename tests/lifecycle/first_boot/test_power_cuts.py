"""The power goes, or the disk fails, at any moment of a first boot: the next start serves, or says what is the matter.

The moments are counted by a shim in front of the C library (bad_disk.c), so a step that is added is covered as it is.
The power goes about every time that the journal is written: before it is, and after. Of all other moments so many are
tried as FIRST_BOOT_CUTS says (4); with 0 it is really every one, which takes minutes.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orin_rerank.lifecycle.first_boot.journal import JOURNAL_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
CUTS = int(os.environ.get("FIRST_BOOT_CUTS", "4"))

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim takes gcc: apt install gcc libc6-dev")


class Boots:
    """First boots, each in a process and a state folder of its own unless one is named again."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._number = 0

    def boot(self, name: str | None = None, at: int = 0, error: int = 0) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if name is None:
            self._number += 1
            name = f"boot-{self._number}"
        self._process.stdin.write(json.dumps({"name": name, "at": at, "error": error}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "bug" not in answer, answer["bug"]
        return answer


@pytest.fixture(scope="module")
def boots(bundle_folder: Path, sets: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boots]:
    folder = tmp_path_factory.mktemp("cuts")
    shim = folder / "bad_disk.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, HERE / "bad_disk.c", "-ldl"], check=True)
    process = subprocess.Popen(
        [sys.executable, HERE / "bad_disk.py", bundle_folder, *sets, folder],
        env={**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield Boots(process)
    process.communicate(timeout=30)


@pytest.fixture(scope="module")
def changes(boots: Boots) -> list[str]:
    """What a first boot that nothing disturbs changes on disk, in order."""
    answer = boots.boot()
    assert (answer["served"], answer["problems"]) == ("int8", [])
    found: list[str] = answer["changes"]
    assert sum(JOURNAL_FILE in change for change in found) > 20
    return found


def moments(changes: list[str], most: int) -> list[int]:
    """Numbers of changes, evenly spread; all of them where every one is asked for."""
    numbers = range(1, len(changes) + 1)
    return list(numbers[:: max(len(numbers) // most, 1)] if CUTS else numbers)


def test_after_a_power_cut_the_next_start_serves(boots: Boots, changes: list[str]) -> None:
    noted = [n for n, change in enumerate(changes, 1) if change.endswith(f"rename /{JOURNAL_FILE}")]
    assert len(noted) >= 8
    about = [n + place % 2 for place, n in enumerate(noted)]  # before it is noted, and just after
    for at in sorted({*about, *moments(changes, CUTS)} - {len(changes) + 1}):
        name = f"cut-{at}"
        assert boots.boot(name, at) == {"killed": True}, changes[at - 1]
        answer = boots.boot(name)
        assert (answer["served"], answer["problems"]) == ("int8", []), changes[at - 1]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_where_the_disk_fails_something_is_served_and_said(boots: Boots, changes: list[str], error: int) -> None:
    """From the moment on every write fails; then the disk is well again."""
    for at in moments(changes, 3):
        name = f"bad-{error}-{at}"
        answer = boots.boot(name, at, error)
        assert "served" in answer, (changes[at - 1], answer)
        if answer["served"] != "int8":
            (problem,) = answer["problems"]
            assert problem.startswith("calibrate: "), changes[at - 1]
            assert os.strerror(error) in problem, changes[at - 1]
        after = boots.boot(name)
        if after["served"] != "int8":
            assert "the next start tries it again" in after["problems"][0]
        else:
            assert after["problems"] == []
