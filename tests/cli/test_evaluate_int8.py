"""evaluate --precision int8 --against full, with an engine that is installed as `calibrate` leaves it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from cli.conftest import orin_rerank
from evaluation.evaluation_sets import line, picture, write_set
from fakes.tiny_checkpoint import write_checkpoint
from lifecycle.int8_bundles import add_gate, write_int8_bundle
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.store import EngineStore
from orin_rerank.evaluation.scoring import selected_queries
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.prompt.content import RerankInput

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Installed:
    bundle: Path
    data: Path
    state: Path

    def evaluate(self, *arguments: str):
        common = ["--bundle", str(self.bundle), "--data", str(self.data), "--threads", "1"]
        return orin_rerank("evaluate", *common, *arguments, ORIN_RERANK_STATE=str(self.state), COLUMNS="80")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    root = tmp_path_factory.mktemp("int8")
    picture(root / "data" / "red.png", size=64)
    lines = [line(), line(id="q2", split="image-to-text", query=[{"image": "red.png"}])]
    data = write_set(root / "data", lines)
    options = ExportOptions(max_tokens=512, precisions=(Precision.FP32,))
    export_checkpoint(write_checkpoint(root / "tiny"), root / "bundle", options)
    bundle = Bundle.open(root / "bundle")
    requests = [RerankInput(q.query, [d.content for d in q.documents], q.instruction) for q in selected_queries(data)]
    store = EngineStore(root / "state")
    with store.staging(bundle.digest) as staged:
        add_gate(write_int8_bundle(bundle, staged, requests))
        store.install(bundle.digest, staged)
    return Installed(bundle.folder, data, root / "state")


def test_the_table_has_both_precisions_and_the_gates_word(installed: Installed) -> None:
    done = installed.evaluate("--precision", "int8", "--against", "full")
    assert done.returncode == 0, done.stderr
    header, _, lexical, pictures, total, int8, full, gate = done.stdout.splitlines()
    assert header.split()[4:6] == ["full", "int8"]
    assert [row.split()[:2] for row in (lexical, pictures, total)] == [
        ["lexical", "1"],
        ["image-to-text", "1"],
        ["all", "2"],
    ]
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert int8.startswith("int8: ")
    assert int8.endswith("; tiny, onnxruntime-cpu, int8")
    assert full.endswith("; tiny, onnxruntime-cpu, fp32")
    assert gate == "gate: refused: 2 judged queries decide nothing; 50 are needed"


def test_json_has_every_margin_of_both(installed: Installed) -> None:
    value = json.loads(installed.evaluate("--precision", "int8", "--against", "full", "--json").stdout)
    assert (value["candidate"]["precision"], value["reference"]["precision"]) == ("int8", "fp32")
    assert value["candidate"]["bundle"]["digest"] != value["reference"]["bundle"]["digest"]
    assert value["gate"]["passed"] is False
    (first, second) = value["queries"]
    assert (first["id"], second["id"], first["grades"]) == ("q1", "q2", [2, 1, 0])
    shifts = [
        abs(a - b) for query in value["queries"] for a, b in zip(query["candidate"], query["reference"], strict=True)
    ]
    # The table's largest shift is that of the margins that are given, and INT8 was really computed.
    assert value["total"]["largest_shift"] == pytest.approx(max(shifts))
    assert min(shifts) > 0


def test_the_other_way_round_and_a_part_of_the_set_are_not_judged(installed: Installed) -> None:
    around = installed.evaluate("--precision", "full", "--against", "int8", "--split", "text-to-text")
    assert around.returncode == 0, around.stderr
    assert "gate:" not in around.stdout
    assert around.stdout.splitlines()[0].split()[4:6] == ["int8", "full"]
    part = installed.evaluate("--precision", "int8", "--against", "full", "--split", "text-to-text", "--json")
    assert json.loads(part.stdout)["gate"] is None


def test_one_precision_alone_is_the_one_that_was_asked_for(installed: Installed) -> None:
    for arguments, precision in (([], "int8"), (["--precision", "int8"], "int8"), (["--precision", "full"], "fp32")):
        done = installed.evaluate(*arguments)
        assert done.stdout.splitlines()[-1].endswith(f"tiny, onnxruntime-cpu, {precision}"), done.stderr


def test_int8_that_is_not_there_is_not_replaced_by_full_precision(installed: Installed, tmp_path: Path) -> None:
    done = dataclasses.replace(installed, state=tmp_path).evaluate("--precision", "int8", "--against", "full")
    assert (done.returncode, done.stdout) == (66, "")
    assert "no INT8 engine is installed" in done.stderr
