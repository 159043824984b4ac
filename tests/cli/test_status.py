"""`orin-rerank status` tells the state in words and by its exit code."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
from typing import TYPE_CHECKING

from cli.conftest import COMMAND, environment, orin_rerank, running

if TYPE_CHECKING:
    from pathlib import Path


def test_serving(daemon: Path) -> None:
    orin_rerank("rank", "q", "d1", "d2", "--socket", str(daemon))
    done = orin_rerank("status", "--json", "--socket", str(daemon))
    assert (done.returncode, done.stderr) == (0, "")
    value = json.loads(done.stdout)
    assert list(value) == [
        "state",
        "detail",
        "version",
        "uptime_seconds",
        "activity",
        "problems",
        "model",
        "queue",
        "pool",
        "counters",
    ]
    assert value["state"] == "serving"
    assert (value["activity"]["step"], value["activity"]["fraction"], value["problems"]) == ("", None, [])
    assert value["model"] == {
        "name": "fake",
        "bundle_digest": "0" * 64,
        "precision": "fp32",
        "engine": "fake-cpu",
        "images": False,
        "max_tokens": 4096,
        "token_budget": 256,
        "precision_reason": "no INT8 engine is installed",
        "engine_reason": "the processor was asked for",
        "source_digest": "",
    }
    assert value["pool"] == {"total_bytes": 1 << 20, "slots": 1, "used": 0, "high_water": 1, "waits": 3}
    assert value["counters"]["documents"] >= 2
    assert isinstance(value["counters"]["errors"], dict)
    table = orin_rerank("status", "--socket", str(daemon))
    assert table.returncode == 0
    rows = dict(line.split(maxsplit=1) for line in table.stdout.splitlines())
    assert rows["state"].strip() == "serving"
    assert rows["engine"].strip() == "fake-cpu, fp32 (the processor was asked for)"
    assert rows["precision"].strip() == "no INT8 engine is installed"
    assert rows["buffers"].strip() == "0 of 1 in use, at most 1 so far; 1.0 MB; 3 waits"


def test_starting(tmp_path: Path) -> None:
    with running(tmp_path, "hang") as file:
        done = orin_rerank("status", "--json", "--socket", str(file))
        assert done.returncode == 75
        value = json.loads(done.stdout)
        assert (value["state"], value["detail"]) == ("starting", "loading the fake")
        assert (value["model"], value["pool"]) == (None, None)
        refused = orin_rerank("rank", "q", "d", "--socket", str(file))
        assert refused.returncode == 69
        assert "hint: `orin-rerank status` says what it is doing" in refused.stderr


def test_unreachable(tmp_path: Path) -> None:
    done = orin_rerank("status", "--json", "--socket", str(tmp_path / "s"))
    assert (done.returncode, done.stdout) == (68, "")
    assert "hint: start the daemon with `orin-rerank serve`" in done.stderr


def test_a_daemon_that_is_killed_while_it_is_watched(tmp_path: Path) -> None:
    with running(tmp_path) as file:
        watch = subprocess.Popen(
            [COMMAND, "status", "--watch", "--socket", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert watch.stdout is not None
        assert watch.stdout.readline().startswith("serving")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(file))
            pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        os.kill(pid, signal.SIGKILL)
        _, said = watch.communicate(timeout=30)
        assert watch.returncode == 68
        assert "the daemon ended without a word: killed, or crashed" in " ".join(said.split())
