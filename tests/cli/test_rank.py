"""`orin-rerank rank` as a process, against the real daemon with the fake model."""

from __future__ import annotations

import json
import math
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from cli.conftest import COMMAND, environment, orin_rerank
from evaluation.evaluation_sets import picture
from fakes.model import expected_margin

if TYPE_CHECKING:
    from pathlib import Path


def test_json_has_every_score_best_first(daemon: Path) -> None:
    documents = ["a ladder", "ein Apfel", "消防车", "red"]
    done = orin_rerank("rank", "fire engine", *documents, "--json", "--socket", str(daemon))
    assert (done.returncode, done.stderr) == (0, "")
    value = json.loads(done.stdout)
    assert (value["model"], value["precision"], value["query"]) == ("fake", "fp32", "fire engine")
    margins = {document: expected_margin("fire engine", document) for document in documents}
    assert {row["document"]: row["margin"] for row in value["results"]} == pytest.approx(margins)
    assert [row["document"] for row in value["results"]] == sorted(documents, key=lambda name: -margins[name])
    for rank, row in enumerate(value["results"], start=1):
        assert row["rank"] == rank
        assert documents[row["index"]] == row["document"]
        assert row["score"] == pytest.approx(1 / (1 + math.exp(-row["margin"])), rel=1e-5)
        assert (row["tokens"], row["truncated_tokens"]) == (len(row["document"].encode()), 0)
    assert value["usage"]["query_tokens"] == len("fire engine")
    assert value["seconds"] > 0


def test_the_table_names_and_cuts(daemon: Path, tmp_path: Path) -> None:
    picture(tmp_path / "red.png")
    arguments = ["red.png", "x\x1b[2Jy [bold]z", "--max-document-tokens", "5", "--top", "2", "--socket", str(daemon)]
    done = orin_rerank("rank", "what?", "a very long text", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["#", "score", "margin", "document", "tokens"]
    assert len(lines) == 4
    assert all("5 (-" in line for line in lines[1:3])
    assert "\x1b" not in done.stdout
    assert lines[3].startswith("3 documents in ")


def test_query_picture_and_documents_of_both_kinds(daemon: Path, tmp_path: Path) -> None:
    picture(tmp_path / "red.png")
    lines = '"plain"\n[{"image": "red.png"}, {"text": "red"}]\n'
    done = orin_rerank(
        *("rank", "in blue", "--query-image", "red.png", "--documents", "-", "--json", "--socket", str(daemon)),
        cwd=tmp_path,
        stdin=lines.encode(),
    )
    value = json.loads(done.stdout)
    assert value["query"] == "red.png + in blue"
    assert {row["document"] for row in value["results"]} == {"plain", "red.png + red"}
    # The fake model counts a picture's bytes as tokens: the picture is in there, before the text.
    assert value["usage"]["query_tokens"] == (tmp_path / "red.png").stat().st_size + len("in blue")


def test_the_instruction_reaches_the_model(daemon: Path) -> None:
    done = orin_rerank("rank", "q", "d", "--instruction", "Find it.", "--json", "--socket", str(daemon))
    assert json.loads(done.stdout)["results"][0]["margin"] == pytest.approx(expected_margin("q", "d", "Find it."))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["rank"], 2, "Missing argument 'QUERY'"),
        (["rank", "q"], 2, "DOCUMENT: name at least one"),
        (["rank", "q", "d", "--top", "0"], 2, "--top"),
        (["rank", "q", "d", "--socket", "a", "--address", "b:1"], 2, "not both"),
        (["rank", "q", "d", "--address", "nonsense"], 2, "neither HOST:PORT nor unix:PATH"),
        (["rank", "@-", "--documents", "-"], 2, "read only once"),
        (["rank", "q", "gone.webp"], 66, "gone.webp: cannot be read: No such file or directory"),
        (["rank", "q", "d", "--documents", "gone.jsonl"], 66, "gone.jsonl: cannot be read"),
        (["rank", "q", "d", "--socket", "/nowhere/s"], 68, "unix:/nowhere/s: no daemon answers there"),
        (["rank", "q", "d", "--address", "127.0.0.1:1"], 68, "127.0.0.1:1: no daemon answers there"),
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["rank", "--nonsense"], 2, "No such option"),
        ([], 2, "Missing command"),
    ],
)
def test_errors_are_one_line_with_a_hint(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    done = orin_rerank(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    first, *rest = done.stderr.splitlines()
    assert first.startswith("orin-rerank: error: ")
    assert message in first
    assert all(line.startswith("  hint: ") for line in rest)
    assert len(rest) <= 1


def test_the_daemons_refusals_are_told_with_the_callers_names(daemon: Path) -> None:
    long = ["rank", "q", "fine", "far too long", "--max-document-tokens", "5", "--no-truncate"]
    done = orin_rerank(*long, "--socket", str(daemon))
    assert done.returncode == 65
    assert done.stderr == "orin-rerank: error: documents[1] (far too long): takes 12 tokens; 5 fit\n"
    many = orin_rerank("rank", "q", *["d"] * 1001, "--socket", str(daemon))
    assert many.returncode == 65
    assert "1000" in many.stderr.replace(",", "")


def test_debug_shows_where(tmp_path: Path) -> None:
    done = orin_rerank("--debug", "rank", "q", "gone.webp", cwd=tmp_path)
    assert done.returncode == 66
    assert "Traceback" in done.stderr
    assert "orin-rerank: error: gone.webp" in done.stderr


def test_a_reader_that_leaves_is_no_error(daemon: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            [COMMAND, "rank", "q", "a", "b", "--socket", str(daemon)],
            stdout=output,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_narrow_terminal_cuts_names_and_never_numbers(daemon: Path) -> None:
    done = orin_rerank("rank", "q", "a rather long text " * 5, "b", "--socket", str(daemon), COLUMNS="50")
    rows = done.stdout.splitlines()[1:3]
    margins = {f"{expected_margin('q', text):+.2f}" for text in ("a rather long text " * 5, "b")}
    assert {value for row in rows for value in row.split()} >= margins
    assert any("…" in row for row in rows)
