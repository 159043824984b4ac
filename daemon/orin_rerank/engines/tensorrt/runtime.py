"""Plans on the GPU: deserialised once, with an execution context for every profile and lane.

A lane is what one pack or batch of images has to itself while it runs: a stream, contexts and scratch memory. TensorRT
would reserve scratch memory for every context; but of the contexts of one lane only one is at work at a time, whichever
profile and graph it is of, so they share a single block that is large enough for each.

Everything here is called in the one thread that owns the CUDA context. The bindings are passed in, so that this module
can be imported, and its order of calls tested, where there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from orin_rerank.engines.memory import ALIGNMENT
from orin_rerank.engines.tensorrt.journal import is_of_plan
from orin_rerank.errors import EngineError, InternalError, PlanError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    import tensorrt as trt

    from orin_rerank.engines.tensorrt.journal import Journal

    Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

__all__ = ["DeviceArray", "LoadedPlan", "PlanLane", "PlanRuntime", "TensorSpec"]

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "INT8": np.dtype(np.int8),
    "BOOL": np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array where the GPU finds it: C-contiguous, its address a multiple of `ALIGNMENT`."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a plan.

    Attributes:
        name: As the graph has it.
        is_input: Whether it is an input.
        dtype: Of its elements.
        shape: Its dimensions; -1 where the length is dynamic.
    """

    name: str
    is_input: bool
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class PlanRuntime:
    """TensorRT, ready to deserialise plans in one CUDA context.

    Args:
        runtime: The bindings' `Runtime`, made in that context, whose logger writes to the journal. The caller keeps no
            reference to it.
        strategy: Their `ExecutionContextAllocationStrategy`.
        journal: What TensorRT says.
    """

    def __init__(
        self, runtime: trt.Runtime, strategy: type[trt.ExecutionContextAllocationStrategy], journal: Journal
    ) -> None:
        self._runtime: trt.Runtime | None = runtime
        self.strategy = strategy
        self.journal = journal

    def load(self, plan: mmap.mmap, name: str) -> LoadedPlan:
        """Deserialises a plan, which is not needed afterwards.

        Args:
            plan: The plan, verified: TensorRT checks little of it.
            name: For errors, such as `text.plan`.

        Raises:
            PlanError: If TensorRT does not take the plan, or it is none that this module can run.
            DeviceLostError: If the GPU is gone.
            EngineError: If memory runs out.
        """
        assert self._runtime is not None, "the runtime has been closed"
        self.journal.errors()
        engine: trt.ICudaEngine | None = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            failure = self.journal.failure("TensorRT does not take the plan", name)
            if is_of_plan(failure.message):
                raise PlanError(f"{failure.message}; it must be built again", item=name)
            raise failure
        return LoadedPlan(engine, self, name)

    def close(self) -> None:
        """Lets TensorRT go; plans of it must have been freed. In the CUDA thread."""
        self._runtime = None


