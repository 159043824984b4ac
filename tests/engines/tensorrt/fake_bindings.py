"""TensorRT's run-time interface without a GPU: as strict as the real one about order, shapes, types and addresses.

A "plan" is JSON that names an ONNX graph; running it runs that graph on the processor, on the very memory that was
bound, when its stream is waited for and not before. What the real interface answers with False and an error in the log,
or leaves undefined, is refused here, and every call is recorded.

What is demanded is taken from NvInferRuntime.h and the sources of the bindings, releases 10.3 to 11.1.
"""

from __future__ import annotations

import base64
import enum
import json
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from engines.fake_driver import FakeDriver, FakeStream
from engines.tensorrt.fake_plan import KINDS, write_plan
from orin_rerank.engines.memory import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FakeGpu", "FakeRuntime", "Strategy", "write_plan"]

_NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT64": np.int64, "INT8": np.int8}

DataType = enum.Enum("DataType", [*KINDS.values(), "BF16"])
TensorIOMode = enum.Enum("TensorIOMode", ["NONE", "INPUT", "OUTPUT"])
TensorLocation = enum.Enum("TensorLocation", ["DEVICE", "HOST"])
Strategy = enum.Enum("Strategy", ["STATIC", "ON_PROFILE_CHANGE", "USER_MANAGED"])


class FakeGpu(FakeDriver):
    """A GPU with TensorRT on it.

    Attributes:
        calls: Name of every call of TensorRT, in order.
        failing: Why the next call of a name does not succeed: the error that TensorRT logs.
        spared: How many calls of that name go well before.
        computes_nothing: Whether runs are taken, and said to be done, but write nothing.
        log: Where its errors go.
        contexts: Those that are alive.
        engines: Likewise.
        runtimes: Likewise.
        strays: How many of them went in a thread without the CUDA context, a context after its scratch memory, or a
            runtime before what was made of it.
    """

    def __init__(self, *, integrated: bool = True, stream_s: float = 0.0) -> None:
        super().__init__(integrated=integrated, stream_s=stream_s)
        self.calls: list[str] = []
        self.failing: dict[str, str] = {}
        self.spared: dict[str, int] = {}
        self.log: Callable[[str], None] = lambda _: None
        self.contexts: weakref.WeakSet[FakeContext] = weakref.WeakSet()
        self.engines: weakref.WeakSet[FakeEngine] = weakref.WeakSet()
        self.runtimes: weakref.WeakSet[FakeRuntime] = weakref.WeakSet()
        self.strays = 0
        self.computes_nothing = False
        self.streams: dict[int, FakeStream] = {}

    def stream(self) -> FakeStream:
        stream = super().stream()
        self.streams[stream.handle] = stream
        return stream

    def called(self, name: str) -> bool:
        """Records a call, and whether it goes well."""
        assert self.opened_by == threading.get_ident(), f"{name} in a thread without the context"
        self.calls.append(name)
        if self.spared.get(name, 0):
            self.spared[name] -= 1
            return True
        problem = self.failing.pop(name, None)
        if problem is not None:
            self.log(problem)
        return problem is None

    def went(self, scratch: int = 0) -> None:
        """Notes the end of an engine or a context."""
        freed = scratch and all(memory.address != scratch for memory in self.memory)
        self.strays += bool(freed or self.opened_by != threading.get_ident())

    def refuse(self, text: str) -> bool:
        """What TensorRT does about a wrong argument."""
        self.log(text)
        return False

    def array(self, address: int, shape: tuple[int, ...], kind: str) -> np.ndarray:
        """What lies at an address."""
        dtype = np.dtype(_NUMPY[kind])
        return self._at(address, int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)


class FakeRuntime:
    """`tensorrt.Runtime`; it belongs to the CUDA context that it was made in."""

    def __init__(self, gpu: FakeGpu, say: Callable[[str, str], None]) -> None:
        self.gpu = gpu
        assert gpu.opened_by == threading.get_ident(), "a runtime made in a thread without the context"
        self.context = gpu.opened
        gpu.runtimes.add(self)
        gpu.log = lambda text: say("ERROR", text)

    def __del__(self) -> None:
        self.gpu.went()
        self.gpu.strays += len(self.gpu.engines) + len(self.gpu.contexts)

    def deserialize_cuda_engine(self, serialized_engine: Any) -> FakeEngine | None:
        assert self.context == self.gpu.opened, "a runtime of a context that is gone"
        with memoryview(serialized_engine) as view:
            text = bytes(view)
        if not self.gpu.called("deserialize_cuda_engine"):
            return None
        try:
            return FakeEngine(self.gpu, json.loads(text))
        except ValueError:
            self.gpu.refuse(
                "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion header.magicTag "
                "== kEXPECTED_MAGIC_TAG failed.Trying to load an engine created with incompatible serialization version"
            )
            return None


