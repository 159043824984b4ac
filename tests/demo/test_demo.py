"""The demonstration as a process: it shows every ranking, and leaves nothing behind however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from cli.conftest import orin_rerank
from evaluation.evaluation_sets import picture
from fakes.tiny_checkpoint import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo"
sys.path.insert(0, str(DEMO))

from rankings import RANKINGS  # noqa: E402


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    done = orin_rerank("export", str(write_checkpoint(folder / "tiny")), str(folder / "bundle"), "--precision", "fp32")
    assert done.returncode == 0, done.stderr
    return folder / "bundle"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures with the names that the demonstration asks for, of colours that differ."""
    pieces = [piece for ranking in RANKINGS for piece in (ranking.query, *ranking.documents)]
    names = {piece.picture for piece in pieces if piece.picture}
    names |= {name for ranking in RANKINGS if not ranking.documents for name in ranking.expected}
    for place, name in enumerate(sorted(names)):
        picture(tmp_path / "images" / name, (place * 10, 255 - place * 10, 128), size=64)
    return tmp_path / "images"


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files with a short name: a Unix socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="demo-test-", dir="/tmp") as folder:
        yield Path(folder)


def start(temporary: Path, bundle: Path, pictures: Path, sheet: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, str(DEMO / "demo.py"), "--bundle", str(bundle)),
            *("--images", str(pictures), "--sheet", str(sheet)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "100", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
    )


def daemons(temporary: Path) -> list[str]:
    """Daemons whose socket lies in this test's temporary folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"serve --socket {temporary}" in command:
            found.append(command)
    return found


def test_it_shows_every_ranking_and_leaves_only_the_sheet(
    temporary: Path, tmp_path: Path, bundle: Path, pictures: Path
) -> None:
    stdout, stderr = (process := start(temporary, bundle, pictures, tmp_path / "sheet" / "sheet.png")).communicate(
        timeout=120
    )
    assert (process.returncode, stderr) == (0, "")
    for ranking in RANKINGS:
        assert ranking.title in stdout
        assert f"query: {ranking.query.name}" in stdout
    # Scores of a random model: some are as expected by chance, and the rest are said not to be.
    met = int(re.search(rf"(\d) of {len(RANKINGS)} rankings have an expected document first", stdout)[1])
    assert stdout.count("as expected (") == met
    assert len(re.findall(r"expected .*, got ", stdout.replace("\n", " "))) <= len(RANKINGS) - met
    with Image.open(tmp_path / "sheet" / "sheet.png") as sheet:
        assert sheet.width > 2000
        assert sheet.height > 400 * len(RANKINGS)
    assert list(temporary.iterdir()) == []
    assert daemons(temporary) == []


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_stops_the_daemon(
    temporary: Path, tmp_path: Path, bundle: Path, pictures: Path, stop: signal.Signals
) -> None:
    process = start(temporary, bundle, pictures, tmp_path / "sheet" / "sheet.png")
    deadline = time.monotonic() + 60
    while not daemons(temporary):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(stop)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "interrupted; the daemon is stopped\n")
    assert list(temporary.iterdir()) == []
    assert daemons(temporary) == []
    assert not (tmp_path / "sheet").exists()


def test_a_daemon_that_cannot_start_is_told_in_its_own_words(temporary: Path, tmp_path: Path, pictures: Path) -> None:
    process = start(temporary, tmp_path / "gone", pictures, tmp_path / "sheet.png")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr.splitlines()[0] == "demo: error: the daemon ended with exit code 66"
    assert "manifest.json: cannot be read: No such file or directory" in stderr
    assert list(temporary.iterdir()) == []


def test_a_folder_without_pictures_is_named(temporary: Path, tmp_path: Path) -> None:
    process = start(temporary, tmp_path, tmp_path, tmp_path / "sheet.png")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "holds no .webp pictures" in stderr
