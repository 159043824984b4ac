"""A whole daemon in a process of its own, on a GPU that is a fake and is lost when it is told to.

Usage: python gpu_daemon_main.py SOCKET BUNDLE STATE CONTROL [--hang] [--at run|release] [--stream SECONDS]

Everything is the project's own but the CUDA driver and TensorRT's bindings. Once the file CONTROL exists, the next
run, or else the release of the context, makes the GPU's driver fail as after an illegal address, for good; with --hang
the driver never answers again.
"""

import argparse
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines.fake_driver import ILLEGAL
from engines.tensorrt.fake_bindings import FakeGpu, FakeRuntime, Strategy
from orin_rerank.cli.exit_codes import exit_code_of
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.settings import DeviceChoice, EngineSettings
from orin_rerank.engines.store import EngineStore
from orin_rerank.engines.tensorrt.journal import Journal
from orin_rerank.engines.tensorrt.runtime import PlanRuntime
from orin_rerank.errors import OrinRerankError
from orin_rerank.lifecycle.accelerators import Accelerators, TensorRt
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.serving.foreground import run
from orin_rerank.serving.settings import ServerSettings
from orin_rerank.telemetry import log


class DoomedGpu(FakeGpu):
    """One that is lost once a file exists."""

    def __init__(self, control: Path, *, hang: bool, at: str, stream_s: float) -> None:
        super().__init__(stream_s=stream_s)
        self.control = control
        self.hang = hang
        self.at = at

    def called(self, name: str) -> bool:
        if name == "execute_async_v3" and self.at == "run" and self.broken is None and self.control.exists():
            # The run is taken and fails later, as on a real GPU; so do all calls from then on.
            self.broken = ILLEGAL
        return super().called(name)

    def close(self) -> None:
        if self.at == "release" and self.control.exists():
            self.broken = ILLEGAL
        if self.broken and self.hang:
            threading.Event().wait()
        super().close()


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("socket", "bundle", "state", "control"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--at", default="run")
    parser.add_argument("--stream", type=float, default=0.002)
    arguments = parser.parse_args()
    gpu = DoomedGpu(arguments.control, hang=arguments.hang, at=arguments.at, stream_s=arguments.stream)
    journal = Journal()

    def open_runtime() -> PlanRuntime:
        return PlanRuntime(FakeRuntime(gpu, journal.say), Strategy, journal)  # type: ignore[arg-type]

    accelerators = Accelerators(lambda: TensorRt("tensorrt 10.3.0", open_runtime), lambda: CudaThread(driver=gpu))

    def load(report):
        settings = EngineSettings(device=DeviceChoice.CUDA, token_budget=64)
        return load_model(
            arguments.bundle, settings, report, store=EngineStore(arguments.state), accelerators=accelerators
        )

    log.configure()
    try:
        return run(ServerSettings(socket=arguments.socket, drain_s=3.0), load, exit_code_of)
    except OrinRerankError as error:
        sys.stderr.write(f"error: {error}\n")
        return exit_code_of(error)


if __name__ == "__main__":
    sys.exit(main())
