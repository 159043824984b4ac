"""An export that is cut short anywhere costs nothing that was there, and goes on from where it was."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.full_size import shapes_of, write_shards
from graph.checkpoints import TEXT, VL, tensors_of, write_checkpoint, write_sharded
from lifecycle.kill_exports import OPTIONS
from lifecycle.test_export import contents
from orin_rerank.engines.bundle import MANIFEST_FILE, WEIGHTS_FILE, Bundle
from orin_rerank.errors import CheckpointError, NoSpaceError
from orin_rerank.graph.architecture import read_architecture
from orin_rerank.lifecycle.export import ExportOptions, ExportSpectator, export_checkpoint
from orin_rerank.lifecycle.staging import STAGING_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parents[1]
SMALL = {**TEXT, "num_hidden_layers": 1}


class StoppedError(Exception):
    """Not an error of the project: as if the process ended here."""


class Watch(ExportSpectator):
    """Notes what it is told, and stops the export once so much is written."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stages: list[str] = []
        self.checked: list[tuple[int, int]] = []
        self.written: list[tuple[int, int]] = []
        self._stop_at = stop_at

    def on_stage(self, stage: str) -> None:
        self.stages.append(stage)

    def on_checked(self, done: int, total: int) -> None:
        self.checked.append((done, total))

    def on_written(self, done: int, total: int) -> None:
        self.written.append((done, total))
        if self._stop_at is not None and done >= self._stop_at:
            raise StoppedError


@pytest.fixture(scope="module")
def text_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("text") / "tiny", SMALL, "BF16")


def stopped(checkpoint: Path, out: Path, stop_at: int, options: ExportOptions = OPTIONS) -> None:
    with pytest.raises(StoppedError):
        export_checkpoint(checkpoint, out, options, Watch(stop_at))


def test_an_export_that_is_killed_anywhere_goes_on(text_checkpoint: Path, tmp_path: Path) -> None:
    whole = export_checkpoint(text_checkpoint, tmp_path / "whole", OPTIONS).bundle
    command = [sys.executable, str(TESTS / "lifecycle" / "kill_exports.py"), str(text_checkpoint), str(tmp_path)]
    subprocess.run(command, check=True, cwd=TESTS, timeout=300)
    old = Bundle.open(tmp_path / "old")
    outs = sorted(tmp_path.glob("out-*"), key=lambda path: int(path.name[4:]))
    found, resumed = [], []
    for out in outs:
        if (out / MANIFEST_FILE).exists():
            bundle = Bundle.open(out)
            bundle.verify()  # what says it is a bundle is a whole one
            found.append({old.digest: "old", whole.digest: "new"}[bundle.digest])
        else:
            found.append("none")
        report = export_checkpoint(text_checkpoint, out, OPTIONS)
        resumed.append(report.resumed)
        assert contents(out) == contents(tmp_path / "whole"), out.name
    size = whole.manifest.files[WEIGHTS_FILE].bytes
    # In this order, and of each some; and from the first line of the journal on, nothing was begun again.
    assert found == sorted(found, key=["old", "none", "new"].index)
    assert set(found) == {"old", "none", "new"}
    begun = next(number for number, bytes_ in enumerate(resumed) if bytes_)
    assert all(resumed[number] for number in range(begun, len(found) - found.count("new")))
    assert all(bytes_ == size for bytes_, what in zip(resumed, found, strict=True) if what == "none")


def test_what_is_written_is_read_once_more_and_not_written_again(text_checkpoint: Path, tmp_path: Path) -> None:
    whole = export_checkpoint(text_checkpoint, tmp_path / "whole", OPTIONS).bundle
    size = whole.manifest.files[WEIGHTS_FILE].bytes
    out = tmp_path / "out"
    stopped(text_checkpoint, out, size // 2)
    staged = out / STAGING_FOLDER / WEIGHTS_FILE
    inode = staged.stat().st_ino
    watch = Watch()
    report = export_checkpoint(text_checkpoint, out, OPTIONS, watch)
    assert size // 4 < report.resumed < size
    assert watch.checked[-1] == (report.resumed, report.resumed)
    assert watch.written[0] == (report.resumed, size)
    assert watch.written[-1] == (size, size)
    assert (out / WEIGHTS_FILE).stat().st_ino == inode
    assert watch.stages == ["reading the checkpoint", "writing graphs", "putting the bundle in its place"]
    assert report.bundle.digest == whole.digest
    assert not (out / STAGING_FOLDER).exists()


def test_losses_of_what_was_written_before_are_reported_too(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny", SMALL, "F32")
    tensors = tensors_of(SMALL, checkpoint)
    tensors["model.embed_tokens.weight"][0, :3] = 1e5, 1e-9, -1e6
    write_sharded(checkpoint, tensors, "F32")
    options = ExportOptions(precisions=OPTIONS.precisions, mark_bytes=1, matrices="F16")
    stopped(checkpoint, tmp_path / "out", 800_000, options)
    report = export_checkpoint(checkpoint, tmp_path / "out", options)
    assert report.resumed > 0
    assert report.clipped == {"model.embed_tokens.weight": 2}
    assert report.losses["model.embed_tokens.weight"].vanished == 1


def _flip(staged: Path) -> None:
    with (staged / WEIGHTS_FILE).open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))


def _other_checkpoint(staged: Path) -> None:
    journal = staged / "progress.jsonl"
    first, *rest = journal.read_text().splitlines(keepends=True)
    journal.write_text(json.dumps({"identity": "0" * 64}) + "\n" + "".join(rest))
    assert first != journal.read_text().splitlines(keepends=True)[0]


