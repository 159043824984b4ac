"""The service over a real Unix socket, with a model whose engine the test controls."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from fakes.model import POISON, expected_margin
from orin_rerank.errors import BundleError, UnavailableError
from orin_rerank.serving.daemon import Daemon
from orin_rerank.serving.service import SERVICE_NAME
from orin_rerank.serving.settings import ServerSettings
from orin_rerank.v1 import rerank_pb2 as pb
from orin_rerank.v1 import rerank_pb2_grpc
from serving.conftest import request

Code = grpc.StatusCode


async def _refused(call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def _detail(error, kind):
    rich = rpc_status.from_call(_Call(error))
    for detail in rich.details:
        message = kind()
        if detail.Unpack(message):
            return message
    raise AssertionError(f"no {kind.DESCRIPTOR.full_name} in the status")


class _Call:
    """What grpc_status reads of a finished call."""

    def __init__(self, error):
        self.code, self.details, self.trailing_metadata = error.code, error.details, error.trailing_metadata


async def _arrived(model):
    await asyncio.to_thread(model.runner.arrived.wait, 30)
    model.runner.arrived.clear()


async def test_documents_come_back_best_first_with_the_right_scores(running):
    documents = [f"document {i}" for i in range(20)]
    async with running() as (_, stub):
        response = await stub.Rerank(request("q", documents, top_n=7, return_documents=True))
    expected = sorted(enumerate(documents), key=lambda pair: -expected_margin("q", pair[1]))[:7]
    assert [(result.index, result.document.text) for result in response.results] == expected
    assert [result.margin for result in response.results] == [expected_margin("q", text) for _, text in expected]
    assert (response.model, response.precision) == ("fake", "fp32")
    assert response.usage.document_tokens == sum(len(text) for text in documents)


async def test_the_instruction_counts(running):
    async with running() as (_, stub):
        response = await stub.Rerank(request("q", ["a"], instruction="Find it."))
    assert response.results[0].margin == expected_margin("q", "a", "Find it.")


async def test_truncation_is_told(running):
    async with running() as (_, stub):
        response = await stub.Rerank(request("q", ["abcdef"], max_document_tokens=4))
        (result,) = response.results
        assert (result.tokens, result.truncated_tokens, result.truncated) == (4, 2, True)
        error = await _refused(
            stub.Rerank(request("q", ["abcdef"], max_document_tokens=4, truncation=pb.TRUNCATION_NONE))
        )
    assert error.code() is Code.INVALID_ARGUMENT
    assert "documents[0]" in error.details()


@pytest.mark.parametrize(
    ("change", "code", "reason", "item"),
    [
        ({"query": ""}, Code.INVALID_ARGUMENT, "EMPTY_QUERY", "query"),
        ({"documents": ()}, Code.INVALID_ARGUMENT, "NO_DOCUMENTS", "documents"),
        ({"documents": ("a", "")}, Code.INVALID_ARGUMENT, "EMPTY_DOCUMENT", "documents[1]"),
        ({"documents": ("a", " \t")}, Code.INVALID_ARGUMENT, "EMPTY_DOCUMENT", "documents[1]"),
        ({"documents": ("a",) * 6}, Code.INVALID_ARGUMENT, "TOO_MANY_DOCUMENTS", "documents"),
        ({"top_n": 0}, Code.INVALID_ARGUMENT, "INVALID_REQUEST", "top_n"),
        ({"truncation": 9}, Code.INVALID_ARGUMENT, "INVALID_REQUEST", "truncation"),
        ({"model": "other"}, Code.NOT_FOUND, "UNKNOWN_MODEL", "model"),
        ({"documents": ("a", POISON)}, Code.INTERNAL, "NON_FINITE_SCORE", "documents"),
    ],
)
async def test_each_mistake_has_its_code_reason_and_item(running, change, code, reason, item):
    async with running(max_documents=5) as (_, stub):
        error = await _refused(stub.Rerank(request(**change)))
        status = await stub.GetStatus(pb.GetStatusRequest())
    assert error.code() is code
    info = _detail(error, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain, info.metadata["item"]) == (reason, "orin-rerank", item)
    assert error.details().startswith(f"{item}: ")
    assert dict(status.counters.errors) == {code.name: 1}


async def test_the_served_model_may_be_named(running):
    async with running() as (_, stub):
        assert (await stub.Rerank(request(model="fake"))).model == "fake"


async def test_a_bug_is_internal_and_its_text_stays_out_of_answer_and_journal(running, model, caplog):
    model.runner.fail = lambda _: {}["somebody's document"]
    async with running() as (_, stub):
        error = await _refused(stub.Rerank(request()))
    assert error.code() is Code.INTERNAL
    assert "somebody" not in error.details()
    reference = error.details().rsplit(" ", 1)[1]
    records = [record for record in caplog.records if record.getMessage() == "request failed"]
    assert [record.orin_rerank_fields["reference"] for record in records] == [reference]
    assert not any("somebody" in record.getMessage() for record in caplog.records)


async def test_the_buffers_show_what_is_running(running, model):
    model.runner.gate.clear()
    async with running() as (_, stub):
        assert (await stub.GetStatus(pb.GetStatusRequest())).pool.used == 0
        call = stub.Rerank(request())
        await asyncio.to_thread(model.runner.arrived.wait, 30)
        pool = (await stub.GetStatus(pb.GetStatusRequest())).pool
        model.runner.gate.set()
        await call
        after = (await stub.GetStatus(pb.GetStatusRequest())).pool
    assert (pool.used, pool.slots, pool.high_water, pool.waits) == (1, 1, 1, 3)
    assert (after.used, after.high_water) == (0, 1)


async def test_a_bug_in_the_encoder_is_internal_too(running, model):
    def broken(_):
        raise RuntimeError("somebody's document")

    model.encoder.encode = broken
    async with running() as (_, stub):
        error = await _refused(stub.Rerank(request()))
        assert error.code() is Code.INTERNAL
        assert (await stub.GetStatus(pb.GetStatusRequest())).queue.documents == 0


@pytest.mark.parametrize("method", ["Rerank", "GetStatus"])
@pytest.mark.parametrize("message", [b"\xff\xff\xff\xff garbage", b"\x0a\x03\x0a\x01"])
async def test_what_is_no_message_is_the_caller_s_mistake(running, socket_path, method, message):
    async with running() as _, grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
        error = await _refused(channel.unary_unary(f"/{SERVICE_NAME}/{method}")(message))
    assert error.code() is Code.INVALID_ARGUMENT
    assert _detail(error, error_details_pb2.ErrorInfo).metadata["item"] == "message"


async def test_text_that_is_not_utf8_is_the_caller_s_mistake(running, socket_path):
    async with running() as _, grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
        error = await _refused(channel.unary_unary(f"/{SERVICE_NAME}/Rerank")(b"\x0a\x03\x0a\x01\xff"))
    assert error.code() is Code.INVALID_ARGUMENT


async def test_an_unknown_method_is_unimplemented(running, socket_path):
    async with running() as _, grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
        error = await _refused(channel.unary_unary(f"/{SERVICE_NAME}/Rank")(b""))
    assert error.code() is Code.UNIMPLEMENTED


async def test_a_message_over_the_limit_is_refused_by_the_library(running):
    async with running(max_message_bytes=10_000) as (_, stub):
        error = await _refused(stub.Rerank(request(documents=["x" * 20_000])))
        assert error.code() is Code.RESOURCE_EXHAUSTED
        await stub.Rerank(request(documents=["x" * 2_000]))


async def test_while_the_model_loads_status_answers_and_reranking_is_unavailable(running, model, socket_path):
    loading, go_on = threading.Event(), threading.Event()

    def load(report):
        report("checking the bundle")
        loading.set()
        assert go_on.wait(30)
        return model

    async with running(load, wait=False) as (daemon, stub):
        await asyncio.to_thread(loading.wait, 30)
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.state, status.detail) == (pb.STATE_STARTING, "checking the bundle")
        assert not status.HasField("model")
        error = await _refused(stub.Rerank(request()))
        assert error.code() is Code.UNAVAILABLE
        assert "checking the bundle" in error.details()
        assert await _health(socket_path) == {"": "NOT_SERVING", SERVICE_NAME: "NOT_SERVING"}
        go_on.set()
        await daemon.ready()
        assert await _health(socket_path) == {"": "SERVING", SERVICE_NAME: "SERVING"}
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert status.state == pb.STATE_SERVING
        assert (status.model.name, status.model.engine, status.model.token_budget) == ("fake", "fake-cpu", 256)
        await stub.Rerank(request())
    assert model.runner.closed


async def _health(socket_path):
    async with grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answers = {}
        for service in ("", SERVICE_NAME):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            answers[service] = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        error = await _refused(stub.Check(health_pb2.HealthCheckRequest(service="other")))
        assert error.code() is Code.NOT_FOUND
        return answers


async def test_a_balancer_that_watches_the_health_sees_every_change(running, model, socket_path):
    go_on = threading.Event()

    def load(_):
        assert go_on.wait(30)
        return model

    async with (
        running(load, wait=False) as (daemon, _),
        grpc.aio.insecure_channel(f"unix:{socket_path}") as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        seen = [(await watch.read()).status]
        go_on.set()
        seen.append((await watch.read()).status)
        stopping = asyncio.ensure_future(daemon.stop())
        seen.append((await watch.read()).status)
        await stopping
    names = [health_pb2.HealthCheckResponse.ServingStatus.Name(status) for status in seen]
    assert names == ["NOT_SERVING", "SERVING", "NOT_SERVING"]


async def test_a_model_that_cannot_be_loaded_fails_the_daemon(running):
    def load(report):
        report("checking the bundle")
        raise BundleError("its digest differs", item="model.onnx")

    async with running(load, wait=False) as (daemon, stub):
        with pytest.raises(BundleError, match=r"model\.onnx"):
            await daemon.ready()
        with pytest.raises(BundleError):
            await daemon.failed()
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.state, status.detail) == (pb.STATE_FAILED, "model.onnx: its digest differs")
        assert (await _refused(stub.Rerank(request()))).code() is Code.UNAVAILABLE


async def test_reflection_describes_all_services(running, socket_path):
    async with running():

        def ask():
            with grpc.insecure_channel(f"unix:{socket_path}") as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                return set(database.get_services()), database.FindFileContainingSymbol(SERVICE_NAME).name

        services, file = await asyncio.to_thread(ask)
    assert services == {SERVICE_NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert file == "orin_rerank/v1/rerank.proto"


async def test_sixty_four_threads_get_their_own_scores(running, socket_path):
    async with running():
        channel = grpc.insecure_channel(f"unix:{socket_path}")
        stub = rerank_pb2_grpc.RerankServiceStub(channel)

        def ask(number):
            documents = [f"document {number} {i}" for i in range(1 + number % 7)]
            response = stub.Rerank(request(f"query {number}", documents), timeout=60)
            got = {result.index: result.margin for result in response.results}
            return got == {i: expected_margin(f"query {number}", text) for i, text in enumerate(documents)}

        with ThreadPoolExecutor(64) as pool:
            loop = asyncio.get_running_loop()
            answers = await asyncio.gather(*(loop.run_in_executor(pool, ask, number) for number in range(256)))
        channel.close()
    assert all(answers)


async def test_a_caller_who_leaves_frees_the_queue(running, model):
    async with running() as (daemon, stub):
        model.runner.gate.clear()
        call = stub.Rerank(request("q", ["some text of a document"] * 500))
        leaving = asyncio.ensure_future(_refused(call))
        await _arrived(model)
        assert (await stub.GetStatus(pb.GetStatusRequest())).queue.documents == 500
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await daemon._service.quiet()
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.queue.documents, dict(status.counters.errors)) == (0, {"CANCELLED": 1})
        model.runner.gate.set()
        await stub.Rerank(request("other", ["a"]))
    assert len(model.runner.packs) == 2


async def test_a_deadline_that_passes_is_kept_and_costs_no_more_work(running, model):
    async with running() as (daemon, stub):
        model.runner.gate.clear()
        running_call = stub.Rerank(request("running", ["a"]))
        await _arrived(model)
        error = await _refused(stub.Rerank(request("waiting", ["b"]), timeout=0.2))
        assert error.code() is Code.DEADLINE_EXCEEDED
        model.runner.gate.set()
        await running_call
        await daemon._service.quiet()
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert dict(status.counters.errors) == {"DEADLINE_EXCEEDED": 1}
    assert len(model.runner.packs) == 1


async def test_overload_tells_a_client_when_to_try_again(running, model):
    async with running(max_queued_documents=10) as (_, stub):
        await stub.Rerank(request())
        model.runner.gate.clear()
        model.runner.arrived.clear()
        running_call = stub.Rerank(request("q", ["x"] * 10))
        await _arrived(model)
        error = await _refused(stub.Rerank(request("q", ["y"])))
        assert error.code() is Code.RESOURCE_EXHAUSTED
        assert _detail(error, error_details_pb2.ErrorInfo).reason == "OVERLOADED"
        delay = _detail(error, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds()
        assert 50 <= delay <= 60_000
        model.runner.gate.set()
        await running_call


async def test_draining_finishes_what_runs_and_refuses_what_comes(running, model, socket_path):
    async with running() as (daemon, stub):
        model.runner.gate.clear()
        running_call = asyncio.ensure_future(stub.Rerank(request("q", [f"document {i}" for i in range(100)])))
        await _arrived(model)
        stopping = asyncio.ensure_future(daemon.stop())
        await asyncio.sleep(0)
        assert await _health(socket_path) == {"": "NOT_SERVING", SERVICE_NAME: "NOT_SERVING"}
        assert (await stub.GetStatus(pb.GetStatusRequest())).state == pb.STATE_DRAINING
        error = await _refused(stub.Rerank(request()))
        assert error.code() is Code.UNAVAILABLE
        assert "draining" in error.details()
        model.runner.gate.set()
        assert len((await running_call).results) == 100
        assert await stopping
        assert model.runner.closed
        assert not socket_path.exists()


async def test_what_outlasts_the_drain_is_unavailable(running, model):
    async with running(drain_s=0.05) as (daemon, stub):
        model.runner.gate.clear()
        running_call = asyncio.ensure_future(_refused(stub.Rerank(request("q", ["document"] * 100))))
        await _arrived(model)
        stopping = asyncio.ensure_future(daemon.stop())
        assert (await running_call).code() is Code.UNAVAILABLE
        model.runner.gate.set()
        assert await stopping
    assert len(model.runner.packs) == 1


async def test_a_crash_of_the_engine_thread_fails_the_daemon_and_every_request(running, model):
    class CrashError(BaseException):
        """No Exception: nothing that an engine raises on purpose."""

    def crash(pack):
        raise CrashError

    async with running() as (daemon, stub):
        model.runner.fail = crash
        error = await _refused(stub.Rerank(request()))
        assert error.code() is Code.INTERNAL
        with pytest.raises(Exception, match="engine thread failed"):
            await daemon.failed()
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert status.state == pb.STATE_FAILED
        assert (await _refused(stub.Rerank(request()))).code() is Code.UNAVAILABLE


async def test_tcp_is_served_on_request(running):
    async with (
        running(tcp="127.0.0.1:0") as (daemon, _),
        grpc.aio.insecure_channel(f"127.0.0.1:{daemon.tcp_port}") as channel,
    ):
        response = await rerank_pb2_grpc.RerankServiceStub(channel).Rerank(request())
        assert len(response.results) == 3


async def test_a_tcp_port_in_use_is_a_setting_s_error_and_frees_the_socket(running, tmp_path):
    async with running(tcp="127.0.0.1:0") as (daemon, _):
        other = ServerSettings(socket=tmp_path / "other.sock", tcp=f"127.0.0.1:{daemon.tcp_port}")
        with pytest.raises(UnavailableError) as caught:
            await Daemon(other, lambda _: None).start()
        assert caught.value.item == "tcp"
        assert not other.socket.exists()


async def test_a_second_daemon_does_not_steal_the_socket(running, socket_path):
    async with running() as (_, stub):
        with pytest.raises(UnavailableError, match="another daemon answers at"):
            await Daemon(ServerSettings(socket=socket_path), lambda _: None).start()
        await stub.Rerank(request())


async def test_the_socket_has_the_mode_that_was_set(running, socket_path):
    async with running(socket_mode=0o600):
        assert socket_path.stat().st_mode & 0o777 == 0o600


async def test_the_journal_never_holds_contents(running, caplog):
    caplog.set_level(logging.DEBUG)
    async with running() as (_, stub):
        await stub.Rerank(request("secret query", ["secret document"], instruction="secret instruction"))
        await _refused(stub.Rerank(request("secret query", ["secret document", ""], model="secret")))
    assert not any("secret" in record.getMessage() + str(record.__dict__) for record in caplog.records)


async def test_clients_that_ping_often_are_not_thrown_out(running, tmp_path):
    """A client pings once a second. The fourth ping ends it by gRPC's default of five minutes, by ours it does not."""
    options = [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_permit_without_calls", 1)]
    options.append(("grpc.http2.max_pings_without_data", 0))
    patient, strict = (tmp_path / name for name in ("patient.sock", "strict.sock"))
    async with (
        running(socket=patient, keepalive_min_interval_s=0.1),
        running(socket=strict, keepalive_min_interval_s=300.0),
        grpc.aio.insecure_channel(f"unix:{patient}", options=options) as kept,
        grpc.aio.insecure_channel(f"unix:{strict}", options=options) as thrown_out,
    ):
        await asyncio.gather(kept.channel_ready(), thrown_out.channel_ready())
        await asyncio.wait_for(thrown_out.wait_for_state_change(grpc.ChannelConnectivity.READY), 30)
        assert kept.get_state() is grpc.ChannelConnectivity.READY
