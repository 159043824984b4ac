"""Tries the libraries that a GPU takes, in a process of its own: with a sick driver they crash, or never come back."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orin_rerank.board.apart import run_apart, tell_and_leave
from orin_rerank.engines.cuda_driver import DeviceInfo

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MachineProbe", "probe_machine", "run"]


@dataclass(frozen=True, slots=True)
class MachineProbe:
    """What can be used.

    Attributes:
        tensorrt: The TensorRT bindings with their version, such as `tensorrt 10.3.0`; None without any.
        tensorrt_problem: Why they cannot be used.
        pycuda: Version of pycuda; None without it.
        gpu: The GPU; None if there is none that can be opened.
        gpu_problem: Why not.
        onnxruntime: Version of ONNX Runtime; None if it cannot be imported.
        providers: What it computes on, such as `CUDAExecutionProvider`.
        problem: Why nothing more is known: the process died, did not end, or could not be started.
        started: Whether it could.
    """

    tensorrt: str | None = None
    tensorrt_problem: str | None = None
    pycuda: str | None = None
    gpu: DeviceInfo | None = None
    gpu_problem: str | None = None
    onnxruntime: str | None = None
    providers: tuple[str, ...] = field(default=())
    problem: str | None = None
    started: bool = True


def probe_machine(*, open_gpu: bool = True, timeout_s: float = 60.0) -> MachineProbe:
    """Tries them.

    Args:
        open_gpu: Whether to open the GPU, too, which takes a few hundred MB of its memory for a moment.
        timeout_s: How long that may take; a Jetson loads TensorRT in seconds, and a context takes one or two.
    """
    told = run_apart(__name__, *(["gpu"] if open_gpu else []), timeout_s=timeout_s)
    found = _from_json(told.values[-1]) if told.values else MachineProbe()
    problem = None if told.problem is None else f"the process that tried the GPU's libraries {told.problem}"
    return dataclasses.replace(found, problem=problem, started=told.started)


def run() -> None:
    """What the process does."""
    tell_and_leave(_find)


def _find(tell: Callable[[dict[str, Any]], None]) -> None:
    """Tells after each library all that is known by then."""
    found = MachineProbe()
    for look in (_onnxruntime, _tensorrt, _pycuda, *([_gpu] if sys.argv[1:] == ["gpu"] else [])):
        found = look(found)
        tell(dataclasses.asdict(found))


def _from_json(value: dict[str, Any]) -> MachineProbe:
    gpu = value.pop("gpu")
    if gpu is not None:
        gpu = DeviceInfo(**{**gpu, "compute_capability": tuple(gpu["compute_capability"])})
    return MachineProbe(**{**value, "gpu": gpu, "providers": tuple(value["providers"])})


def _onnxruntime(found: MachineProbe) -> MachineProbe:
    try:
        import onnxruntime  # noqa: PLC0415 - whether it can be imported is the question
    except Exception:  # noqa: BLE001 - a broken installation raises anything
        return found
    providers = tuple(onnxruntime.get_available_providers())
    return dataclasses.replace(found, onnxruntime=onnxruntime.__version__, providers=providers)


def _tensorrt(found: MachineProbe) -> MachineProbe:
    from orin_rerank.engines.tensorrt.bindings import installed_bindings  # noqa: PLC0415

    if installed_bindings() is None:
        return found
    try:
        from orin_rerank.engines.tensorrt.api import RUNTIME  # noqa: PLC0415 - loads the libraries
    except Exception as error:  # noqa: BLE001 - likewise
        return dataclasses.replace(found, tensorrt_problem=str(error))
    return dataclasses.replace(found, tensorrt=RUNTIME)


def _pycuda(found: MachineProbe) -> MachineProbe:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        import pycuda.driver  # noqa: F401, PLC0415 - likewise
    except ImportError as error:
        problem = None if error.name == "pycuda" else str(error)
        return dataclasses.replace(found, gpu_problem=problem or "pycuda is not installed")
    try:
        return dataclasses.replace(found, pycuda=version("pycuda"))
    except PackageNotFoundError:
        return dataclasses.replace(found, pycuda="unknown")


def _gpu(found: MachineProbe) -> MachineProbe:
    if found.pycuda is None:
        return found
    from orin_rerank.engines.cuda import CudaThread  # noqa: PLC0415
    from orin_rerank.errors import EngineError  # noqa: PLC0415

    try:
        cuda = CudaThread()
    except EngineError as error:
        return dataclasses.replace(found, gpu_problem=str(error))
    cuda.close()
    return dataclasses.replace(found, gpu=cuda.info)
