"""What serving takes, reckoned, against real files, the published sizes and what NVIDIA's compiler asks for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from fakes.published import BF16_MIB, MODELS
from fakes.random_models import all_int8, cut, write_random_model
from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle
from orin_rerank.engines.capacity import ImageCapacity, PackCapacity
from orin_rerank.engines.footprint import (
    EngineKind,
    build_bytes,
    overhead_bytes,
    scratch_bytes,
    stored_bytes,
    weight_bytes,
)
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.quantization.write import quantized_layout

MINI = Path(__file__).parents[2] / "engines" / "mini"
MB = 1_000_000
KINDS = list(EngineKind)


def tensor_bytes(file: Path) -> int:
    """What a safetensors file holds beside its header."""
    with file.open("rb") as opened:
        header = int.from_bytes(opened.read(8), "little")
        entries = json.loads(opened.read(header))
    entries.pop("__metadata__", None)
    return max(entry["data_offsets"][1] for entry in entries.values())


def test_the_minis_file_is_reckoned_to_the_byte() -> None:
    architecture = Bundle.open(MINI).manifest.architecture
    assert stored_bytes(architecture, Precision.FP16) == tensor_bytes(MINI / WEIGHTS_FILE)


@pytest.mark.parametrize("name", ["vl-2b", "vl-8b"])
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8_FP16])
def test_files_of_published_widths_are_reckoned_to_the_byte(name: str, precision: Precision, tmp_path: Path) -> None:
    architecture = cut(MODELS[name].architecture, layers=1, vocabulary=64)
    write_random_model(tmp_path, architecture, precision, [Dialect.PRIMITIVE])
    assert stored_bytes(architecture, precision) == tensor_bytes(tmp_path / WEIGHTS_FILE)


@pytest.mark.parametrize("name", MODELS)
def test_int8_is_what_the_layout_of_an_int8_bundle_takes(name: str) -> None:
    architecture = MODELS[name].architecture
    layout = quantized_layout(architecture, all_int8(architecture))
    assert stored_bytes(architecture, Precision.INT8_FP16) == sum(spec.nbytes for spec in layout.specs)


@pytest.mark.parametrize("name", MODELS)
def test_float16_is_the_published_size_but_for_the_head(name: str) -> None:
    """Norms and biases take twice as much; of a head with weights of its own, one row is left."""
    text = MODELS[name].architecture.text
    head = 0 if text.tied else 2 * text.vocabulary * text.hidden
    assert stored_bytes(MODELS[name].architecture, Precision.FP16) == pytest.approx(
        BF16_MIB[name] * (1 << 20) - head, rel=0.004
    )


def test_what_is_computed_wide_takes_more_than_it_is_stored_in() -> None:
    architecture = MODELS["vl-8b"].architecture
    stored = stored_bytes(architecture, Precision.INT8_FP16)
    vision = 576_400_000  # parameters, published
    served = weight_bytes(architecture, Precision.INT8_FP16, EngineKind.TENSORRT)
    assert served - stored == pytest.approx(vision, rel=0.01)
    assert weight_bytes(architecture, Precision.FP16, EngineKind.TENSORRT) == stored_bytes(architecture, Precision.FP16)
    left_wide = weight_bytes(architecture, Precision.INT8_FP16, EngineKind.TENSORRT, stored + 300 * MB)
    assert left_wide - served == 300 * MB


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_longer_packs_and_more_rows_never_take_less(kind: EngineKind, name: str) -> None:
    architecture = MODELS[name].architecture
    sizes = []
    for tokens, rows in ((1024, 512), (1024, 1024), (2048, 1024), (4096, 2048), (10240, 2048)):
        capacity = PackCapacity.of_model(
            architecture, tokens=tokens, documents=64, prefix_rows=rows, product_dtype=np.float16
        )
        sizes.append(scratch_bytes(architecture, capacity, None, Precision.FP16, kind))
    assert sizes == sorted(sizes)
    assert sizes[0] > 0


TOKENS = (1024, 2048, 3072, 5120, 11264)
ASKED = {
    ("vl-8b", Precision.FP16): (135, 270, 396, 653, 1433),
    ("vl-8b", Precision.INT8_FP16): (179, 358, 534, 884, 1983),
    ("vl-2b", Precision.FP16): (80, 161, 219, 359, 828),
    ("vl-2b", Precision.INT8_FP16): (99, 203, 291, 485, 1064),
}
"""MB of scratch memory that TensorRT-RTX 1.7.1 asks for, for SM86: 4 layers of these widths, one of them tapped, one
profile that ends with so many tokens, 2,048 rows known and to keep or as many as tokens, 64 documents;
as `compile_here` of `tests/engines/tensorrt/compiling.py` hears it."""


@pytest.mark.parametrize(("name", "precision"), ASKED)
def test_scratch_memory_is_what_the_compiler_asks_for(name: str, precision: Precision) -> None:
    """A plan has an eighth more."""
    architecture = cut(MODELS[name].architecture, layers=4, vocabulary=1024)
    for tokens, asked in zip(TOKENS, ASKED[name, precision], strict=True):
        capacity = PackCapacity.of_model(
            architecture,
            tokens=tokens,
            documents=64,
            prefix_rows=min(2048, tokens),
            product_dtype=np.float16,
        )
        reckoned = scratch_bytes(architecture, capacity, None, precision, EngineKind.TENSORRT)
        assert 0.96 * asked * MB <= reckoned <= 1.06 * asked * MB


@pytest.mark.parametrize(("name", "taken"), [("vl-2b", 1_426_063_360), ("vl-8b", 2_191_523_840)])
def test_scratch_memory_of_onnx_runtime_on_a_gpu_is_no_less_than_it_takes(name: str, taken: int) -> None:
    """Taken as `tests/device/checks.py --only scratch` measured it, with what the libraries load at the first run."""
    architecture = cut(MODELS[name].architecture, layers=4, vocabulary=4096)
    capacity = PackCapacity.of_model(
        architecture, tokens=10245, documents=256, prefix_rows=2048, product_dtype=np.float16
    )
    vision = architecture.vision
    assert vision is not None
    images = ImageCapacity(
        5120, vision.patch_values, vision.head_dim // 2, 4, 1 + capacity.taps, architecture.text.hidden
    )
    kind = EngineKind.ONNXRUNTIME_CUDA
    reckoned = scratch_bytes(architecture, capacity, images, Precision.FP16, kind)
    assert reckoned < taken + overhead_bytes(kind)
    assert reckoned + overhead_bytes(kind) > 1.1 * taken
    assert scratch_bytes(architecture, capacity, images, Precision.FP16, kind, masked=True) > 8 * reckoned


@pytest.mark.parametrize(
    ("name", "patches", "asked", "over"), [("vl-8b", 7200, 334, 1.75), ("mini", 7200, 74, 1.2), ("mini", 3136, 32, 1.2)]
)
def test_scratch_memory_of_pictures_is_never_less_than_asked_for(
    name: str, patches: int, asked: int, over: float
) -> None:
    """The compiler asks for less than a formula can tell: the formula errs on the safe side, where text needs more."""
    architecture = Bundle.open(MINI).manifest.architecture if name == "mini" else MODELS[name].architecture
    capacity = PackCapacity.of_model(architecture, tokens=1, documents=1, product_dtype=np.float16)
    assert architecture.vision is not None
    vision = architecture.vision
    images = ImageCapacity(
        patches, vision.patch_values, vision.head_dim // 2, 4, 1 + capacity.taps, architecture.text.hidden
    )
    reckoned = scratch_bytes(architecture, capacity, images, Precision.FP16, EngineKind.TENSORRT)
    assert asked * MB <= reckoned <= over * asked * MB


def test_what_compiling_the_8b_takes() -> None:
    """`make compile-8b` measured 19.9 GiB at its peak for the decoder in INT8, one profile of 1,024 tokens."""
    architecture = MODELS["vl-8b"].architecture
    reckoned = build_bytes(architecture, Precision.INT8_FP16, 256 << 20)
    assert 19.9 * (1 << 30) < reckoned < 1.25 * 19.9 * (1 << 30)
    assert build_bytes(architecture, Precision.FP16, 256 << 20) > 1.8 * reckoned
    text_only = dataclasses.replace(architecture, vision=None)
    assert build_bytes(text_only, Precision.INT8_FP16, 256 << 20) == reckoned
