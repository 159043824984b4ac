"""How a lack of memory looks in what the compiler, CUDA and the kernel's memory manager print."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["lacks_memory"]

_SHORT_OF_MEMORY: Final = re.compile(
    r"out of memory"  # CUDA, and TensorRT's `Error Code 1: Cuda Runtime (out of memory)`
    r"|outofmemory"  # TensorRT's error code 9
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    r"|NvMap\w*[^\n]*\berror:? 12\b"  # ENOMEM of the Jetson's allocator, which may fail before memory is used up
    r"|std::bad_alloc|\bMemoryError\b|Cannot allocate memory"
    r"|GPU memory \(\d+ bytes\) could not be allocated",
    re.IGNORECASE,
)


def lacks_memory(text: str) -> bool:
    """Whether a message speaks of memory that could not be had."""
    return _SHORT_OF_MEMORY.search(text) is not None
