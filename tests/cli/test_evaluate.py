"""How the evaluation is shown."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from cli.conftest import orin_rerank
from evaluation.evaluation_sets import line, picture, write_set
from orin_rerank.cli.evaluate import report_table
from orin_rerank.evaluation.run import evaluate

if TYPE_CHECKING:
    from pathlib import Path


def shown(root: Path) -> list[list[str]]:
    report = evaluate(lambda request: [-float(place) for place in range(len(request.documents))], root)
    out = io.StringIO()
    Console(file=out, width=100).print(report_table(report))
    return [line.split() for line in out.getvalue().splitlines()]


def test_the_table_has_a_row_a_split_and_one_for_all(tmp_path: Path) -> None:
    picture(tmp_path / "red.png")
    write_set(tmp_path, [line(), line(id="q2", split="image-to-text", query=[{"image": "red.png"}])])
    header, lexical, pictures, total = shown(tmp_path)
    assert header == ["split", "queries", "NDCG@10", "[95", "%]", "chance", "BM25", "MRR", "pairs"]
    assert lexical == ["text-to-text/lexical", "1", "1.000", "[1.000,", "1.000]", "0.783", "1.000", "1.000", "1.000"]
    assert pictures == ["image-to-text", "1", "1.000", "[1.000,", "1.000]", "0.783", "—", "1.000", "1.000"]
    assert total == ["all", "2", "1.000", "[1.000,", "1.000]", "0.783", "1.000", "(1)", "1.000", "1.000"]


def test_a_set_of_one_split_has_no_second_row_for_all(tmp_path: Path) -> None:
    write_set(tmp_path, [line()])
    assert len(shown(tmp_path)) == 2


def test_a_bundle_that_is_not_there_is_bad_data(tmp_path: Path) -> None:
    write_set(tmp_path, [line()])
    done = orin_rerank("evaluate", "--bundle", str(tmp_path / "gone"), "--data", str(tmp_path))
    assert (done.returncode, done.stdout) == (66, "")
    assert "orin-rerank: error: " in done.stderr
    assert "gone" in done.stderr
