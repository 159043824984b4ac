"""What the compiler, CUDA and the kernel's memory manager print, and what it means for a person."""

from __future__ import annotations

import re
from typing import Final

from orin_rerank.engines.cuda_errors import is_device_lost

__all__ = ["advice_on", "lacks_memory"]

_SHORT_OF_MEMORY: Final = re.compile(
    r"out of memory"  # CUDA, and TensorRT's `Error Code 1: Cuda Runtime (out of memory)`
    r"|outofmemory"  # TensorRT's error code 9
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    r"|NvMap\w*[^\n]*\berror:? 12\b"  # ENOMEM of the Jetson's allocator, which may fail before memory is used up
    r"|std::bad_alloc|\bMemoryError\b|Cannot allocate memory"
    r"|GPU memory \(\d+ bytes\) could not be allocated",
    re.IGNORECASE,
)

_REMEDIES: Final[dict[str, str]] = {
    # TensorRT's error code 10, of a node for which every kernel wants more scratch memory than it may have
    r"could not find any implementation": (
        "give kernels more scratch memory (--workspace), or let the compiler look harder (--level 5); what is compiled "
        "is kept"
    ),
    r"driver version is insufficient|insufficientdriver|no kernel image is available|unsupported display driver": (
        "the GPU's driver is older than this TensorRT wants: bring both to one JetPack release, and restart"
    ),
    r"(cannot|unable to|failed to) (load|open).{0,60}(nvinfer|\.so)|builder_resource": (
        "a library of TensorRT's is missing: install all of its packages in one version "
        "(apt install python3-libnvinfer libnvinfer-bin)"
    ),
    r"no space left|disk quota exceeded": (
        "make room where plans are kept, or keep them elsewhere (ORIN_RERANK_STATE)"
    ),
    r"permission denied|read-only file system": (
        "plans are kept in a folder that this user may not write to: run it as the daemon's user, or name another "
        "folder (ORIN_RERANK_STATE)"
    ),
}
"""By what a message says: what to do about it. The first that fits."""

_GPU_LOST: Final = (
    "the GPU failed while kernels were tried: restart the board, then give the same command again; what is compiled is "
    "kept"
)


def lacks_memory(text: str) -> bool:
    """Whether a message speaks of memory that could not be had."""
    return _SHORT_OF_MEMORY.search(text) is not None


def advice_on(text: str) -> str | None:
    """What to do about a message other than of a lack of memory; None where that is not known."""
    if is_device_lost(text):
        return _GPU_LOST
    return next((advice for symptom, advice in _REMEDIES.items() if re.search(symptom, text, re.IGNORECASE)), None)
