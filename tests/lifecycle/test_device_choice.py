"""On which device a model is loaded, and that no other takes its place."""

from __future__ import annotations

import importlib.util

import pytest

from orin_rerank.engines.settings import DeviceChoice, EngineSettings, PrecisionChoice
from orin_rerank.errors import EngineError, RefusedPrecisionError
from orin_rerank.lifecycle.startup import load_model


def settings(precision: PrecisionChoice = PrecisionChoice.AUTO) -> EngineSettings:
    return EngineSettings(precision=precision, device=DeviceChoice.CUDA, token_budget=64)


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is not None, reason="pycuda is installed")
def test_a_gpu_that_is_not_there_is_an_error_and_the_processor_does_not_take_its_place(bundle_folder) -> None:
    with pytest.raises(EngineError) as caught:
        load_model(bundle_folder, settings())
    assert caught.value.item == "pycuda"


def test_int8_is_not_for_onnxruntime_on_a_gpu(bundle_folder) -> None:
    with pytest.raises(RefusedPrecisionError, match="no INT8 on a GPU"):
        load_model(bundle_folder, settings(PrecisionChoice.INT8))
