"""Kills an export at one point after another: a process for `test_export_resumed`.

    python tests/lifecycle/kill_exports.py CHECKPOINT FOLDER

Points are what the interpreter announces before it asks the system for something (a file opened, renamed, removed, a
folder made), and every piece of weights that was written. For each a child is forked, which kills itself there with
SIGKILL. It exports over a copy of FOLDER/old to FOLDER/out-N; the first child that lives to the end is the last.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import onnx  # noqa: F401 - before the fork, so that no child has to
import transformers  # noqa: F401

from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.export import ExportOptions, ExportSpectator, export_checkpoint

EVENTS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree", "shutil.copyfile")
OPTIONS = ExportOptions(precisions=(Precision.FP32,), mark_bytes=1)


class Bomb(ExportSpectator):
    """Goes off at the n-th point inside a folder."""

    def __init__(self, number: int, folder: Path) -> None:
        self.left = number
        self.folder = str(folder)

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_written(self, done: int, total: int) -> None:
        if done % 7 == 0:  # some of them: each costs a whole export
            self.tick()

    def on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        opened = event == "open" and isinstance(arguments[1], str) and arguments[1][0] in "wax"
        if (opened or event in EVENTS) and str(arguments[0]).startswith(self.folder):
            self.tick()


def main() -> None:
    checkpoint, folder = Path(sys.argv[1]), Path(sys.argv[2])
    export_checkpoint(checkpoint, folder / "old", ExportOptions(max_tokens=999, precisions=(Precision.FP32,)))
    number, status = 0, -signal.SIGKILL
    while status:
        number += 1
        out = folder / f"out-{number}"
        shutil.copytree(folder / "old", out)
        child = os.fork()
        if child == 0:
            bomb = Bomb(number, out)
            sys.addaudithook(bomb.on_event)
            export_checkpoint(checkpoint, out, OPTIONS, bomb)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, -signal.SIGKILL):
            sys.exit(f"point {number}: {status}")


if __name__ == "__main__":
    main()
