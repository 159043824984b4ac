"""Writes a model's pair of graphs, text and vision, as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from orin_rerank.engines.bundle import WEIGHTS_FILE, GraphEntry
from orin_rerank.graph.text import text_graph, text_weights
from orin_rerank.graph.vision import vision_graph, vision_weights
from orin_rerank.graph.weights import WeightFile

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.graph.builder import Dialect, Precision
    from orin_rerank.graph.product import ProductForm

__all__ = ["graph_pair", "model_weights", "write_graph_pair"]


def model_weights(architecture: Architecture, matrices: str) -> WeightFile:
    """Layout of the weight file of a full-precision model.

    Args:
        architecture: The model's.
        matrices: How embedding and projections are stored, F16 or F32.
    """
    vision = architecture.vision
    specs = text_weights(architecture.text, vl=vision is not None, matrices=matrices)
    if vision is not None:
        specs += vision_weights(vision, matrices=matrices)
    return WeightFile(WEIGHTS_FILE, specs)


def graph_pair(
    architecture: Architecture,
    weights: WeightFile,
    dialect: Dialect,
    precision: Precision,
    *,
    text_form: ProductForm | None = None,
    vision_form: ProductForm | None = None,
) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
    """The decoder graph of one dialect and precision, and the vision encoder graph where the model has one.

    `write_graph_pair` explains the arguments.
    """
    vision = architecture.vision
    text = text_graph(
        architecture.text,
        weights,
        vl=vision is not None,
        taps=0 if vision is None else len(vision.deepstack_layers),
        dialect=dialect,
        precision=precision,
        # A processor, for which the graphs without float16 are, loses more by cutting the product up than it gains.
        merged=precision.half,
        form=text_form,
    )
    if vision is None:
        return text, None
    return text, vision_graph(vision, weights, dialect=dialect, precision=precision, form=vision_form)


def write_graph_pair(
    out: Path,
    architecture: Architecture,
    weights: WeightFile,
    dialect: Dialect,
    precision: Precision,
    *,
    text_form: ProductForm | None = None,
    vision_form: ProductForm | None = None,
) -> GraphEntry:
    """Writes the graphs of one dialect and precision.

    Args:
        out: The folder; where the weight file lies in it, ONNX checks the graphs against it.
        architecture: The model's.
        weights: Layout of the weight file that the graphs refer to.
        dialect: Which operators to use.
        precision: What matrix products are computed in.
        text_form: How the decoder's products are written; None writes them as plain floating-point products.
        vision_form: The same for the vision encoder. A form holds one graph's state, so no two graphs share one.
    """
    suffix = f"{dialect.value}.{precision.value}.onnx"
    entry = GraphEntry(
        dialect, precision, f"text.{suffix}", None if architecture.vision is None else f"vision.{suffix}"
    )
    check = (out / weights.name).exists()
    text, vision = graph_pair(architecture, weights, dialect, precision, text_form=text_form, vision_form=vision_form)
    _save(text, out / entry.text, check=check)
    if vision is not None and entry.vision is not None:
        _save(vision, out / entry.vision, check=check)
    return entry


def _save(model: onnx.ModelProto, path: Path, *, check: bool) -> None:
    path.write_bytes(model.SerializeToString(deterministic=True))
    if check:
        onnx.checker.check_model(str(path))
