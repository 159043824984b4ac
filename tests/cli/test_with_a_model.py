"""export, serve, rank and evaluate with a real bundle, in the order in which a person uses them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cli.conftest import COMMAND, environment, orin_rerank
from evaluation.evaluation_sets import line, picture, write_set
from fakes.tiny_checkpoint import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    done = orin_rerank("export", str(write_checkpoint(folder / "tiny")), str(folder / "bundle"), "--precision", "fp32")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"wrote {folder / 'bundle'}: tiny, ")
    assert not list((folder / "bundle").glob("*.fp16.onnx"))
    return folder / "bundle"


@pytest.fixture
def serving(bundle: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    socket = tmp_path / "s"
    process = subprocess.Popen(
        [COMMAND, "serve", "--bundle", str(bundle), "--socket", str(socket), "--token-budget", "128", "--threads", "1"],
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        deadline = time.monotonic() + 60
        while orin_rerank("status", "--socket", str(socket)).returncode:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield process, socket
    finally:
        process.kill()
        process.wait()


def test_serve_and_rank(serving: tuple[subprocess.Popen[bytes], Path], tmp_path: Path) -> None:
    process, socket = serving
    picture(tmp_path / "red.png", size=64)
    picture(tmp_path / "blue.png", (0, 0, 200), size=64)
    done = orin_rerank("rank", "red", "red.png", "blue.png", "text", "--json", "--socket", str(socket), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    value = json.loads(done.stdout)
    assert {row["document"] for row in value["results"]} == {"red.png", "blue.png", "text"}
    assert value["usage"]["images"] == 2
    status = json.loads(orin_rerank("status", "--json", "--socket", str(socket)).stdout)
    assert status["model"]["token_budget"] == 128
    assert status["counters"]["images_encoded"] == 2
    (tmp_path / "broken.png").write_bytes((tmp_path / "red.png").read_bytes()[:70])
    broken = orin_rerank("rank", "red", "blue.png", "broken.png", "--socket", str(socket), cwd=tmp_path)
    assert broken.returncode == 65
    assert "documents[1]" in broken.stderr
    assert "(broken.png)" in broken.stderr
    process.send_signal(signal.SIGTERM)
    _, journal = process.communicate(timeout=30)
    assert process.returncode == 0
    assert not socket.exists()
    records = [json.loads(record) for record in journal.decode().splitlines()]
    assert records[-1]["message"] == "stopped"


def test_evaluate(bundle: Path, tmp_path: Path) -> None:
    picture(tmp_path / "red.png", size=64)
    write_set(tmp_path, [line(), line(id="q2", split="image-to-text", query=[{"image": "red.png"}])])
    arguments = ["evaluate", "--bundle", str(bundle), "--data", str(tmp_path), "--threads", "1"]
    done = orin_rerank(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["bundle"]["name"] == "tiny"
    assert [split["name"] for split in value["splits"]] == ["text-to-text/lexical", "image-to-text"]
    assert len(value["queries"]) == 2
    table = orin_rerank(*arguments, "--split", "image-to-text")
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[1].startswith("image-to-text ")
    assert "tiny, onnxruntime-cpu, fp32" in table.stdout
    unknown = orin_rerank(*arguments, "--split", "nothing")
    assert unknown.returncode == 66
    assert "has no split 'nothing'; it has text-to-text/lexical, image-to-text" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["serve", "--tcp", "nonsense"], 2, "--tcp: must be host:port"),
        (["serve", "--socket", "/" + "x" * 120], 2, "--socket: is 121 bytes long"),
        (["serve", "--token-budget", "3"], 2, "--token-budget"),
        (["serve", "--bundle", "gone", "--socket", "s"], 66, "gone/manifest.json: cannot be read"),
        (["export", "gone", "out"], 66, "config.json"),
        (["evaluate", "--data", "gone", "--bundle", "gone"], 66, "gone"),
    ],
)
def test_errors(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    done = orin_rerank(*arguments, cwd=tmp_path)
    last = [text for text in done.stderr.splitlines() if text.startswith("orin-rerank: error: ")]
    assert (done.returncode, len(last)) == (code, 1), done.stderr
    assert message in last[0]


def test_an_export_without_transformers_says_what_to_install(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    code = "import sys; sys.modules['transformers'] = None; from orin_rerank.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "export", str(checkpoint), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'orin-rerank[export]'" in done.stderr
