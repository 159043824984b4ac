"""What serving a model takes, in bytes, reckoned from its dimensions alone: weights, scratch memory, overhead.

What a slot of the pool takes is `engines.capacity.slot_bytes`, to the byte. Weights are as exact. Scratch memory is a
formula that is held to what NVIDIA's compiler asks for (`tests/engines/test_footprint.py`); overhead is an allowance.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.graph.scheme import scale_name
from orin_rerank.graph.text import text_weights
from orin_rerank.graph.vision import POSITION_TABLE, vision_weights
from orin_rerank.graph.weights import WeightSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orin_rerank.engines.capacity import ImageCapacity, PackCapacity
    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.graph.builder import Precision

__all__ = ["EngineKind", "build_bytes", "overhead_bytes", "scratch_bytes", "stored_bytes", "weight_bytes"]

_MIB: Final = 1 << 20


class EngineKind(enum.Enum):
    """What computes a model."""

    TENSORRT = "tensorrt"
    ONNXRUNTIME_CUDA = "onnxruntime-cuda"
    PROCESSOR = "onnxruntime-cpu"

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU computes."""
        return self is not EngineKind.PROCESSOR


_OVERHEAD: Final = {
    EngineKind.TENSORRT: 768 * _MIB,
    EngineKind.ONNXRUNTIME_CUDA: 1024 * _MIB,
    EngineKind.PROCESSOR: 0,
}
"""CUDA's context, the kernels that are loaded into it, and what the libraries keep. An allowance, not a measurement."""
_SCORE_COPIES: Final = {EngineKind.ONNXRUNTIME_CUDA: 3, EngineKind.PROCESSOR: 1}
"""How often the scores of all tokens with all tokens are there at a time. On the processor that is measured (2 layers
of the 2B's widths, packs of 1,024 and 2,048 tokens); ONNX Runtime on CUDA, where it is given graphs with a mask, is
allowed scores, weights and a copy."""
_ARENA: Final = 1.25
"""What ONNX Runtime's arena on a GPU takes of memory for each byte that is in use at a time: it keeps pieces for packs
of many lengths. Measured up to 1.15 (`tests/device/scratch.py`)."""
_BUILD_FACTOR: Final = 2.9
_VISUAL: Final = "model.visual."


def stored_bytes(architecture: Architecture, precision: Precision) -> int:
    """The tensors of a bundle's weight file, without its header.

    Args:
        architecture: The model's.
        precision: A quantised one means that every matrix is stored as INT8; places that were left wide take more.
    """
    return sum(spec.nbytes for spec in _stored(architecture, quantized=precision.quantized))


def weight_bytes(architecture: Architecture, precision: Precision, kind: EngineKind, stored: int | None = None) -> int:
    """What the weights take while a model is served.

    Args:
        architecture: The model's.
        precision: What it is computed in.
        kind: What computes it.
        stored: Size of the weight file, where it is known.
    """
    stored = max(stored or 0, stored_bytes(architecture, precision))
    narrow = 0
    if precision.quantized:
        # By default vision is stored in INT8 and computed wide. A compiler or a runtime may widen its weights for good.
        narrow = sum(spec.nbytes for spec in _stored(architecture, quantized=True) if _is_visual_matrix(spec))
    if kind is EngineKind.PROCESSOR:
        # Products are in float32, or in INT8 with weights packed for it; the file is mapped, and the embedding read
        # there. Measured (2 layers of the 2B's widths): 2.2 and 1.3 times what the matrices are stored as.
        return stored * 3 // 2 + 4 * narrow if precision.quantized else stored * 9 // 4
    return stored + narrow


def overhead_bytes(kind: EngineKind) -> int:
    """What a GPU takes before anything of a model is on it."""
    return _OVERHEAD[kind]


