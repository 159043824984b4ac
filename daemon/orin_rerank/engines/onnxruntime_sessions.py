"""ONNX Runtime sessions over a graph: on the processor, or on a GPU and nowhere else."""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from orin_rerank.errors import BundleError, EngineError

__all__ = ["assigned", "cpu_session", "cuda_is_available", "cuda_session"]

_PROCESSOR: Final = Path("/proc/cpuinfo")
_CUDA: Final = "CUDAExecutionProvider"

_ERRORS: Final = 3
"""ONNX Runtime's log level for errors and worse."""

_HOST_OPERATORS: Final = frozenset(("Concat", "Shape", "Squeeze", "Unsqueeze"))
"""What ONNX Runtime computes on the processor on purpose in a session of a GPU: shapes, a few integers at a time."""


def cuda_is_available() -> bool:
    """Whether this ONNX Runtime was built for NVIDIA GPUs; not whether there is one."""
    return _CUDA in ort.get_available_providers()


def cpu_session(graph: Path, weights: Path | None) -> Any:
    """A session on the processor, of one thread.

    Args:
        graph: The graph.
        weights: Folder of the weight file, where it does not lie beside the graph.

    Raises:
        BundleError: If ONNX Runtime does not take the graph.
    """
    options = _one_thread()
    if _saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return _session(graph, weights, options, ["CPUExecutionProvider"])


def cuda_session(graph: Path, weights: Path | None, ordinal: int) -> Any:
    """A session on a GPU. What it cannot compute there is an error: a processor would take its place in silence.

    Args:
        graph: The graph.
        weights: Folder of the weight file, where it does not lie beside the graph.
        ordinal: Which GPU.

    Raises:
        BundleError: If ONNX Runtime does not take the graph, or would compute a part of it on the processor.
        EngineError: If ONNX Runtime cannot use the GPU.
    """
    if not cuda_is_available():
        raise EngineError("this ONNX Runtime is not built for NVIDIA GPUs: install onnxruntime-gpu", item="onnxruntime")
    ort.preload_dlls()
    # Else every session warns that its provider is no plug-in.
    ort.set_default_logger_severity(_ERRORS)
    if not hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        raise EngineError(
            f"ONNX Runtime {ort.__version__} does not tell what it computes where: install a later onnxruntime-gpu",
            item="onnxruntime",
        )
    options = _one_thread()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    provider = {
        "device_id": str(ordinal),
        # Memory grows by what is asked for, rather than to the next power of two.
        "arena_extend_strategy": "kSameAsRequested",
        # Matrix products in float32 are so for a reason; TF32 has float16's mantissa.
        "use_tf32": "0",
        # Of the attention kernels, the flash one and the memory-efficient one. cuDNN's, which newer GPUs are given by
        # default, is built anew for every length that it meets.
        "sdpa_kernel": "3",
    }
    session = _session(graph, weights, options, [(_CUDA, provider)])
    if _CUDA not in session.get_providers():
        raise EngineError("ONNX Runtime cannot use the GPU; its CUDA libraries may be missing", item="onnxruntime")
    by_provider = assigned(session)
    elsewhere = {kind for name, kinds in by_provider.items() if name != _CUDA for kind in kinds} - _HOST_OPERATORS
    if elsewhere:
        raise BundleError(
            f"would be computed on the processor in part: {', '.join(sorted(elsewhere))}", item=graph.name
        )
    return session


def assigned(session: Any) -> dict[str, list[str]]:
    """Types of a GPU session's operators, by the execution provider that computes them."""
    found: dict[str, list[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found.setdefault(part.ep_name, []).extend(node.op_type for node in part.get_nodes())
    return found


@functools.cache
def _saturates() -> bool:
    """Whether sums of two INT8 products saturate at 16 bits in this processor's kernels, unless others are asked for.

    So they do on x86 without VNNI. With it the others only cost time: a pack takes 1.5 times as long.
    """
    if platform.machine() not in {"x86_64", "AMD64"}:
        return False
    flags = set(_PROCESSOR.read_text(encoding="utf-8").split()) if _PROCESSOR.exists() else set()
    return not flags & {"avx512_vnni", "avx_vnni"}


def _one_thread() -> Any:
    """Options of a session that computes in its caller's thread.

    On a GPU other threads would have nothing to do, and each would be pinned to a core, which a hardened service may
    not do: ONNX Runtime then reports an error for every one.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return options


def _session(graph: Path, weights: Path | None, options: Any, providers: list[Any]) -> Any:
    source: str | bytes = str(graph)
    if weights is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
        source = graph.read_bytes()
    try:
        return ort.InferenceSession(source, options, providers=providers)
    except Exception as error:  # ONNX Runtime raises classes of its own that share no public base
        raise BundleError(f"ONNX Runtime does not take the graph: {error}", item=graph.name) from error
