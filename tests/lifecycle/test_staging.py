"""A bundle takes the place of another at once, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifecycle.conftest import write_golden
from lifecycle.test_export import contents
from orin_rerank.errors import CheckpointError, ExportBusyError, ExportError
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.staging import STAGING_FOLDER, Staging


def test_files_that_no_manifest_names_stay(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    golden = write_golden(tmp_path / "golden", [1.0, 2.0])
    out.mkdir()
    (out / "README.md").write_text("mine")
    (out / "notes").write_text("mine too")
    first = export_checkpoint(checkpoint, out, ExportOptions(golden=golden, include=(out / "README.md",))).bundle
    assert {"README.md", "golden/pairs.jsonl", "text.primitive.fp32.onnx"} <= first.manifest.files.keys()
    export_checkpoint(checkpoint, out, ExportOptions(precisions=(Precision.FP16,)))
    left = set(contents(out))
    assert {"README.md", "notes"} <= left
    assert not {name for name in left if "golden" in name or "fp32" in name}  # those would be of another bundle


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_another_checkpoint_is_not_overwritten(checkpoint: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "another"
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(ExportError, match="not part of a bundle") as caught:
        export_checkpoint(checkpoint, out, ExportOptions())
    assert caught.value.item == str(out / name)
    assert contents(out) == {name: b"mine"}
    assert [path.name for path in out.iterdir()] == [name], "nothing is left of the attempt"


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "config.json"])
def test_what_is_included_does_not_stand_in_for_another_file(checkpoint: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(checkpoint, tmp_path / "out", ExportOptions(include=(tmp_path / name,)))
    assert caught.value.item == str(tmp_path / name)


def test_two_exports_to_one_folder_do_not_mix(checkpoint: Path, tmp_path: Path) -> None:
    with Staging(tmp_path).open(), pytest.raises(ExportBusyError) as caught:
        export_checkpoint(checkpoint, tmp_path, ExportOptions())
    assert caught.value.item == str(tmp_path)
    assert export_checkpoint(checkpoint, tmp_path, ExportOptions()).bundle.folder == tmp_path


def test_what_cannot_be_written_is_named(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ExportError, match="cannot be written") as caught:
            export_checkpoint(checkpoint, out, ExportOptions())
        assert str(tmp_path / "file") in str(caught.value)


def test_only_what_a_commit_had_moved_is_taken_back(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.folder.mkdir()
    (tmp_path / "a").write_text("placed")
    staging.take_back("a")  # nothing was ready
    assert (tmp_path / "a").exists()
    (staging.folder / "manifest.json").write_text("{}")
    (tmp_path / "manifest.json").write_text("{}")
    staging.take_back("a")  # it belongs to the bundle that is there
    assert (tmp_path / "a").exists()
    (tmp_path / "manifest.json").unlink()
    staging.take_back("a")
    assert (tmp_path / STAGING_FOLDER / "a").read_text() == "placed"
