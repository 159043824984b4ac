"""What stands for a compiled graph: JSON that names the ONNX graph to run, its inputs, outputs and profiles."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from orin_rerank.engines.tensorrt.profiles import ShapeProfile

__all__ = ["KINDS", "coarsened", "plan_text", "write_plan"]

KINDS = {
    TensorProto.FLOAT: "FLOAT",
    TensorProto.FLOAT16: "HALF",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.INT8: "INT8",
}


def write_plan(
    path: Path,
    graph: Path,
    profiles: Sequence[ShapeProfile],
    *,
    scratch: Sequence[int] | None = None,
    weights: Path | None = None,
    model: bytes | None = None,
) -> Path:
    """Writes what stands for a compiled graph.

    Args:
        path: Where to.
        graph: The ONNX graph.
        profiles: For which sizes.
        scratch: Bytes of scratch memory that each profile needs.
        weights: Folder of the weight file, where it does not lie beside the graph.
        model: What is run in place of the graph, with its inputs and outputs; by what a wrong compiler makes of it.
    """
    inputs = _tensors(onnx.load(graph, load_external_data=False).graph.input)
    shapes = [{name: p.shapes(spec["shape"]) for name, spec in inputs.items()} for p in profiles]
    path.write_text(plan_text(graph, shapes, scratch=scratch, weights=weights, model=model))
    return path


def plan_text(
    graph: Path,
    profiles: Sequence[Mapping[str, Any]],
    *,
    scratch: Sequence[int] | None = None,
    weights: Path | None = None,
    model: bytes | None = None,
    **more: object,
) -> str:
    """The same as text, of profiles that have the least, usual and largest shape of every input."""
    found = onnx.load(graph, load_external_data=False).graph
    return json.dumps(
        {
            "graph": str(graph),
            "weights": None if weights is None and model is None else str(weights or graph.parent),
            "model": None if model is None else base64.b64encode(model).decode(),
            "inputs": _tensors(found.input),
            "outputs": _tensors(found.output),
            "profiles": profiles,
            "scratch": list(scratch or [1 << (10 + i) for i in range(len(profiles))]),
            **more,
        }
    )


def coarsened(graph: Path, factor: float) -> bytes:
    """The graph as a compiler might get it wrong: every step by which activations are rounded is this much larger.

    One that rounds nothing stays what it is.
    """
    model = onnx.load(graph, load_external_data=False)
    steps = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    for tensor in model.graph.initializer:
        if tensor.name in steps:
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array((values * factor).astype(values.dtype), tensor.name))
    contents: bytes = model.SerializeToString()
    return contents


def _tensors(values: Sequence[onnx.ValueInfoProto]) -> dict[str, Any]:
    return {
        v.name: {
            "kind": KINDS[v.type.tensor_type.elem_type],
            "shape": [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim],
        }
        for v in values
    }
