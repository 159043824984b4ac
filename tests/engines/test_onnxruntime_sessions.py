"""Sessions: what runs where, and that a GPU's session is not one on the processor in disguise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orin_rerank.engines.onnxruntime_sessions import cpu_session, cuda_is_available, cuda_session
from orin_rerank.errors import BundleError, EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.engines.bundle import Bundle


def test_a_processors_session_has_no_other_provider(vl_bundle: Bundle) -> None:
    session = cpu_session(vl_bundle.folder / "text.fused.fp32.onnx", None)
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_a_graph_without_its_weights_is_refused(vl_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BundleError) as caught:
        cpu_session(vl_bundle.folder / "text.fused.fp32.onnx", tmp_path)
    assert caught.value.item == "text.fused.fp32.onnx"


@pytest.mark.skipif(cuda_is_available(), reason="this ONNX Runtime is built for NVIDIA GPUs")
def test_without_the_gpu_build_no_session_is_made(vl_bundle: Bundle) -> None:
    with pytest.raises(EngineError, match="install onnxruntime-gpu") as caught:
        cuda_session(vl_bundle.folder / "text.fused.fp16.onnx", None, 0)
    assert caught.value.item == "onnxruntime"