def scratch_bytes(
    architecture: Architecture,
    capacity: PackCapacity,
    images: ImageCapacity | None,
    precision: Precision,
    kind: EngineKind,
    *,
    masked: bool = False,
) -> int:
    """Scratch memory of one slot: of its largest pack, or of its largest run of the vision encoder.

    The contexts of TensorRT share it; each session of ONNX Runtime on a GPU keeps its own.

    Args:
        architecture: The model's.
        capacity: Of a slot, for packs.
        images: Of a slot, for the vision encoder; None for a text-only model.
        precision: What is computed in.
        kind: What computes.
        masked: Whether ONNX Runtime on a GPU is given graphs whose attention is under a mask, those for compilers.
    """
    scores = kind is EngineKind.PROCESSOR or (kind is EngineKind.ONNXRUNTIME_CUDA and masked)
    text = _text_scratch(architecture, capacity, precision, kind, scores=scores)
    vision = 0 if images is None else _vision_scratch(architecture, images, kind, scores=scores)
    return math.ceil(_ARENA * (text + vision)) if kind is EngineKind.ONNXRUNTIME_CUDA else max(text, vision)


def build_bytes(architecture: Architecture, precision: Precision, scratch: int) -> int:
    """What compiling takes at its peak, in the process that compiles.

    The parser holds the weights, the builder does, and then there is the plan. Text and vision are compiled one after
    the other. Measured with `make compile-8b`: 2.8 times the decoder's weights.

    Args:
        architecture: The model's.
        precision: What is compiled.
        scratch: Of one slot: the builder tries what it compiles.
    """
    text = sum(
        spec.nbytes
        for spec in _stored(architecture, quantized=precision.quantized)
        if not spec.name.startswith(_VISUAL)
    )
    return math.ceil(_BUILD_FACTOR * text) + scratch + overhead_bytes(EngineKind.TENSORRT)


def _text_scratch(
    architecture: Architecture, c: PackCapacity, precision: Precision, kind: EngineKind, *, scores: bool
) -> int:
    """Mask, activations and the rows to keep; and the scores, where attention is not one kernel."""
    text = architecture.text
    pairs = c.tokens * (c.known_rows + c.tokens)
    # Gate and up are float32 where their product is INT8; the residual stream and what is beside it always are.
    narrow = kind.on_gpu and precision.half and not precision.quantized
    gate_up = (2 if narrow else 4) * 2 * text.intermediate
    activations = c.tokens * (gate_up + 4 * (3 + c.taps) * text.hidden)
    kept = c.keep_rows * c.prefix_row_bytes
    if kind is EngineKind.TENSORRT:
        return pairs + activations + kept
    if not scores:
        return activations + kept
    width = np.dtype(c.product_dtype).itemsize
    return 4 * pairs + activations + kept + _SCORE_COPIES[kind] * width * text.heads * pairs


def _vision_scratch(architecture: Architecture, c: ImageCapacity, kind: EngineKind, *, scores: bool) -> int:
    """The same of the vision encoder, whose attention has no mask."""
    vision = architecture.vision
    assert vision is not None
    activations = 4 * c.patches * (2 * vision.intermediate + 6 * vision.hidden)
    features = 4 * c.hidden * (c.patches // c.merge) * c.outputs
    if not scores:
        return activations + features
    return activations + features + _SCORE_COPIES[kind] * 4 * vision.heads * c.patches**2


def _stored(architecture: Architecture, *, quantized: bool) -> Iterable[WeightSpec]:
    vision = architecture.vision
    specs = text_weights(architecture.text, vl=vision is not None)
    if vision is not None:
        specs += vision_weights(vision)
    for spec in specs:
        if quantized and spec.name == POSITION_TABLE:
            yield WeightSpec(spec.name, "F16", spec.shape)
        elif quantized and spec.dtype == "F16":
            yield WeightSpec(spec.name, "I8", spec.shape)
            yield WeightSpec(scale_name(spec.name), "F32", spec.shape[:1])
        else:
            yield spec


def _is_visual_matrix(spec: WeightSpec) -> bool:
    return spec.dtype == "I8" and spec.name.startswith(_VISUAL)
