"""A GPU is lost beneath a real daemon: no answer is wrong, none is missing, and the process ends with its own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lifecycle.test_device_choice import install_plans
from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.engines.bundle import Bundle
from orin_rerank.v1 import rerank_pb2 as pb
from orin_rerank.v1 import rerank_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

MAIN = Path(__file__).parents[1] / "fakes" / "gpu_daemon_main.py"
CALLERS = 8


class Machine:
    """A daemon on a GPU, and the switch that loses it."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.bundle, self.folder = bundle, folder
        self.socket, self.control = folder / "s", folder / "lose"
        install_plans(Bundle.open(bundle), folder / "state")
        self.process: subprocess.Popen[str] | None = None
        self.journal: list[dict[str, Any]] = []

    def start(self, *options: str) -> None:
        places = [self.socket, self.bundle, self.folder / "state", self.control]
        self.process = subprocess.Popen(
            [sys.executable, str(MAIN), *map(str, places), *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.until("serving")

    def until(self, message: str) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.journal.append(json.loads(line))
            if self.journal[-1]["message"] == message:
                return
        raise AssertionError(f"the daemon ended without {message!r}: {self.journal}")

    def end(self) -> int:
        """Its exit code; the journal then is complete."""
        assert self.process is not None
        rest = self.process.communicate(timeout=30)[1]
        self.journal += [json.loads(line) for line in rest.splitlines() if line.startswith("{")]
        return self.process.returncode

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def machine(bundle_folder: Path, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(bundle_folder, tmp_path)
    yield machine
    machine.close()


def ask(stub: rerank_pb2_grpc.RerankServiceStub, number: int) -> dict[int, float] | grpc.StatusCode:
    """The margins, or the status."""
    request = pb.RerankRequest(
        query=pb.Content(text=f"query {number}"),
        documents=[pb.Content(text=f"document {number} {i}") for i in range(4)],
    )
    try:
        response = stub.Rerank(request, timeout=20)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return {result.index: result.margin for result in response.results}


@pytest.mark.parametrize("options", [(), ("--hang",)], ids=["fails", "hangs"])
def test_a_lost_gpu_ends_the_daemon_and_the_next_one_serves(machine: Machine, options: tuple[str, ...]) -> None:
    machine.start(*options)
    with grpc.insecure_channel(f"unix:{machine.socket}") as channel, ThreadPoolExecutor(CALLERS + 1) as callers:
        stub = rerank_pb2_grpc.RerankServiceStub(channel)
        status = stub.GetStatus(pb.GetStatusRequest())
        assert (status.model.engine, status.model.precision) == ("tensorrt", "fp16")
        right = {number: ask(stub, number) for number in range(CALLERS)}
        assert all(isinstance(margins, dict) for margins in right.values())
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING

        def until_the_end(number: int) -> list[dict[int, float] | grpc.StatusCode]:
            answers = [ask(stub, number)]
            while isinstance(answers[-1], dict):
                answers.append(ask(stub, number))
            return answers

        running = [callers.submit(until_the_end, number) for number in range(CALLERS)]
        machine.control.touch()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        for number, future in enumerate(running):
            *answers, last = future.result(timeout=30)
            assert last is grpc.StatusCode.UNAVAILABLE
            for margins in answers:
                assert margins == pytest.approx(right[number], abs=0.01)
        assert ask(stub, 0) is grpc.StatusCode.UNAVAILABLE
        watch.cancel()
    assert machine.end() == ExitCode.DEVICE_LOST
    (failed,) = [record for record in machine.journal if record["message"] == "failed"]
    assert "illegal memory access" in json.dumps(failed)
    machine.control.unlink()
    machine.start()
    with grpc.insecure_channel(f"unix:{machine.socket}") as channel:
        assert ask(rerank_pb2_grpc.RerankServiceStub(channel), 3) == pytest.approx(right[3], abs=0.01)