class FakeEngine:
    """`tensorrt.ICudaEngine`."""

    def __init__(self, gpu: FakeGpu, plan: dict[str, Any]) -> None:
        self.gpu = gpu
        self.plan = plan
        self.tensors: dict[str, dict[str, Any]] = {**plan["inputs"], **plan["outputs"]}
        self.session = _session(plan)
        gpu.engines.add(self)

    def __del__(self) -> None:
        self.gpu.went()

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.plan["profiles"])

    @property
    def device_memory_size_v2(self) -> int:
        return max(self.plan["scratch"])

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        return int(self.plan["scratch"][profile_index])

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_dtype(self, name: str) -> Any:
        return DataType[self.tensors[name]["kind"]]

    def get_tensor_mode(self, name: str) -> Any:
        return TensorIOMode.INPUT if name in self.plan["inputs"] else TensorIOMode.OUTPUT

    def get_tensor_location(self, name: str) -> Any:
        return TensorLocation[self.tensors[name].get("location", "DEVICE")]

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self.tensors[name].get("shape_inference", False))

    def get_tensor_shape(self, name: str) -> list[int]:
        return [-1 if isinstance(d, str) else d for d in self.tensors[name]["shape"]]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[list[int]]:
        assert name in self.plan["inputs"]
        return [list(shape) for shape in self.plan["profiles"][profile_index][name]]

    def create_execution_context(self, strategy: Any = Strategy.STATIC) -> FakeContext | None:
        return FakeContext(self, strategy) if self.gpu.called("create_execution_context") else None


class FakeContext:
    """`tensorrt.IExecutionContext`."""

    def __init__(self, engine: FakeEngine, strategy: Any) -> None:
        self.engine = engine
        self.gpu = engine.gpu
        self.user_managed = strategy is Strategy.USER_MANAGED
        self.scratch = (0, 0)
        self.profile: int | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.gpu.contexts.add(self)

    def __del__(self) -> None:
        self.gpu.went(self.scratch[0])

    def set_device_memory(self, memory: int, size: int) -> None:
        if not self.gpu.called("set_device_memory"):
            return
        assert self.profile is not None, "trtexec chooses a profile first"
        assert self.user_managed, "only a context that brings no memory is given some"
        assert memory % ALIGNMENT == 0
        self.scratch = memory, size

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if not self.gpu.called("set_optimization_profile_async"):
            raise RuntimeError("Error in set optimization profile async.")  # as the bindings do
        assert stream_handle in self.gpu.streams
        assert 0 <= profile_index < self.engine.num_optimization_profiles
        self.profile = profile_index
        self.shapes.clear()
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert type(shape) is tuple
        assert all(type(length) is int for length in shape)
        if not self.gpu.called("set_input_shape"):
            return False
        if self.profile is None:
            return self.gpu.refuse("no profile has been chosen")
        if name not in self.engine.plan["inputs"]:
            return self.gpu.refuse(f"{name} is no input")
        least, _, most = self.engine.get_tensor_profile_shape(name, self.profile)
        if len(shape) != len(least) or not all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True)):
            return self.gpu.refuse(f"Error Code 3: shape {shape} of {name} is not within profile {self.profile}")
        self.shapes[name] = shape
        return True

    def infer_shapes(self) -> list[str]:
        if not self.gpu.called("infer_shapes"):
            raise RuntimeError("Error occurred when inferring shapes")
        return [name for name in self.engine.plan["inputs"] if name not in self.shapes]

    def get_tensor_shape(self, name: str) -> list[int]:
        if name in self.shapes:
            return list(self.shapes[name])
        lengths = self._lengths()
        return [d if isinstance(d, int) else lengths.get(d, -1) for d in self.engine.tensors[name]["shape"]]

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert type(memory) is int
        if not self.gpu.called("set_tensor_address"):
            return False
        if name not in self.engine.tensors:
            return self.gpu.refuse(f"{name} is neither input nor output")
        assert memory % ALIGNMENT == 0, "undefined in the real one"
        self.addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        if not self.gpu.called("execute_async_v3"):
            return False
        assert stream_handle, "the default stream makes TensorRT synchronise the device"
        assert stream_handle in self.gpu.streams
        engine = self.engine
        if self.user_managed:
            assert self.profile is not None
            assert self.scratch[1] >= engine.get_device_memory_size_for_profile_v2(self.profile)
            assert self.scratch[0] or not self.scratch[1]
        missing = [n for n in engine.tensors if not self.addresses.get(n)] + [
            n for n in engine.plan["inputs"] if n not in self.shapes
        ]
        if missing:
            return self.gpu.refuse(f"Error Code 3: not specified: {missing}")
        if self.gpu.computes_nothing:
            return True
        # What was bound when the run was enqueued is what it works on, whatever the context is told afterwards.
        inputs = {name: self._array(name, self.shapes[name]) for name in engine.plan["inputs"]}
        outputs = {name: self._array(name, tuple(self.get_tensor_shape(name))) for name in engine.plan["outputs"]}
        self.gpu.streams[stream_handle].left.append(lambda: self._compute(inputs, outputs))
        return True

    def _compute(self, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
        assert self in self.gpu.contexts
        for array, value in zip(outputs.values(), self.engine.session.run(list(outputs), inputs), strict=True):
            assert (value.dtype, value.shape) == (array.dtype, array.shape)
            np.copyto(array, value)

    def _array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return self.gpu.array(self.addresses[name], shape, self.engine.tensors[name]["kind"])

    def _lengths(self) -> dict[str, int]:
        """Dynamic lengths by name, as far as the inputs say; of the vision encoder's rows by its patches."""
        lengths = {
            declared: length
            for name, shape in self.shapes.items()
            for declared, length in zip(self.engine.tensors[name]["shape"], shape, strict=True)
            if isinstance(declared, str)
        }
        if "patches" in lengths:
            lengths["rows"] = lengths["patches"] // 4
        return lengths


def _session(plan: dict[str, Any]) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source: str | bytes = plan["graph"]
    if plan["weights"] is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", plan["weights"])
        source = base64.b64decode(plan["model"]) if plan["model"] else Path(plan["graph"]).read_bytes()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
