"""The product's graphs with the residual stream in float16: what they would be if nothing but products counted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import onnx
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["halve_residual"]

_RESIDUAL: Final = re.compile(r"(layers|blocks)\.\d+/((attention|mlp)/residual|deepstack)")


def halve_residual(graph: Path, out: Path) -> int:
    """Writes a graph in which every sum of the residual stream is rounded to float16, as an addition in it would.

    Args:
        graph: The product's, of the decoder or the vision encoder.
        out: Where to; in the graph's folder, since it refers to the weights there.

    Returns:
        How many sums are rounded.
    """
    model = onnx.load(str(graph), load_external_data=False)
    nodes = []
    rounded = 0
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type != "Add" or not _RESIDUAL.fullmatch(node.name):
            continue
        rounded += 1
        name = node.output[0]
        node.output[0], half, kept = (f"{name}/{stage}" for stage in ("exact", "half", "kept"))
        # Two casts that meet are removed by a runtime that has no addition in float16; flattening rows changes nothing.
        nodes.append(helper.make_node("Cast", [node.output[0]], [half], name=half, to=TensorProto.FLOAT16))
        nodes.append(helper.make_node("Flatten", [half], [kept], name=kept, axis=1))
        nodes.append(helper.make_node("Cast", [kept], [name], name=f"{name}/wide", to=TensorProto.FLOAT))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    out.write_bytes(model.SerializeToString(deterministic=True))
    return rounded
