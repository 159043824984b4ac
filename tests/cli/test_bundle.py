"""`orin-rerank bundle verify` as a person meets it."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from cli.conftest import TESTS, orin_rerank
from orin_rerank.engines.bundle import FORMAT, MANIFEST_FILE, Bundle

if TYPE_CHECKING:
    from pathlib import Path

MINI = TESTS.parent / "engines" / "mini"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The mini model, without what lies beside the bundle."""
    out = tmp_path / "mini"
    for name in (*Bundle.open(MINI).manifest.files, MANIFEST_FILE):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(MINI / name, out / name)
    return out


def test_a_whole_bundle(bundle: Path) -> None:
    done = orin_rerank("bundle", "verify", str(bundle), "--run")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("orin-rerank-mini, fp16, fp32, digest ")
    assert [line.split()[0] for line in lines[1:-1]] == ["\u2713"] * 7
    assert "self-test     25 pairs in fp32" in lines[-2]
    assert lines[-1] == "whole"


def test_without_a_folder_it_is_the_bundle_that_others_use() -> None:
    done = orin_rerank("bundle", "verify")
    assert (done.returncode, str(MINI) in done.stdout) == (0, True)
    assert "note: not part of the bundle, and never read: " in done.stdout


def test_everything_wrong_is_listed(bundle: Path) -> None:
    (bundle / "tokenizer.json").unlink()
    (bundle / "config.json").write_text("{}")
    done = orin_rerank("bundle", "verify", str(bundle))
    assert done.returncode == 66
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "tokenizer.json: cannot be read: No such file or directory" in lines
    assert any(line.startswith("config.json: has 2 bytes, not ") for line in lines)
    assert "- tokenizer     not looked into: tokenizer.json is damaged" in lines
    assert lines[-1] == "2 faults: not whole"


def test_json_says_the_same(bundle: Path) -> None:
    whole = json.loads(orin_rerank("bundle", "verify", str(bundle), "--json").stdout)
    opened = Bundle.open(bundle)
    assert (whole["whole"], whole["digest"], whole["source"]) == (True, opened.digest, None)
    assert whole["bytes"] == sum(entry.bytes for entry in opened.manifest.files.values())
    assert {check["state"] for check in whole["checks"]} == {"passed"}
    (bundle / "model.safetensors").write_bytes(b"")
    done = orin_rerank("bundle", "verify", str(bundle), "--json")
    assert done.returncode == 66
    damaged = json.loads(done.stdout)
    assert damaged["whole"] is False
    assert [fault["item"] for check in damaged["checks"] for fault in check["faults"]] == ["model.safetensors"]
    assert {check["name"]: check["state"] for check in damaged["checks"]} == {
        "manifest": "passed",
        "files": "failed",
        "weights": "skipped",
        "graphs": "skipped",
        "tokenizer": "passed",
        "golden pairs": "passed",
    }


def later(bundle: Path) -> Path:
    """A bundle as a later version might write it."""
    path = bundle / MANIFEST_FILE
    value = {**json.loads(path.read_text()), "format": FORMAT + 1}
    del value["sha256"]
    value["sha256"] = hashlib.sha256((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()).hexdigest()
    path.write_text(json.dumps(value))
    return bundle


def test_a_later_format_is_refused_with_a_hint(bundle: Path) -> None:
    later(bundle)
    done = orin_rerank("bundle", "verify", str(bundle))
    assert done.returncode == 66
    assert f"manifest.json: is of format {FORMAT + 1}; this version reads {FORMAT}" in done.stdout
    assert "hint: a later orin-rerank wrote it" in done.stdout
    done = orin_rerank("evaluate", "--bundle", str(bundle))
    assert done.returncode == 66
    assert "hint: a later orin-rerank wrote it" in done.stderr


def test_what_is_no_bundle(tmp_path: Path) -> None:
    done = orin_rerank("bundle", "verify", str(tmp_path / "none"))
    assert done.returncode == 66
    assert "manifest.json: cannot be read: No such file or directory" in done.stdout
    assert done.stdout.endswith("1 fault: not whole\n")


def test_names_cannot_reach_the_terminal_as_escape_sequences(bundle: Path) -> None:
    (bundle / "\x1b[31mred").write_text("")
    done = orin_rerank("bundle", "verify", str(bundle))
    assert (done.returncode, "\x1b" in done.stdout) == (0, False)
