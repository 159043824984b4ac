from __future__ import annotations

import importlib.util

import pytest

from orin_rerank.engines.cuda import CudaThread
from orin_rerank.errors import EngineError


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is not None, reason="pycuda is installed")
def test_without_pycuda_the_error_says_so() -> None:
    with pytest.raises(EngineError) as caught:
        CudaThread()
    assert caught.value.item == "pycuda"
