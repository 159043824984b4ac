"""What the daemon costs: its documents per second beside the bare engine's, and calls that do no work."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
from workloads import Workload

from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import ImagePart, RerankInput
from orin_rerank.v1 import rerank_pb2, rerank_pb2_grpc

__all__ = ["socket_rows"]

EMPTY_CALLS = 500
CLIENTS = 8


@contextmanager
def daemon(bundle: Path, threads: int) -> Iterator[rerank_pb2_grpc.RerankServiceStub]:
    """A daemon in a process of its own, and a client of it."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "bench.sock"
        command = [
            sys.executable,
            "-m",
            "orin_rerank.cli.main",
            "serve",
            "--bundle",
            str(bundle),
            "--precision",
            "full",
        ]
        command += ["--socket", str(socket), "--threads", str(threads), "--log-level", "warning"]
        process = subprocess.Popen(command)
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        channel = grpc.insecure_channel(f"unix:{socket}", options)
        try:
            stub = rerank_pb2_grpc.RerankServiceStub(channel)
            for _ in range(600):
                if process.poll() is not None:
                    raise RuntimeError(f"the daemon ended with {process.returncode}")
                try:
                    if stub.GetStatus(rerank_pb2.GetStatusRequest()).state == rerank_pb2.STATE_SERVING:
                        break
                except grpc.RpcError:
                    pass
                time.sleep(0.1)
            else:
                raise RuntimeError("the daemon does not serve")
            yield stub
        finally:
            channel.close()
            process.terminate()
            process.wait(30)


def message(request: RerankInput) -> rerank_pb2.RerankRequest:
    """The request on the wire."""

    def content(parts: object) -> rerank_pb2.Content:
        return rerank_pb2.Content(
            parts=[
                rerank_pb2.Part(image=part.data) if isinstance(part, ImagePart) else rerank_pb2.Part(text=part.text)
                for part in parts
            ]
        )

    return rerank_pb2.RerankRequest(
        query=content(request.query), documents=[content(document) for document in request.documents]
    )


def socket_rows(bundle: Path, threads: int, rounds: int, workload: Workload) -> Iterator[tuple[str, str, str]]:
    """Yields what was measured, the figure and the bar it should pass."""
    model = load_model(bundle, EngineSettings(precision=PrecisionChoice.FULL, threads=threads))
    documents = workload.documents

    def seconds(call: Callable[[], object]) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    with daemon(bundle, threads) as stub, ThreadPoolExecutor(CLIENTS) as clients:
        pairs, crowds = [], []
        for seed in range(rounds + 1):
            request = workload.request(2000 + seed)
            encoded = model.encoder.encode(request)
            wire = message(request)
            bare = seconds(lambda: model.score(encoded))
            pairs.append((bare, seconds(lambda: stub.Rerank(wire))))
            many = [message(workload.request(10_000 + seed * CLIENTS + i)) for i in range(CLIENTS)]
            crowds.append((bare, seconds(lambda: list(clients.map(stub.Rerank, many))) / CLIENTS))
        for name, figures in (("one client", pairs[1:]), (f"{CLIENTS} clients", crowds[1:])):
            share = statistics.median(bare / socket for bare, socket in figures)
            rate = documents / statistics.median(socket for _, socket in figures)
            yield f"documents/s, {name}, of the bare engine's", f"{rate:.1f} ({share:.0%})", "90 %"
        empty = rerank_pb2.GetStatusRequest()
        status = sorted(seconds(lambda: stub.GetStatus(empty)) for _ in range(EMPTY_CALLS))
        refused = sorted(seconds(lambda: _refused(stub)) for _ in range(EMPTY_CALLS))
        for name, times in (("GetStatus", status), ("Rerank without documents", refused)):
            p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
            yield f"{name}, p50 and p99", f"{p50 * 1e3:.2f} and {p99 * 1e3:.2f} ms", "2 ms"
    model.close()


def _refused(stub: rerank_pb2_grpc.RerankServiceStub) -> None:
    try:
        stub.Rerank(rerank_pb2.RerankRequest(query=rerank_pb2.Content(text="x")))
    except grpc.RpcError:
        return
    raise AssertionError("a request without documents was taken")