@pytest.mark.parametrize(
    "damage",
    [
        _flip,
        _other_checkpoint,
        lambda staged: (staged / WEIGHTS_FILE).unlink(),
        lambda staged: (staged / WEIGHTS_FILE).write_bytes(b"short"),
        lambda staged: (staged / "progress.jsonl").write_bytes(b""),
        lambda staged: (staged / "progress.jsonl").write_bytes(b"\xff{]\n"),
        lambda staged: (staged / "progress.jsonl").unlink(),
    ],
)
def test_what_is_not_as_it_was_left_is_begun_again(
    text_checkpoint: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    whole = export_checkpoint(text_checkpoint, tmp_path / "whole", OPTIONS).bundle
    stopped(text_checkpoint, tmp_path / "out", 800_000)
    damage(tmp_path / "out" / STAGING_FOLDER)
    report = export_checkpoint(text_checkpoint, tmp_path / "out", OPTIONS)
    assert (report.resumed, report.bundle.digest) == (0, whole.digest)


def test_a_line_of_the_journal_that_was_cut_short_does_not_count(text_checkpoint: Path, tmp_path: Path) -> None:
    stopped(text_checkpoint, tmp_path / "out", 800_000)
    journal = tmp_path / "out" / STAGING_FOLDER / "progress.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]) + lines[-1][:-7])
    report = export_checkpoint(text_checkpoint, tmp_path / "out", OPTIONS)
    assert report.resumed == json.loads(lines[-2])["bytes"]


def test_another_checkpoint_or_another_way_to_store_it_is_not_gone_on_with(
    text_checkpoint: Path, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", {**SMALL, "tie_word_embeddings": True}, "BF16")
    stopped(text_checkpoint, tmp_path / "out", 800_000)
    whole = export_checkpoint(other, tmp_path / "whole", OPTIONS).bundle
    report = export_checkpoint(other, tmp_path / "out", OPTIONS)
    assert (report.resumed, report.bundle.digest) == (0, whole.digest)
    stopped(other, tmp_path / "out", 800_000)
    assert export_checkpoint(other, tmp_path / "out", ExportOptions(matrices="F32")).resumed == 0


def test_other_options_go_on_with_the_weights(text_checkpoint: Path, tmp_path: Path) -> None:
    stopped(text_checkpoint, tmp_path / "out", 800_000)
    report = export_checkpoint(text_checkpoint, tmp_path / "out", ExportOptions(name="other", max_tokens=300))
    assert report.resumed > 0
    assert (report.bundle.manifest.name, report.bundle.manifest.prompt.max_tokens) == ("other", 300)


def test_a_checkpoint_that_turns_out_bad_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny", VL)
    tensors = tensors_of(VL, checkpoint)
    tensors["model.visual.merger.linear_fc2.weight"][0, 0] = float("nan")  # the last but few
    write_sharded(checkpoint, tensors)
    with pytest.raises(CheckpointError):
        export_checkpoint(checkpoint, tmp_path / "out", ExportOptions(mark_bytes=1))
    assert not (tmp_path / "out").exists()


FULL = """
    import resource, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from lifecycle.kill_exports import OPTIONS
    from orin_rerank.errors import NoSpaceError
    from orin_rerank.lifecycle.export import export_checkpoint
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
    try:
        export_checkpoint(Path(sys.argv[2]), Path(sys.argv[3]), OPTIONS)
    except NoSpaceError as error:
        print(error)
"""


def test_a_disk_that_fills_up_keeps_what_is_written(text_checkpoint: Path, tmp_path: Path) -> None:
    """The system refuses to let a file grow further, which is as near to a full disk as a test without root comes."""
    whole = export_checkpoint(text_checkpoint, tmp_path / "whole", OPTIONS).bundle
    out = tmp_path / "out"
    command = [sys.executable, "-c", textwrap.dedent(FULL), *map(str, (TESTS, text_checkpoint, out, 800_000))]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "what is written is kept" in said
    assert str(out) in said
    report = export_checkpoint(text_checkpoint, out, OPTIONS)
    assert report.resumed > 700_000
    assert report.bundle.digest == whole.digest


def test_room_is_looked_for_before_anything_is_written(tmp_path: Path) -> None:
    small = write_checkpoint(tmp_path / "small", SMALL)
    export_checkpoint(small, tmp_path / "out", OPTIONS)
    before = contents(tmp_path / "out")
    huge = tmp_path / "huge"
    huge.mkdir()
    (huge / "tokenizer.json").write_bytes((small / "tokenizer.json").read_bytes())
    config = {**SMALL, "hidden_size": 1 << 14, "intermediate_size": 1 << 25, "num_hidden_layers": 4}
    (huge / "config.json").write_text(json.dumps(config))
    shapes = shapes_of(read_architecture(huge))
    write_shards(huge, shapes, 2_000_000_000_000, sparse=True)  # 13 TB of zeros, that take no room
    with pytest.raises(
        NoSpaceError, match=r"13,\d{3},\d{3}\.\d MB are needed, .* MB are free, .*is kept until"
    ) as caught:
        export_checkpoint(huge, tmp_path / "out", OPTIONS)
    assert caught.value.item == str(tmp_path / "out")
    assert contents(tmp_path / "out") == before
    with pytest.raises(NoSpaceError):
        export_checkpoint(huge, tmp_path / "new", OPTIONS)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out" / STAGING_FOLDER).exists()
