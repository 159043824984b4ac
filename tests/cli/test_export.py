"""What a person sees of an export."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cli.conftest import COMMAND, environment, orin_rerank
from fakes.full_size import shapes_of, write_shards
from graph.checkpoints import TEXT, TOKENIZER, tensors_of, write_checkpoint, write_safetensors
from orin_rerank.engines.bundle import Bundle
from orin_rerank.graph.architecture import read_architecture
from orin_rerank.lifecycle.staging import STAGING_FOLDER, Staging

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def half_a_gigabyte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of zeros, which takes no room on the disk."""
    folder = tmp_path_factory.mktemp("large") / "large"
    folder.mkdir()
    config = {**TEXT, "hidden_size": 4096, "intermediate_size": 8192, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    write_shards(folder, shapes_of(read_architecture(folder)), 200_000_000, sparse=True)
    return folder


def in_terminal(*arguments: str, stop_when: Callable[[], bool] = lambda: False) -> tuple[list[str], int]:
    """Runs the command in a terminal of 100 columns, and sends it Ctrl-C once something is so.

    Returns:
        All lines that were ever shown, and the exit code.
    """
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        [COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=end, stderr=end, env=environment(TERM="xterm")
    )
    os.close(end)
    shown, stopped = "", False
    with contextlib.suppress(OSError):  # the terminal's end
        while True:
            if select.select([terminal], [], [], 0.005)[0]:
                shown += os.read(terminal, 1 << 12).decode(errors="replace")
            if not stopped and stop_when():
                stopped = True
                process.send_signal(signal.SIGINT)
    os.close(terminal)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r", "\n").splitlines()
    return [line.strip() for line in lines if line.strip()], process.wait(30)


def test_bars_and_what_an_interrupted_export_leaves(half_a_gigabyte: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    journal = out / STAGING_FOLDER / "progress.jsonl"
    lines, code = in_terminal(
        "export",
        str(half_a_gigabyte),
        str(out),
        stop_when=lambda: journal.exists() and len(journal.read_text().splitlines()) > 1,
    )
    assert code == 130
    assert lines[-1] == "stopped; what is written is kept, and the same command goes on from there"
    assert any(re.search(r"writing weights .* \d+\.\d/\d+\.\d MB .*MB/s .*\d:\d\d", line) for line in lines)
    assert not (out / "manifest.json").exists()
    lines, code = in_terminal("export", str(half_a_gigabyte), str(out))
    assert code == 0
    assert any("checking what is there" in line for line in lines)
    assert any(re.fullmatch(r"went on from \d+\.\d MB that were written before", line) for line in lines)
    assert max(len(line) for line in lines if "writing weights" in line) <= 100
    assert lines[-1].startswith(f"wrote {out}: large, ")
    Bundle.open(out).verify()
    assert not (out / STAGING_FOLDER).exists()
    shutil.rmtree(out)


def test_what_a_person_should_know_is_said(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny", TEXT, "F32")
    tensors = tensors_of(TEXT, checkpoint)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e6
    tensors["model.layers.1.mlp.up_proj.weight"] *= np.float32(1e-8)
    tensors["model.layers.1.mlp.gate_proj.weight"][0, 0] = 1e-9  # one of many: not worth a word
    stored = {f"module.{name}": values for name, values in tensors.items()}
    write_safetensors(checkpoint / "model.safetensors", {**stored, "v_head.weight": np.zeros(2)}, "F32")
    done = orin_rerank("export", str(checkpoint), str(tmp_path / "out"), "--weights", "fp16", "--precision", "fp16")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        'tensor names that begin with "module.model." were read as "model."',
        "warning: v_head.weight is not used",
        "warning: model.layers.0.mlp.up_proj.weight: 1 of 1,536 weights exceed FP16 (65504) and were clipped",
        done.stderr.splitlines()[3],
    ]
    assert re.fullmatch(
        r"warning: model\.layers\.1\.mlp\.up_proj\.weight: 1,\d+ of 1,536 weights are too small for FP16 .*",
        done.stderr.splitlines()[3],
    )


def test_two_at_once(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny", TEXT)
    with Staging(tmp_path / "out").open():
        done = orin_rerank("export", str(checkpoint), str(tmp_path / "out"))
    assert done.returncode == 75
    assert "another process is writing a bundle there" in done.stderr
