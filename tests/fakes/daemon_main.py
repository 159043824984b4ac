"""A whole daemon in a process of its own, around the fake model.

Usage: python daemon_main.py SOCKET [--tcp ADDRESS] [--drain SECONDS] [--arrived FD --gate FD]
    [--load ok|fail|hang|steps|lost]

With a gate, the engine writes a byte to ARRIVED when a pack comes, and runs it when it can read one from GATE.
"""

import argparse
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.model import FakeModel
from orin_rerank.errors import BundleError, DeviceLostError, OrinRerankError, UnavailableError
from orin_rerank.serving.foreground import run
from orin_rerank.serving.settings import ServerSettings
from orin_rerank.telemetry import log


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path)
    parser.add_argument("--tcp")
    parser.add_argument("--drain", type=float, default=10.0)
    parser.add_argument("--arrived", type=int)
    parser.add_argument("--gate", type=int)
    parser.add_argument("--load", default="ok")
    arguments = parser.parse_args()
    model = FakeModel()

    def wait_at_the_gate(_):
        os.write(arguments.arrived, b".")
        os.read(arguments.gate, 1)

    if arguments.gate is not None:
        model.runner.fail = wait_at_the_gate

    def load(report):
        report("loading the fake")
        if arguments.load == "fail":
            raise BundleError("its digest differs", item="model.onnx")
        if arguments.load == "hang":
            threading.Event().wait()
        try:
            while arguments.load in {"steps", "lost"}:
                report("another step")
                time.sleep(0.01)
        except UnavailableError as error:  # asked to stop
            if arguments.load == "lost":
                raise DeviceLostError("gone while it was measured") from error
            raise
        return model

    log.configure()
    try:
        return run(ServerSettings(socket=arguments.socket, tcp=arguments.tcp, drain_s=arguments.drain), load)
    except OrinRerankError as error:
        sys.stderr.write(f"error: {error}\n")
        return 71 if isinstance(error, DeviceLostError) else 70


if __name__ == "__main__":
    sys.exit(main())
