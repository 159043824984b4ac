"""The frame around the commands: help, version, start-up cost, interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cli.conftest import COMMAND, environment, orin_rerank, running
from orin_rerank import __version__

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = ["grpc", "numpy", "onnx", "onnxruntime", "PIL", "tokenizers", "transformers", "google.protobuf"]


def test_the_command_line_starts_without_heavy_imports() -> None:
    code = f"import sys, json, orin_rerank.cli.main; json.dump([m for m in {HEAVY} if m in sys.modules], sys.stdout)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []


def test_version() -> None:
    assert orin_rerank("--version").stdout == f"orin-rerank {__version__}\n"


def test_the_module_runs_like_the_console_script() -> None:
    command = [sys.executable, "-m", "orin_rerank.cli.main", "rank"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "QUERY" in done.stderr


@pytest.mark.parametrize(
    ("command", "taught"),
    [
        ("", ["serve", "rank", "status", "evaluate", "build", "engines", "export", "68", "no daemon answers"]),
        ("serve", ["--tcp", "SIGTERM", "ORIN_RERANK_BUNDLE"]),
        ("rank", ["text:WORDS", "--documents passages.jsonl", '"truncated_tokens"', '{"image": "page3.webp"}']),
        ("status", ["75 starting", "until orin-rerank status"]),
        ("evaluate", ["2^grade - 1", '"relevance": 2}, ...]}']),
        ("build", ["goes on from there", "nearest sibling of Orin's GPU", '"compiled" is null']),
        ("engines", ["whether INT8 passed its gate", '.kind == "plans"']),
        ("plan", ["before anything is downloaded or built", "orin-nano-4", "reckoned, not measured"]),
        ("bundle", ["Look into a bundle", "verify"]),
        ("bundle verify", ["the exit code is 66", ".checks[].faults[]", "--run"]),
        ("export", ["pip install 'orin-rerank[export]'", "CHECKPOINT"]),
    ],
)
def test_help_teaches(command: str, taught: list[str]) -> None:
    done = orin_rerank(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    flat = " ".join(done.stdout.split())
    for words in taught:
        assert words in flat


def test_ctrl_c_ends_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    with running(tmp_path):
        # Standard input stays open and says nothing: the command waits for its documents.
        process = subprocess.Popen(
            [COMMAND, "rank", "q", "--documents", "-", "--socket", str(tmp_path / "daemon.sock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (130, "", "")
