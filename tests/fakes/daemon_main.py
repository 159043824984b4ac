"""A whole daemon in a process of its own, around the fake model.

Usage: python daemon_main.py SOCKET [--tcp ADDRESS] [--drain SECONDS] [--arrived FD --gate FD]
    [--load ok|fail|hang|steps|lost|build] [--settings FILE]

With a gate, the engine writes a byte to ARRIVED when a pack comes, and runs it when it can read one from GATE. SIGHUP
has the most documents of a request read from the file of settings. It speaks to systemd where NOTIFY_SOCKET says so.
"""

import argparse
import dataclasses
import functools
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.model import FakeModel
from orin_rerank.errors import BundleError, DeviceLostError, OrinRerankError, SettingsError, UnavailableError
from orin_rerank.lifecycle.first_boot.progress import Progress, Step
from orin_rerank.serving.foreground import run
from orin_rerank.serving.settings import ServerSettings
from orin_rerank.telemetry import log
from orin_rerank.telemetry.notify import Notifier


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path)
    parser.add_argument("--tcp")
    parser.add_argument("--drain", type=float, default=10.0)
    parser.add_argument("--arrived", type=int)
    parser.add_argument("--gate", type=int)
    parser.add_argument("--load", default="ok")
    parser.add_argument("--settings", type=Path)
    return parser.parse_args()


def loaded(kind, model, report):
    report("loading the fake")
    if kind == "fail":
        raise BundleError("its digest differs", item="model.onnx")
    if kind == "hang":
        threading.Event().wait()
    if kind == "build":
        for step in range(20):
            report(Progress(Step.BUILD_INT8, "compiling text.plan", step / 20, 20.0 - step, "there are none"))
            time.sleep(0.1)
    try:
        while kind in {"steps", "lost"}:
            report("another step")
            time.sleep(0.01)
    except UnavailableError as error:  # asked to stop
        if kind == "lost":
            raise DeviceLostError("gone while it was measured") from error
        raise
    return model


def main() -> int:
    arguments = parsed()
    model = FakeModel()

    def wait_at_the_gate(_):
        os.write(arguments.arrived, b".")
        os.read(arguments.gate, 1)

    if arguments.gate is not None:
        model.runner.fail = wait_at_the_gate

    log.configure()
    settings = ServerSettings(socket=arguments.socket, tcp=arguments.tcp, drain_s=arguments.drain)

    def reload():
        try:
            return dataclasses.replace(settings, max_documents=int(arguments.settings.read_text()))
        except ValueError as error:
            raise SettingsError("is no number", item=str(arguments.settings)) from error

    try:
        return run(
            settings,
            functools.partial(loaded, arguments.load, model),
            notifier=Notifier(),
            reload=reload if arguments.settings else None,
            before_exit=lambda: sys.stderr.write("ended at once\n"),
        )
    except OrinRerankError as error:
        sys.stderr.write(f"error: {error}\n")
        return 71 if isinstance(error, DeviceLostError) else 70


if __name__ == "__main__":
    sys.exit(main())
