"""How the evaluation is shown."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from cli.conftest import orin_rerank
from evaluation.evaluation_sets import line, picture, write_set
from evaluation.scored import moved, reference, scored, with_noise
from orin_rerank.cli.evaluation_tables import paired_table, report_table
from orin_rerank.evaluation.paired import compare
from orin_rerank.evaluation.run import evaluate

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.evaluation.paired import PairedReport


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


def printed(report: PairedReport, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(paired_table(report, "int8", "full"))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_paired_table_of_a_hand_worked_example() -> None:
    before = [scored("q1", [3.0, 2.0, 1.0], split="text/a"), scored("q2", [3.0, 2.0, 1.0], split="mixed")]
    after = [before[0], scored("q2", [3.0, 0.5, 1.0], split="mixed")]
    header, heading, first, second, total = (row.split() for row in printed(compare(before, after), 80))
    assert header == ["NDCG@10", "x", "100", "n", "full", "int8", "change", "[95", "%]", "flips", "corr", "shift"]
    assert heading == ["text"]
    assert first == ["a", "1", "100.0", "100.0", "+0.00", "[+0.0,", "+0.0]", "0.0%", "1.0000", "0.00"]
    assert second == ["mixed", "1", "100.0", "96.4", "-3.61", "[-3.6,", "-3.6]", "33.3%", ".7559", "1.50"]
    assert total[:6] == ["all", "2", "100.0", "98.2", "-1.80", "[-3.6,"]


def test_the_paired_table_fits_a_narrow_terminal() -> None:
    splits = ("text-to-image/unseen-style", "text-to-image/unseen-concept", "image-to-image/unseen-concept")
    before = reference(queries=300, splits=splits)
    for deviation in (0.05, 3.0):
        report = compare(before, with_noise(before, deviation))
        assert printed(report, 80) == printed(report, 120)
        assert sum(row.startswith("text-to-image") for row in printed(report, 80)) == 1


def test_what_a_split_is_called_is_not_taken_for_markup() -> None:
    before = [scored("q1", [3.0, 2.0, 1.0], split="[red]a\x1b[0m")]
    row = printed(compare(before, before), 100)[1]
    assert row.startswith("[red]a\N{REPLACEMENT CHARACTER}[0m ")


def test_margins_that_are_not_finite_are_told_and_nothing_else() -> None:
    before = reference(splits=("a", "b"))
    broken = moved(before, lambda margins: margins * float("nan"))
    report = compare(before, [b if b.split == "b" else a for a, b in zip(before, broken, strict=True)])
    good, bad, total = (row.split() for row in printed(report, 80)[1:])
    assert good[2] == good[3]
    assert bad == ["b", "30", "300", "margins", "not", "finite"]
    assert total == ["all", "60", "300", "margins", "not", "finite"]


def test_a_precision_is_compared_with_the_other_one(tmp_path: Path) -> None:
    write_set(tmp_path, [line()])
    for arguments in (["--against", "full"], ["--precision", "int8", "--against", "int8"], ["--against", "auto"]):
        done = orin_rerank("evaluate", "--data", str(tmp_path), *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--against: compare int8 with full" in done.stderr


def test_a_bundle_that_is_not_there_is_bad_data(tmp_path: Path) -> None:
    write_set(tmp_path, [line()])
    done = orin_rerank("evaluate", "--bundle", str(tmp_path / "gone"), "--data", str(tmp_path))
    assert (done.returncode, done.stdout) == (66, "")
    assert "orin-rerank: error: " in done.stderr
    assert "gone" in done.stderr
