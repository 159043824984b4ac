"""Plans deserialised and run: in the order, and with the shapes, types and addresses, that TensorRT asks for."""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engines.tensorrt.fake_bindings import FakeGpu, FakeRuntime, Strategy, write_plan
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.cuda_errors import is_device_lost
from orin_rerank.engines.memory import MappedBlock
from orin_rerank.engines.tensorrt.journal import Journal
from orin_rerank.engines.tensorrt.profiles import Extent, ShapeProfile
from orin_rerank.engines.tensorrt.runtime import DeviceArray, LoadedPlan, PlanLane, PlanRuntime
from orin_rerank.errors import DeviceLostError, EngineError, InternalError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHORT = ShapeProfile("4", {"rows": Extent(1, 4, 4), "columns": Extent(1, 1, 2)})
LONG = ShapeProfile("64", {"rows": Extent(1, 64, 64), "columns": Extent(1, 2, 3)})


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """`sum` is a + b; both are float32 `[rows, 4]`, and b has a column of its own for each of `columns`."""
    a = helper.make_tensor_value_info("a", TensorProto.FLOAT, ["rows", 4])
    b = helper.make_tensor_value_info("b", TensorProto.INT32, ["columns"])
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, ["rows", 4])
    nodes = [
        helper.make_node("Cast", ["b"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["wide"], ["one"], keepdims=0),
        helper.make_node("Add", ["a", "one"], ["total"]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "adds", [a, b], [total]), opset_imports=[helper.make_opsetid("", 17)], ir_version=10
    )
    onnx.save(model, tmp_path / "adds.onnx")
    return tmp_path / "adds.onnx"


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def cuda(gpu: FakeGpu) -> Iterator[CudaThread]:
    thread = CudaThread(driver=gpu)
    yield thread
    with contextlib.suppress(DeviceLostError):
        thread.close()


@pytest.fixture
def load(gpu: FakeGpu, cuda: CudaThread) -> Callable[[Path], LoadedPlan]:
    journal = Journal()
    runtime = cuda.call(lambda _: PlanRuntime(FakeRuntime(gpu, journal.say), Strategy, journal))
    cuda.at_end(runtime.close)

    def load(path: Path) -> LoadedPlan:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            return cuda.call(lambda _: runtime.load(mapping, path.name))

    return load


@pytest.fixture
def plan(graph: Path, load: Callable[[Path], LoadedPlan]) -> LoadedPlan:
    return load(write_plan(graph.with_suffix(".plan"), graph, [SHORT, LONG], scratch=[512, 4096]))


class Bench:
    """A lane, with arrays that the GPU sees."""

    def __init__(self, cuda: CudaThread, plan: LoadedPlan) -> None:
        self.cuda = cuda
        self.stream = cuda.stream()
        self.scratch = cuda.call(lambda driver: driver.device_memory(plan.scratch_bytes))
        self.block = MappedBlock(1 << 14, cuda)
        self.lane: PlanLane = cuda.run(
            self.stream,
            lambda *_: PlanLane(plan, self.stream.handle, self.scratch.address, plan.scratch_bytes),
        )

    def array(self, place: int, dtype: type, *shape: int) -> np.ndarray:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.block.host[4096 * place : 4096 * place + count].view(dtype).reshape(shape)

    def bound(self, rows: int, columns: int) -> tuple[dict[str, DeviceArray], np.ndarray]:
        a, b = self.array(0, np.float32, rows, 4), self.array(1, np.int32, columns)
        total = self.array(2, np.float32, rows, 4)
        a[...] = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        b[...] = 10
        total[...] = np.nan
        named = {"a": a, "b": b, "total": total}
        return {n: DeviceArray(self.block.address_of(x), x.shape, x.dtype) for n, x in named.items()}, total

    def run(self, arrays: dict[str, DeviceArray]) -> None:
        self.cuda.run(self.stream, lambda *_: self.lane.enqueue(arrays))


@pytest.fixture
def bench(cuda: CudaThread, plan: LoadedPlan) -> Bench:
    return Bench(cuda, plan)


def test_what_a_plan_takes_and_gives_is_read_from_it(plan: LoadedPlan) -> None:
    specs = {name: (spec.is_input, spec.dtype, spec.shape) for name, spec in plan.tensors.items()}
    assert specs == {
        "a": (True, np.float32, (-1, 4)),
        "b": (True, np.int32, (-1,)),
        "total": (False, np.float32, (-1, 4)),
    }
    assert plan.profiles == 2
    assert plan.scratch_bytes == 4096


@pytest.mark.parametrize(
    ("rows", "columns", "profile"),
    [(1, 1, 0), (4, 2, 0), (5, 1, 1), (4, 3, 1), (64, 3, 1), (65, 1, None), (1, 4, None), (0, 1, None)],
)
def test_the_first_profile_that_holds_every_input_is_taken(
    plan: LoadedPlan, rows: int, columns: int, profile: int | None
) -> None:
    assert plan.profile_for({"a": (rows, 4), "b": (columns,)}) == profile
    assert plan.profile_for({"a": (rows, 5), "b": (columns,)}) is None
    assert plan.profile_for({"a": (rows,), "b": (columns,)}) is None


def test_a_plan_covers_what_one_of_its_profiles_does(plan: LoadedPlan) -> None:
    assert plan.covers({"a": (1, 4), "b": (1,)}, {"a": (64, 4), "b": (3,)})
    assert plan.covers({"b": (1,)}, {"b": (3,)})
    assert not plan.covers({"a": (1, 4)}, {"a": (65, 4)})


def test_contexts_are_made_once_and_a_run_makes_the_calls_that_it_needs(gpu: FakeGpu, bench: Bench) -> None:
    setup = ["create_execution_context", "set_optimization_profile_async", "set_device_memory"]
    assert gpu.calls == ["deserialize_cuda_engine", *setup, *setup]
    gpu.calls.clear()
    arrays, total = bench.bound(5, 3)
    bench.run(arrays)
    assert total.tolist() == (np.arange(20).reshape(5, 4) + 30).tolist()
    shapes, addresses = ["set_input_shape"] * 2, ["set_tensor_address"] * 3
    assert gpu.calls == [*shapes, "infer_shapes", *addresses, "execute_async_v3"]


def test_runs_of_every_shape_give_what_they_should(bench: Bench) -> None:
    for rows, columns in ((1, 1), (64, 3), (4, 2), (5, 1), (4, 3), (1, 1)):
        arrays, total = bench.bound(rows, columns)
        bench.run(arrays)
        assert np.array_equal(total, np.arange(rows * 4).reshape(rows, 4) + 10 * columns)


def test_shapes_of_outputs_are_known_before_a_run(cuda: CudaThread, bench: Bench) -> None:
    shapes = cuda.call(lambda _: bench.lane.output_shapes({"a": (7, 4), "b": (2,)}))
    assert shapes == {"total": (7, 4)}


def test_a_shape_that_no_profile_holds_is_an_error_that_names_it(gpu: FakeGpu, bench: Bench) -> None:
    arrays, _ = bench.bound(65, 1)
    with pytest.raises(EngineError, match=r"\(65, 4\)"):
        bench.run(arrays)
    assert "execute_async_v3" not in gpu.calls


@pytest.mark.parametrize("wrong", ["missing", "unknown", "type", "null", "unaligned", "output too small"])
def test_arrays_that_the_plan_does_not_take_never_reach_it(gpu: FakeGpu, bench: Bench, wrong: str) -> None:
    arrays, _ = bench.bound(4, 2)
    a, total = arrays["a"], arrays["total"]
    if wrong == "missing":
        del arrays["b"]
    elif wrong == "unknown":
        arrays["c"] = a
    elif wrong == "output too small":
        arrays["total"] = DeviceArray(total.address, (3, 4), total.dtype)
    else:
        address = {"null": 0, "unaligned": a.address + 64}.get(wrong, a.address)
        arrays["a"] = DeviceArray(address, a.shape, np.dtype(np.float16) if wrong == "type" else a.dtype)
    with pytest.raises(InternalError):
        bench.run(arrays)
    assert "execute_async_v3" not in gpu.calls


CALLS = ("set_input_shape", "infer_shapes", "set_tensor_address", "execute_async_v3")


@pytest.mark.parametrize("call", CALLS)
def test_what_tensorrt_says_of_a_failure_is_in_the_error(gpu: FakeGpu, bench: Bench, call: str) -> None:
    arrays, total = bench.bound(4, 2)
    gpu.failing[call] = "Error Code 7: Internal Error (no luck)"
    with pytest.raises(EngineError, match="no luck") as caught:
        bench.run(arrays)
    assert type(caught.value) is EngineError
    assert caught.value.item == "adds.plan"
    bench.run(arrays)
    assert np.isfinite(total).all()


@pytest.mark.parametrize("call", CALLS)
def test_an_illegal_address_is_a_lost_gpu(gpu: FakeGpu, bench: Bench, call: str) -> None:
    arrays, _ = bench.bound(4, 2)
    text = "IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime (an illegal memory access was encountered)"
    assert is_device_lost(text)
    gpu.failing[call] = text
    with pytest.raises(DeviceLostError):
        bench.run(arrays)


def test_an_error_of_before_is_not_told_of_a_later_failure(gpu: FakeGpu, bench: Bench) -> None:
    arrays, _ = bench.bound(4, 2)
    gpu.log("Error Code 1: Cuda Runtime (an illegal memory access was encountered)")
    gpu.failing["infer_shapes"] = "something else"
    with pytest.raises(EngineError) as caught:
        bench.run(arrays)
    assert type(caught.value) is EngineError
    assert "illegal" not in str(caught.value)


@pytest.mark.parametrize("call", ["create_execution_context", "set_optimization_profile_async", "set_device_memory"])
def test_contexts_that_memory_is_short_for_are_an_error(
    gpu: FakeGpu, cuda: CudaThread, plan: LoadedPlan, call: str
) -> None:
    gpu.failing[call] = "Error Code 1: Cuda Runtime (out of memory)"
    with pytest.raises(EngineError, match="memory ran out"):
        Bench(cuda, plan)


def test_too_little_scratch_memory_is_refused(cuda: CudaThread, plan: LoadedPlan) -> None:
    for address, size in ((1 << 20, 4095), ((1 << 20) + 64, 4096)):
        with pytest.raises(InternalError):
            cuda.call(lambda _, address=address, size=size: PlanLane(plan, 1, address, size))


def test_a_plan_that_is_none_must_be_built_again(tmp_path: Path, load: Callable[[Path], LoadedPlan]) -> None:
    (tmp_path / "bad.plan").write_text("no plan")
    with pytest.raises(PlanError, match=r"magicTag.*built again") as caught:
        load(tmp_path / "bad.plan")
    assert caught.value.item == "bad.plan"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error Code 1: Cuda Runtime (out of memory)", EngineError),
        ("Error Code 1: Cuda Runtime (unspecified launch failure)", DeviceLostError),
        ("Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient)", EngineError),
        ("Error Code 6: The engine plan file is not compatible with this version of TensorRT", PlanError),
    ],
)
def test_why_a_plan_is_not_taken_decides_what_to_do(
    graph: Path, gpu: FakeGpu, load: Callable[[Path], LoadedPlan], text: str, kind: type[Exception]
) -> None:
    gpu.failing["deserialize_cuda_engine"] = text
    with pytest.raises(kind) as caught:
        load(write_plan(graph.with_suffix(".plan"), graph, [SHORT]))
    assert type(caught.value) is kind


@pytest.mark.parametrize("change", [{"kind": "BF16"}, {"location": "HOST"}, {"shape_inference": True}])
def test_a_plan_that_wants_what_is_not_given_is_refused(
    graph: Path, gpu: FakeGpu, load: Callable[[Path], LoadedPlan], change: dict[str, object]
) -> None:
    path = write_plan(graph.with_suffix(".plan"), graph, [SHORT])
    value = json.loads(path.read_text())
    value["inputs"]["b"].update(change)
    path.write_text(json.dumps(value))
    with pytest.raises(PlanError) as caught:
        load(path)
    assert caught.value.item == "adds.plan: b"
    assert (len(gpu.engines), gpu.strays) == (0, 0)


def test_a_freed_plan_leaves_nothing(gpu: FakeGpu, cuda: CudaThread, plan: LoadedPlan, bench: Bench) -> None:
    del bench.lane
    cuda.call(lambda _: plan.free())
    gc.collect()
    assert len(gpu.contexts) == 0
