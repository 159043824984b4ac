"""The real daemon with the fake model, as a process: `python fake_daemon.py SOCKET serving|starting|failed`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from fakes.model import FakeModel
from orin_rerank.errors import BundleError
from orin_rerank.serving import daemon
from orin_rerank.serving.settings import ServerSettings


def main() -> int:
    socket, state = Path(sys.argv[1]), sys.argv[2]

    def load(report):
        report("reading the fake bundle")
        if state == "starting":
            threading.Event().wait()
        if state == "failed":
            raise BundleError("is not there", item="manifest.json")
        return FakeModel()

    return daemon.run(ServerSettings(socket=socket, max_documents=50, drain_s=2.0), load)


if __name__ == "__main__":
    sys.exit(main())