class LoadedPlan:
    """A plan, deserialised by `PlanRuntime.load`."""

    def __init__(self, engine: trt.ICudaEngine, runtime: PlanRuntime, name: str) -> None:
        self.name = name
        self.journal = runtime.journal
        self._runtime = runtime  # must outlive the engine
        self._engine: trt.ICudaEngine | None = engine
        self.tensors = self._read_tensors()
        self._profiles = [self._read_profile(number) for number in range(engine.num_optimization_profiles)]

    @property
    def profiles(self) -> int:
        """How many optimisation profiles it has."""
        return len(self._profiles)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory that a context needs at most, over all profiles."""
        return max(int(self._usable.device_memory_size_v2), *self.scratch_by_profile)

    @property
    def scratch_by_profile(self) -> list[int]:
        """Scratch memory that a context of each profile needs, in bytes."""
        return [int(self._usable.get_device_memory_size_for_profile_v2(p)) for p in range(self.profiles)]

    def longest(self, name: str, profile: int) -> int:
        """The largest first dimension that a profile allows an input."""
        return self._profiles[profile][name][1][0]

    def profile_for(self, shapes: Shapes) -> int | None:
        """The first profile that every input fits, None if there is none.

        Args:
            shapes: Of every input, by name.
        """
        for number, limits in enumerate(self._profiles):
            if all(_within(shapes[name], least, most) for name, (least, most) in limits.items()):
                return number
        return None

    def holds(self, lengths: Mapping[str, int]) -> bool:
        """Whether one profile holds inputs of these lengths of their first dimension, by name."""
        return any(
            all(limits[name][0][0] <= length <= limits[name][1][0] for name, length in lengths.items())
            for limits in self._profiles
        )

    def covers(self, smallest: Shapes, largest: Shapes) -> bool:
        """Whether one profile holds the smallest and the largest shapes of some inputs, and so everything between."""
        return any(
            all(_within(shapes[name], *limits[name]) for shapes in (smallest, largest) for name in shapes)
            for limits in self._profiles
        )

    def new_context(self) -> trt.IExecutionContext:
        """A context that brings no scratch memory.

        Raises:
            EngineError: If it cannot be made, as when memory runs out.
        """
        self.journal.errors()
        context: trt.IExecutionContext | None = self._usable.create_execution_context(
            self._runtime.strategy.USER_MANAGED
        )
        if context is None:
            raise self.journal.failure("no execution context could be made", self.name)
        return context

    def free(self) -> None:
        """Frees the weights; contexts of the plan must be gone. In the CUDA thread."""
        self._engine = None

    @property
    def _usable(self) -> trt.ICudaEngine:
        assert self._engine is not None, "the plan has been freed"
        return self._engine

    def _read_tensors(self) -> dict[str, TensorSpec]:
        engine = self._usable
        tensors = {}
        for number in range(engine.num_io_tensors):
            name = engine.get_tensor_name(number)
            kind = engine.get_tensor_dtype(name).name
            if kind not in _DTYPES:
                raise PlanError(f"has elements of type {kind}", item=f"{self.name}: {name}")
            # The host would have to provide its values, and wait for them.
            if engine.is_shape_inference_io(name) or engine.get_tensor_location(name).name != "DEVICE":
                raise PlanError("is wanted in host memory", item=f"{self.name}: {name}")
            is_input = engine.get_tensor_mode(name).name == "INPUT"
            tensors[name] = TensorSpec(name, is_input, _DTYPES[kind], _dims(engine.get_tensor_shape(name)))
        return tensors

    def _read_profile(self, number: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """The least and largest shape of every input."""
        limits = {}
        for name, spec in self.tensors.items():
            if spec.is_input:
                least, _, most = self._usable.get_tensor_profile_shape(name, number)
                limits[name] = _dims(least), _dims(most)
        return limits


class PlanLane:
    """Contexts of one plan for one lane, one for every profile.

    Args:
        plan: The plan.
        stream: Handle of the lane's stream. It must be waited for once before the first run.
        scratch: Address of the lane's scratch memory; 0 if `scratch_bytes` is 0.
        scratch_bytes: Its size, at least the plan's `scratch_bytes`.

    Raises:
        EngineError: If a context cannot be made.
    """

    def __init__(self, plan: LoadedPlan, stream: int, scratch: int, scratch_bytes: int) -> None:
        if scratch_bytes < plan.scratch_bytes or scratch % ALIGNMENT:
            raise InternalError(f"{scratch_bytes} bytes of scratch memory do not do", item=plan.name)
        self.plan = plan
        self._stream = stream
        self._contexts: list[trt.IExecutionContext] = []
        for number in range(plan.profiles):
            context = plan.new_context()
            self._call(f"profile {number} was refused", context.set_optimization_profile_async, number, stream)
            # In the order of NVIDIA's own trtexec: a profile first, then the memory.
            self._tell("scratch memory was refused", context.set_device_memory, scratch, scratch_bytes)
            self._contexts.append(context)

    def close(self) -> None:
        """Frees the contexts; the stream must have come to its end. In the CUDA thread."""
        self._contexts.clear()

    def output_shapes(self, inputs: Shapes) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs for inputs of given shapes.

        Raises:
            EngineError: If no profile holds the inputs.
        """
        context = self._shaped(inputs)
        outputs = [name for name, spec in self.plan.tensors.items() if not spec.is_input]
        return {name: _dims(context.get_tensor_shape(name)) for name in outputs}

    def enqueue(self, arrays: Mapping[str, DeviceArray]) -> None:
        """Starts a run on the lane's stream. The arrays may be neither moved nor freed until the stream has done it.

        Args:
            arrays: Every input and output, by name.

        Raises:
            EngineError: If the run cannot be started, as when no profile holds the inputs.
            DeviceLostError: If the GPU is gone.
            InternalError: If an array is missing or is not what the plan takes or gives.
        """
        self._check(arrays)
        tensors = self.plan.tensors
        context = self._shaped({name: array.shape for name, array in arrays.items() if tensors[name].is_input})
        for name, array in arrays.items():
            given = _dims(context.get_tensor_shape(name))
            if given != array.shape:
                raise InternalError(f"{name} has the shape {given}, its array {array.shape}", item=self.plan.name)
            self._call(f"the address of {name} was refused", context.set_tensor_address, name, array.address)
        self._call("the run could not be started", context.execute_async_v3, self._stream)

    def _shaped(self, shapes: Shapes) -> trt.IExecutionContext:
        """The context of the profile that holds these inputs, told their shapes."""
        profile = self.plan.profile_for(shapes)
        if profile is None:
            raise EngineError(f"no profile holds inputs of the shapes {dict(shapes)}", item=self.plan.name)
        context = self._contexts[profile]
        for name, shape in shapes.items():
            self._call(f"shape {shape} of {name} was refused", context.set_input_shape, name, shape)
        unknown = self._guarded("shapes could not be worked out", context.infer_shapes)
        if unknown:
            raise InternalError(f"TensorRT wants to know more of {', '.join(unknown)}", item=self.plan.name)
        return context

    def _check(self, arrays: Mapping[str, DeviceArray]) -> None:
        tensors = self.plan.tensors
        if arrays.keys() != tensors.keys():
            names = ", ".join(sorted(arrays.keys() ^ tensors.keys()))
            raise InternalError(f"inputs and outputs do not agree: {names}", item=self.plan.name)
        for name, array in arrays.items():
            if array.dtype != tensors[name].dtype:
                raise InternalError(f"{name} is {tensors[name].dtype}, its array {array.dtype}", item=self.plan.name)
            if not array.address or array.address % ALIGNMENT:
                raise InternalError(f"the array of {name} is at an address not aligned", item=self.plan.name)

    def _call(self, what: str, function: Callable[..., bool], *arguments: object) -> None:
        """Calls what returns False for a failure, or raises RuntimeError in some releases."""
        if not self._guarded(what, function, *arguments):
            raise self.plan.journal.failure(what, self.plan.name)

    def _tell(self, what: str, function: Callable[..., None], *arguments: object) -> None:
        """Calls what returns nothing, and of a failure only writes an error to the log."""
        self._guarded(what, function, *arguments)
        if self.plan.journal.has_errors:
            raise self.plan.journal.failure(what, self.plan.name)

    def _guarded(self, what: str, function: Callable[..., Any], *arguments: object) -> Any:
        self.plan.journal.errors()
        try:
            return function(*arguments)
        except RuntimeError as error:  # the bindings' own; what is the matter was logged before
            raise self.plan.journal.failure(what, self.plan.name) from error


def _dims(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(length) for length in dims)


def _within(shape: tuple[int, ...], least: tuple[int, ...], most: tuple[int, ...]) -> bool:
    return len(shape) == len(least) and all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))
