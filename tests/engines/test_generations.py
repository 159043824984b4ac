"""A place that some remove while others write to it: one at a time, whatever becomes of the lock's file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orin_rerank.engines.generations import Generations
from orin_rerank.errors import StoreBusyError, StoreError

DIGEST = "5" * 64

CONTENDER = """
import contextlib, os, sys, time
from pathlib import Path
from orin_rerank.engines.generations import Generations
from orin_rerank.errors import StoreBusyError

place, alone, number = Generations(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
done = dict(staged=0, removed=0)
until = time.monotonic() + float(sys.argv[4])
while time.monotonic() < until:
    with contextlib.suppress(StoreBusyError):
        if number % 2:
            place.remove()
            done["removed"] += 1
        else:
            with place.staging(str(number)) as folder:
                os.close(os.open(alone, os.O_CREAT | os.O_EXCL))  # fails where another one writes
                (folder / "plan").write_text("x")
                os.unlink(alone)
                if done["staged"] % 3 == 0:
                    place.install(folder, "5" * 64)
                done["staged"] += 1
print(done["staged"], done["removed"])
"""


def test_removing_and_writing_exclude_each_other(tmp_path: Path) -> None:
    """Six processes, half of which remove what the others make; a lock on a file that is gone would admit two."""
    place, alone = tmp_path / "state" / "place", tmp_path / "alone"
    contenders = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDER, str(place), str(alone), str(number), "1.5"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    staged = removed = 0
    said = [contender.communicate(timeout=60) for contender in contenders]  # of all, before any is judged
    for contender, (out, err) in zip(contenders, said, strict=True):
        assert contender.returncode == 0, err
        one, other = map(int, out.split())
        staged, removed = staged + one, removed + other
    assert staged > 20
    assert removed > 20
    Generations(place).remove()
    assert not place.exists()


def test_a_file_where_the_place_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("")
    with (
        pytest.raises(StoreError, match="cannot be written: File exists"),
        Generations(tmp_path / "place").staging("x"),
    ):
        pass


def test_a_lock_that_was_opened_before_its_place_was_removed_does_not_count(tmp_path: Path) -> None:
    """The other opens the file, sleeps while the place is removed and made again, and only then locks it."""
    place = Generations(tmp_path / "place")
    with place.staging("first"):
        pass
    fifo = tmp_path / "opened"
    os.mkfifo(fifo)
    script = (
        "import fcntl, sys\n"
        "from pathlib import Path\n"
        "from orin_rerank.engines.generations import Generations\n"
        "from orin_rerank.errors import StoreBusyError\n"
        "flock, told = fcntl.flock, Path(sys.argv[2])\n"
        "def late(file, how):\n"
        "    if told.exists():\n"
        "        told.write_text('opened')\n"
        "        told.read_text()\n"
        "        told.unlink()\n"
        "    flock(file, how)\n"
        "fcntl.flock = late\n"
        "try:\n"
        "    with Generations(Path(sys.argv[1])).staging('other'):\n"
        "        print('staged')\n"
        "except StoreBusyError:\n"
        "    print('busy')\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(place.place), str(fifo)], stdout=subprocess.PIPE, text=True
    )
    assert fifo.read_text() == "opened"
    place.remove()
    with place.staging("second") as folder:
        fifo.write_text("go on")
        assert other.communicate(timeout=30)[0] == "busy\n"
        assert folder.is_dir()


def test_removing_what_is_not_there_is_no_error_and_makes_nothing(tmp_path: Path) -> None:
    Generations(tmp_path / "a" / "b").remove()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_written_to_is_not_removed(tmp_path: Path) -> None:
    place = Generations(tmp_path / "place")
    with place.staging("one") as folder:
        with pytest.raises(StoreBusyError):
            place.remove()
        (folder / "plan").touch()
        place.install(folder, DIGEST)
    assert place.current is not None
    remover = threading.Thread(target=place.remove)
    remover.start()
    remover.join()
    assert place.current is None
    assert not place.place.exists()
