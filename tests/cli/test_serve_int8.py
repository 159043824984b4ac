"""A real daemon with an INT8 engine installed: it serves that, or says everywhere why it does not."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cli.conftest import COMMAND, environment, orin_rerank
from fakes.tiny_checkpoint import write_checkpoint
from lifecycle.int8_bundles import add_gate, write_int8_bundle
from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle
from orin_rerank.engines.store import EngineStore
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.prompt.content import RerankInput, TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Machine:
    """A bundle, the INT8 engine that is installed for it, and a daemon's socket."""

    bundle: Path
    engine: Path
    state: Path
    socket: Path

    def serve(self, *arguments: str) -> list[str]:
        common = ["--bundle", str(self.bundle), "--socket", str(self.socket)]
        return ["serve", *common, "--threads", "1", "--token-budget", "128", *arguments]

    @contextmanager
    def serving(self, *arguments: str) -> Iterator[list[dict[str, Any]]]:
        """The daemon while it serves; the list holds its journal afterwards."""
        journal: list[dict[str, Any]] = []
        process = subprocess.Popen(
            [COMMAND, *self.serve(*arguments)],
            stderr=subprocess.PIPE,
            env=environment(ORIN_RERANK_STATE=str(self.state)),
        )
        try:
            deadline = time.monotonic() + 60
            while orin_rerank("status", "--socket", str(self.socket)).returncode:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield journal
            process.send_signal(signal.SIGTERM)
            journal += [json.loads(line) for line in process.communicate(timeout=30)[1].decode().splitlines()]
        finally:
            process.kill()
            process.wait()

    def status(self) -> dict[str, Any]:
        model: dict[str, Any] = json.loads(orin_rerank("status", "--json", "--socket", str(self.socket)).stdout)[
            "model"
        ]
        return model

    def status_row(self) -> str:
        """What the table says about the precision."""
        table = orin_rerank("status", "--socket", str(self.socket), COLUMNS="400").stdout
        (row,) = [line for line in table.splitlines() if line.startswith("precision ")]
        return row.split(maxsplit=1)[1].strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    options = ExportOptions(max_tokens=512, precisions=(Precision.FP32,))
    export_checkpoint(write_checkpoint(tmp_path / "tiny"), tmp_path / "bundle", options)
    bundle = Bundle.open(tmp_path / "bundle")
    requests = [RerankInput([TextPart(f"query {i}")], [[TextPart("a document")], [TextPart("more")]]) for i in range(4)]
    store = EngineStore(tmp_path / "state")
    with store.staging(bundle.digest) as staged:
        add_gate(write_int8_bundle(bundle, staged, requests))
        engine = store.install(bundle.digest, staged)
    return Machine(bundle.folder, engine, store.root, tmp_path / "s")


def test_int8_is_served(machine: Machine) -> None:
    with machine.serving() as journal:
        done = orin_rerank("rank", "query", "a document", "more", "--json", "--socket", str(machine.socket))
        assert json.loads(done.stdout)["precision"] == "int8"
        model = machine.status()
        row = machine.status_row()
    assert (model["precision"], model["bundle_digest"]) == ("int8", Bundle.open(machine.engine).digest)
    assert model["source_digest"] == Bundle.open(machine.bundle).digest
    assert row == model["precision_reason"]
    assert row.startswith("INT8 passed its gate: NDCG@10 ")
    (record,) = [record for record in journal if record["message"] == "serving"]
    assert (record["precision"], record["reason"]) == ("int8", row)


def test_a_damaged_engine_leaves_full_precision_and_a_reason(machine: Machine) -> None:
    with (machine.engine / WEIGHTS_FILE).open("r+b") as file:
        file.truncate(1000)
    with machine.serving() as journal:
        model = machine.status()
        row = machine.status_row()
    assert (model["precision"], model["source_digest"]) == ("fp32", "")
    assert row == model["precision_reason"]
    assert row.startswith(f"an INT8 engine is installed, but refused: {machine.engine / WEIGHTS_FILE}: has 1000 bytes")
    (warning,) = [record for record in journal if record["level"] == "warning"]
    assert (warning["message"], warning["reason"]) == ("serving full precision though INT8 is installed", row)
    refused = orin_rerank(*machine.serve("--precision", "int8"), ORIN_RERANK_STATE=str(machine.state))
    assert refused.returncode == 66
    (last,) = [line for line in refused.stderr.splitlines() if line.startswith("orin-rerank: error: ")]
    assert row in last
    assert "`orin-rerank calibrate` makes" in last


def test_full_precision_is_served_where_it_was_asked_for(machine: Machine) -> None:
    with machine.serving("--precision", "full"):
        model = machine.status()
    assert (model["precision"], model["precision_reason"]) == ("fp32", "full precision was asked for")
