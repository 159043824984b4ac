"""The daemon as a process: signals, stale sockets, foreign clients. Ready and busy are told by it, not guessed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fakes.model import expected_margin
from orin_rerank.v1 import rerank_pb2 as pb
from orin_rerank.v1 import rerank_pb2_grpc
from serving.conftest import request

MAIN = Path(__file__).parents[1] / "fakes" / "daemon_main.py"
BUF = Path(sys.executable).with_name("buf")


class Process:
    """A daemon that was started, and what it wrote to its journal."""

    def __init__(self, socket, *options, pass_fds=()):
        self.socket = socket
        self.journal = []
        self._process = subprocess.Popen(
            [sys.executable, str(MAIN), str(socket), *options], stderr=subprocess.PIPE, text=True, pass_fds=pass_fds
        )

    def until(self, message):
        """Reads the journal up to a message; returns that record."""
        for line in self._process.stderr:
            record = json.loads(line)
            self.journal.append(record)
            if record["message"] == message:
                return record
        raise AssertionError(f"the daemon ended without {message!r}: {self.journal}")

    def signal(self, number):
        self._process.send_signal(number)

    def end(self):
        """Waits for its end; returns the exit code and what it still wrote."""
        rest = self._process.stderr.read()
        return self._process.wait(30), rest

    def close(self):
        self._process.kill()
        self._process.wait(30)
        self._process.stderr.close()


@pytest.fixture
def start(socket_path):
    processes = []

    def begin(*options, **kwargs):
        processes.append(Process(socket_path, *options, **kwargs))
        return processes[-1]

    yield begin
    for process in processes:
        process.close()


@pytest.fixture
def stub(socket_path):
    with grpc.insecure_channel(f"unix:{socket_path}") as channel:
        yield rerank_pb2_grpc.RerankServiceStub(channel)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(start, stub, number):
    daemon = start()
    daemon.until("serving")
    assert len(stub.Rerank(request()).results) == 3
    daemon.signal(number)
    code, rest = daemon.end()
    assert code == 0
    assert json.loads(rest.splitlines()[-1])["message"] == "stopped"
    assert not daemon.socket.exists()


def test_what_runs_is_finished_after_sigterm(start, stub, socket_path):
    (arrived, arrived_there), (gate_there, gate) = os.pipe(), os.pipe()
    daemon = start("--arrived", str(arrived_there), "--gate", str(gate_there), pass_fds=(arrived_there, gate_there))
    daemon.until("serving")
    call = stub.Rerank.future(request("q", ["a", "b"]))
    os.read(arrived, 1)
    daemon.signal(signal.SIGTERM)
    daemon.until("draining")
    with grpc.insecure_channel(f"unix:{socket_path}") as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rerank(request())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    os.write(gate, b".")
    assert {r.index: r.margin for r in call.result().results} == {
        0: expected_margin("q", "a"),
        1: expected_margin("q", "b"),
    }
    assert daemon.end()[0] == 0
    for number in (arrived, arrived_there, gate_there, gate):
        os.close(number)


def test_after_sigkill_the_next_one_takes_over_the_socket(start, stub):
    daemon = start()
    daemon.until("serving")
    daemon.signal(signal.SIGKILL)
    assert daemon.end()[0] == -signal.SIGKILL
    assert daemon.socket.is_socket()
    start().until("serving")
    assert len(stub.Rerank(request(), wait_for_ready=True, timeout=30).results) == 3


def test_a_second_one_is_told_about_the_first(start, stub):
    start().until("serving")
    code, rest = start().end()
    assert code == 70
    assert "another daemon answers at" in rest
    assert len(stub.Rerank(request()).results) == 3


def test_a_model_that_cannot_be_loaded_ends_it_with_the_reason(start):
    daemon = start("--load", "fail")
    code, rest = daemon.end()
    assert code == 70
    assert "error: model.onnx: its digest differs" in rest
    assert not daemon.socket.exists()


def test_a_load_that_hangs_does_not_hold_up_sigterm(start, stub):
    daemon = start("--load", "hang", "--drain", "0.1")
    daemon.until("listening")
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rerank(request(), wait_for_ready=True, timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert stub.GetStatus(pb.GetStatusRequest()).detail == "loading the fake"
    daemon.signal(signal.SIGTERM)
    code, rest = daemon.end()
    assert code == 0
    *_, stopped, last = rest.splitlines()
    assert json.loads(stopped)["engine_ended"] is False
    assert last == "ended at once"


def test_sigterm_ends_a_load_at_its_next_step(start):
    daemon = start("--load", "steps", "--drain", "600")
    daemon.until("listening")
    daemon.signal(signal.SIGTERM)
    code, rest = daemon.end()
    assert code == 0
    assert json.loads(rest.splitlines()[-1])["engine_ended"] is True


def test_a_gpu_that_is_lost_while_a_load_is_ended_is_told(start):
    daemon = start("--load", "lost", "--drain", "600")
    daemon.until("listening")
    daemon.signal(signal.SIGTERM)
    code, rest = daemon.end()
    assert code == 71
    assert "error: gone while it was measured" in rest
    assert [json.loads(line)["message"] for line in rest.splitlines() if line[0] == "{"].count("failed") == 1


def _buf_curl(*where, method="orin_rerank.v1.RerankService/Rerank", data):
    *options, base = where
    command = [str(BUF), "curl", *options, "--http2-prior-knowledge", "--protocol", "grpc", f"{base}/{method}"]
    return subprocess.run([*command, "-d", json.dumps(data)], capture_output=True, text=True, timeout=60, check=False)


def test_a_go_client_over_the_socket_and_tcp(start):
    daemon = start("--tcp", "127.0.0.1:0")
    port = daemon.until("listening")["tcp_port"]
    daemon.until("serving")
    data = {"query": {"text": "q"}, "documents": [{"text": "a"}, {"text": "b"}, {"parts": [{"text": "c"}]}]}
    for where in (("--unix-socket", str(daemon.socket), "http://localhost"), (f"http://127.0.0.1:{port}",)):
        answer = _buf_curl(*where, data=data)
        assert answer.returncode == 0, answer.stderr
        results = json.loads(answer.stdout)["results"]
        got = {result.get("index", 0): result["margin"] for result in results}
        assert got == pytest.approx({i: expected_margin("q", text) for i, text in enumerate("abc")}, rel=1e-6)
    where = ("--unix-socket", str(daemon.socket), "http://localhost")
    refused = _buf_curl(*where, data=data | {"documents": [{"text": "a"}, {}]})
    assert refused.returncode != 0
    error = json.loads(refused.stderr)
    assert (error["code"], error["message"]) == ("invalid_argument", "documents[1]: holds neither text nor image")
    assert [detail["type"] for detail in error["details"]] == ["google.rpc.ErrorInfo"]
    health = _buf_curl(*where, method="grpc.health.v1.Health/Check", data={"service": "orin_rerank.v1.RerankService"})
    assert json.loads(health.stdout) == {"status": "SERVING"}
    status = _buf_curl(*where, method="orin_rerank.v1.RerankService/GetStatus", data={})
    assert json.loads(status.stdout)["state"] == "STATE_SERVING"
