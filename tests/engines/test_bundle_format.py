"""What format 2 of bundles promises: a bundle that was written once can be read by every later version that knows it.

A failure here means that bundles on people's disks would be read wrongly, or not at all: raise `bundle.FORMAT`, say in
docs/bundle.md what is new, and only then change what is below.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from orin_rerank.engines.bundle import FORMAT
from orin_rerank.engines.graph_files import graph_pair, model_weights
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.weights import MARGIN_ROW
from orin_rerank.lifecycle.published import MODELS

DOCUMENT = Path(__file__).parents[2] / "docs" / "bundle.md"
VL, TEXT = (MODELS[key].size.architecture for key in ("vl-2b", "0.6b"))

COMMON = {"ids": "int32 1", "cos": "float 2", "sin": "float 2", "last": "int32 1", "keep": "int32 1"}
FEATURES = ("visual", "deepstack_0", "deepstack_1", "deepstack_2")
MASKED = {"prefix_id": "int32 1", "document_id": "int32 1", "known_id": "int32 1"}
PAGED = {
    "segment_begin": "int32 1",
    "segment_past": "int32 1",
    "page_row": "int32 1",
    "page_table": "int32 2",
    "page_slot": "int32 1",
    "longest": "int32 1",
    "document_segment": "int32 1",
    "document_past": "int32 1",
    "document_begin": "int32 1",
}
VISION = {
    "patches": "float 2",
    "position_index": "int32 2",
    "position_weight": "float 2",
    "cos": "float 2",
    "sin": "float 2",
}


def interface(values) -> dict[str, str]:
    """Type and number of dimensions of each input or output."""
    kinds = {value.name: value.type.tensor_type for value in values}
    return {
        name: f"{onnx.TensorProto.DataType.Name(kind.elem_type).lower()} {len(kind.shape.dim)}"
        for name, kind in kinds.items()
    }


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("architecture", [VL, TEXT], ids=["vl", "text"])
def test_graphs_have_the_inputs_and_outputs_of_format_2(architecture, dialect: Dialect, precision: Precision) -> None:
    assert FORMAT == 2
    text, vision = graph_pair(architecture, model_weights(architecture, "F16"), dialect, precision)
    products = "float16" if precision.half else "float"
    paged = (dialect, precision) == (Dialect.FUSED, Precision.FP16)
    features = {"visual_index": "int32 1", **dict.fromkeys(FEATURES, f"{products} 2")}
    images = {} if architecture.vision is None else features
    expected = COMMON | images | (PAGED if paged else MASKED) | {"known": f"{products} 5"}
    assert interface(text.graph.input) == expected
    assert interface(text.graph.output) == {"margin": "float 1", "kept": f"{products} 5"}
    assert (vision is None) == (architecture.vision is None)
    if vision is not None:
        assert interface(vision.graph.input) == VISION
        assert interface(vision.graph.output) == {"features": f"{products} 3"}


def test_weights_of_format_2() -> None:
    specs = {spec.name: spec for spec in model_weights(VL, "F16").specs}
    assert (specs[MARGIN_ROW].dtype, specs[MARGIN_ROW].shape) == ("F32", (2048,))
    assert specs["model.language_model.embed_tokens.weight"].dtype == "F16"
    assert specs["model.language_model.norm.weight"].dtype == "F32"
    assert specs["model.visual.pos_embed.weight"].dtype == "F32"


def test_the_document_names_every_input_and_output() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    names = {*COMMON, *FEATURES[:-1], *MASKED, *PAGED, *VISION, "visual_index", "known", "margin", "kept", "features"}
    for name in names | {MARGIN_ROW}:
        assert f"`{name}`" in text
    for kind in (*Dialect, *Precision):
        assert f"`{kind.value}`" in text
