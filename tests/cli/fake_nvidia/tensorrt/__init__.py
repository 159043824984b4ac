"""TensorRT as far as the daemon uses it, for machines without: found by PYTHONPATH, in every process.

FAKE_TENSORRT says what becomes of the graphs whose plan it names: `text: killed`, `vision: slow`; see `FATES`. A plan
is JSON of the graph and the profiles that it was asked for, so that tests see what was compiled; to run it is to run
the graph on the processor (`engines.tensorrt.fake_bindings`), on the memory that pycuda's fake gave.
"""

from __future__ import annotations

import enum
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

sys.path.append(str(Path(__file__).resolve().parents[3]))

from engines.tensorrt.fake_plan import coarsened, plan_text

if TYPE_CHECKING:
    from engines.tensorrt.fake_bindings import FakeRuntime

__version__ = "10.3.0"


class ILogger:
    Severity = enum.Enum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING", "INFO"])


class IProgressMonitor:
    pass


class NetworkDefinitionCreationFlag(enum.IntEnum):
    STRONGLY_TYPED = 1


BuilderFlag = enum.Enum("BuilderFlag", ["TF32"])
MemoryPoolType = enum.Enum("MemoryPoolType", ["WORKSPACE"])
DeviceType = enum.Enum("DeviceType", ["GPU"])


class _TimingCache:
    def __init__(self, contents: bytes) -> None:
        self.contents = contents

    def serialize(self) -> bytes:
        return self.contents + b"measured;"


class _Config:
    progress_monitor: IProgressMonitor

    def __init__(self) -> None:
        self.profiles: list[dict[str, object]] = []
        self.workspace = 0
        self.cache: _TimingCache | None = None

    def set_memory_pool_limit(self, pool: MemoryPoolType, size: int) -> None:
        self.workspace = size

    def clear_flag(self, flag: BuilderFlag) -> None:
        assert flag is BuilderFlag.TF32

    def add_optimization_profile(self, profile: _Profile) -> int:
        self.profiles.append(profile.shapes)
        return len(self.profiles) - 1

    def create_timing_cache(self, contents: bytes) -> _TimingCache:
        return _TimingCache(contents)

    def set_timing_cache(self, cache: _TimingCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.cache = cache
        return True

    def get_timing_cache(self) -> _TimingCache | None:
        return self.cache


class _Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, object] = {}

    def set_shape(self, name: str, least: tuple[int, ...], usual: tuple[int, ...], most: tuple[int, ...]) -> None:
        self.shapes[name] = [list(least), list(usual), list(most)]


class _Tensor:
    def __init__(self, value: onnx.ValueInfoProto) -> None:
        self.name = value.name
        self._dimensions = value.type.tensor_type.shape.dim
        self.shape = [-1 if d.dim_param else d.dim_value for d in self._dimensions]

    def get_dimension_name(self, axis: int) -> str:
        return str(self._dimensions[axis].dim_param)


class _Network:
    def __init__(self) -> None:
        self.inputs: list[_Tensor] = []
        self.num_layers = 0
        self.fate = "good"
        self.path = Path()

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, index: int) -> _Tensor:
        return self.inputs[index]


class _ParserError:
    def desc(self) -> str:
        return "No importer registered for op: Attention"

    def node_name(self) -> str:
        return "layers.0/attention/scores"

    def node_operator(self) -> str:
        return "Attention"


class OnnxParser:
    num_errors = 1

    def __init__(self, network: _Network, logger: ILogger) -> None:
        self._network = network

    def parse(self, model: bytes, path: str) -> bool:
        graph = onnx.load_model_from_string(model).graph
        self._network.inputs = [_Tensor(value) for value in graph.input]
        self._network.num_layers = len(graph.node)
        self._network.path = Path(path)
        fates = dict(part.split(": ") for part in os.environ.get("FAKE_TENSORRT", "").split(", ") if part)
        self._network.fate = fates.get(Path(path).name.partition(".")[0], "good")
        return self._network.fate != "refused"

    def get_error(self, index: int) -> _ParserError:
        assert index == 0
        return _ParserError()


class Builder:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def create_network(self, flags: int) -> _Network:
        assert flags == 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED
        return _Network()

    def create_builder_config(self) -> _Config:
        return _Config()

    def create_optimization_profile(self) -> _Profile:
        return _Profile()

    def build_serialized_network(self, network: _Network, config: _Config) -> memoryview | None:
        fate = FATES[network.fate]
        config.progress_monitor.phase_start("Building engine", None, 4)
        for step in range(4):
            if not fate(config) or not config.progress_monitor.step_complete("Building engine", step):
                return None
        config.progress_monitor.phase_finish("Building engine")
        if network.fate == "warns":
            for layer in range(9):
                text = f"layer {layer} is slow"
                self._logger.log(ILogger.Severity.WARNING, text)
        model = coarsened(network.path, 4.0) if network.fate == "coarse" else None
        return memoryview(plan_text(network.path, config.profiles, model=model, workspace=config.workspace).encode())


class Runtime:
    """On the GPU of pycuda's fake, which the process has opened."""

    def __new__(cls, logger: ILogger) -> FakeRuntime:
        from pycuda.driver import opened_gpu

        from engines.tensorrt.fake_bindings import FakeRuntime

        return FakeRuntime(opened_gpu(), lambda severity, text: logger.log(ILogger.Severity[severity], text))


def __getattr__(name: str) -> Any:
    """What only a process that runs plans asks for: it takes ONNX Runtime to answer."""
    if name == "ExecutionContextAllocationStrategy":
        from engines.tensorrt.fake_bindings import Strategy

        return Strategy
    raise AttributeError(name)


def _die_above_256_mib(config: _Config) -> bool:
    if config.workspace > 256 << 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def _run_out_of_nvmap(config: _Config) -> bool:
    sys.stderr.write("NvMapMemAllocInternalTagged: 1075072515 error 12\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGABRT)
    return False


def _take_long(config: _Config) -> bool:
    config.progress_monitor.phase_start("Timing tactics", "Building engine", 10_000)
    for step in range(10_000):
        time.sleep(0.02)
        if not config.progress_monitor.step_complete("Timing tactics", step):
            return False
    return True


FATES = {
    "good": lambda _: True,
    "warns": lambda _: True,
    "coarse": lambda _: True,
    "refused": lambda _: False,
    "killed-above-256-mib": _die_above_256_mib,
    "nvmap": _run_out_of_nvmap,
    "slow": _take_long,
    "hangs": lambda _: time.sleep(600),
}
