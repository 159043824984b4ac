"""Models of any size with random weights: to compile, where it matters what a graph is and not what it computes."""

from __future__ import annotations

import dataclasses
import math
import zlib
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.engines.graph_files import model_weights, write_graph_pair
from orin_rerank.graph.architecture import Architecture
from orin_rerank.graph.places import Place, model_places
from orin_rerank.graph.quantized import QuantizedForm
from orin_rerank.graph.scheme import ROW_SCALE, Mode, PlaceScheme, Scheme
from orin_rerank.lifecycle.published import MODELS
from orin_rerank.quantization.write import quantized_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from orin_rerank.engines.bundle import GraphEntry
    from orin_rerank.graph.builder import Dialect, Precision
    from orin_rerank.graph.weights import WeightSpec

VL_2B, VL_8B, QWEN3_06B, QWEN3_4B, QWEN3_8B = (
    MODELS[key].size.architecture for key in ("vl-2b", "vl-8b", "0.6b", "4b", "8b")
)
_BLOCK = 1 << 20


def cut(architecture: Architecture, *, layers: int, vocabulary: int) -> Architecture:
    """The same widths with fewer layers, one of them tapped, and fewer rows of the embedding."""
    assert architecture.vision is not None
    return Architecture(
        dataclasses.replace(architecture.text, layers=layers, vocabulary=vocabulary),
        dataclasses.replace(architecture.vision, layers=layers, deepstack_layers=(0,)),
    )


def all_int8(architecture: Architecture) -> Scheme:
    """Every place INT8, the embedding stored so, and rows with steps of their own where those are used."""

    def scheme(place: Place) -> PlaceScheme:
        if place.name.endswith(".down"):
            return PlaceScheme(Mode.INT8, ROW_SCALE, by_row=True)
        return PlaceScheme(Mode.INT8, 0.05)

    return Scheme({place.name: scheme(place) for place in model_places(architecture)}, embedding=True)


class RandomTensors:
    """Finite random numbers: one block again and again, which every tensor begins elsewhere.

    A compiler keeps equal tensors once, so no two may be equal.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        self._numbers = rng.standard_normal(_BLOCK, dtype=np.float32) * np.float32(0.02)
        self._codes = rng.integers(-127, 128, _BLOCK, dtype=np.int8)

    def pieces(self, spec: WeightSpec) -> Iterator[np.ndarray]:
        block = self._codes if spec.dtype == "I8" else self._numbers
        if spec.name.endswith(".scale"):
            block = np.abs(block) / 100 + np.float32(1e-6)
        block = np.roll(block, zlib.crc32(spec.name.encode()) % _BLOCK)
        for begin in range(0, math.prod(spec.shape), _BLOCK):
            yield block[: math.prod(spec.shape) - begin]


def write_random_model(
    folder: Path, architecture: Architecture, precision: Precision, dialects: Sequence[Dialect]
) -> list[GraphEntry]:
    """Writes weights and graphs of one precision, INT8 wherever that can be."""
    folder.mkdir(parents=True, exist_ok=True)
    scheme = all_int8(architecture)
    quantized = precision.quantized
    weights = quantized_layout(architecture, scheme) if quantized else model_weights(architecture, "F16")
    weights.write(folder, RandomTensors(), lambda _done, _total: None)

    def form() -> QuantizedForm | None:
        return QuantizedForm(scheme) if quantized else None

    return [
        write_graph_pair(folder, architecture, weights, dialect, precision, text_form=form(), vision_form=form())
        for dialect in dialects
    ]
