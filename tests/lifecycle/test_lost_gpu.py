"""A GPU is lost beneath a real daemon: no answer is wrong, none is missing, and the process ends with its own code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
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

    def start(self, *options: str, until: str = "serving") -> None:
        places = [self.socket, self.bundle, self.folder / "state", self.control]
        self.process = subprocess.Popen(
            [sys.executable, str(MAIN), *map(str, places), *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.until(until)

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


def ask(stub: rerank_pb2_grpc.RerankServiceStub, number: int, documents: int = 4) -> dict[int, float] | grpc.StatusCode:
    """The margins, or the status."""
    request = pb.RerankRequest(
        query=pb.Content(text=f"query {number}"),
        documents=[pb.Content(text=f"document {number} {i}") for i in range(documents)],
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


def failures(machine: Machine) -> list[dict[str, Any]]:
    return [record for record in machine.journal if record["message"] == "failed"]


@pytest.mark.parametrize("options", [(), ("--hang",)], ids=["fails", "hangs"])
def test_a_gpu_that_is_lost_while_draining_is_told_all_the_same(machine: Machine, options: tuple[str, ...]) -> None:
    machine.start("--stream", "0.3", *options)
    assert machine.process is not None
    with grpc.insecure_channel(f"unix:{machine.socket}") as channel, ThreadPoolExecutor(1) as callers:
        stub = rerank_pb2_grpc.RerankServiceStub(channel)
        call = callers.submit(ask, stub, 0, documents=100)  # many packs, of which some are to come
        while not stub.GetStatus(pb.GetStatusRequest()).queue.requests:
            time.sleep(0.01)
        machine.process.send_signal(signal.SIGTERM)
        machine.until("draining")
        machine.control.touch()
        assert call.result(30) is grpc.StatusCode.UNAVAILABLE
    assert machine.end() == ExitCode.DEVICE_LOST
    (failed,) = failures(machine)
    assert "illegal memory access" in json.dumps(failed)


@pytest.mark.parametrize("options", [(), ("--hang",)], ids=["fails", "hangs"])
def test_a_gpu_that_is_lost_before_the_daemon_serves_ends_it(machine: Machine, options: tuple[str, ...]) -> None:
    """The self-test meets it; a driver that then never answers must not hold up the news."""
    machine.control.touch()
    machine.start(*options, until="failed")
    assert machine.end() == ExitCode.DEVICE_LOST
    assert len(failures(machine)) == 1


def test_a_loss_that_only_the_release_of_the_gpu_meets_is_told(machine: Machine) -> None:
    machine.start("--at", "release")
    assert machine.process is not None
    machine.control.touch()
    machine.process.send_signal(signal.SIGTERM)
    assert machine.end() == ExitCode.DEVICE_LOST
    assert len(failures(machine)) == 1
