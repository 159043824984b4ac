from __future__ import annotations

import importlib.util

import onnxruntime as ort
import pytest

from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.devices import uses_cuda
from orin_rerank.engines.settings import DeviceChoice
from orin_rerank.errors import EngineError


def test_what_was_asked_for_is_not_second_guessed() -> None:
    assert uses_cuda(DeviceChoice.CUDA)
    assert not uses_cuda(DeviceChoice.CPU)


def test_left_to_itself_it_goes_by_what_is_installed() -> None:
    installed = "CUDAExecutionProvider" in ort.get_available_providers() and importlib.util.find_spec("pycuda")
    assert uses_cuda(DeviceChoice.AUTO) == bool(installed)


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is not None, reason="pycuda is installed")
def test_without_pycuda_the_error_says_so() -> None:
    with pytest.raises(EngineError) as caught:
        CudaThread()
    assert caught.value.item == "pycuda"
