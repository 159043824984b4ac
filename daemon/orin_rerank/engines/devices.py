"""Which device a model is computed on."""

from __future__ import annotations

import importlib.util
from typing import Final

from orin_rerank.engines.onnxruntime_sessions import cuda_is_available
from orin_rerank.engines.settings import DeviceChoice

__all__ = ["CUDA_SLOTS", "uses_cuda"]

CUDA_SLOTS: Final = 2
"""Packs in flight on a GPU: one is computed while the next is prepared and the last is answered.

More do not help: the measurements are in docs/device-figures.md.
"""


def uses_cuda(choice: DeviceChoice) -> bool:
    """Whether a model is computed on the GPU.

    Left to itself the choice looks at what is installed and not at the hardware: where a GPU is meant to compute but
    cannot be opened yet, or any more, starting must fail and be tried again, rather than go on a hundred times slower.
    """
    if choice is DeviceChoice.AUTO:
        return cuda_is_available() and importlib.util.find_spec("pycuda") is not None
    return choice is DeviceChoice.CUDA
