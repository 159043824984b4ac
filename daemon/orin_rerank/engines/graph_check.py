"""Whether a graph is one that engines can feed, and refers to the weights that it means to.

A graph says of every weight at which bytes of the weight file it lies. Bytes that are somewhere else in the file are
numbers all the same, and a runtime multiplies by them, so each range is compared with the tensor that it is named for.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import onnx
from onnx import TensorProto

from orin_rerank.engines.bundle import WEIGHTS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from orin_rerank.graph.safetensors_header import TensorEntry

__all__ = ["graph_faults"]

_STORED: Final[dict[int, tuple[str, int]]] = {
    TensorProto.FLOAT: ("F32", 4),
    TensorProto.FLOAT16: ("F16", 2),
    TensorProto.INT8: ("I8", 1),
}


def graph_faults(path: Path, expected: onnx.ModelProto, weights: Mapping[str, TensorEntry]) -> Iterator[str]:
    """Finds what is wrong with a graph file, sentence by sentence.

    Args:
        path: The graph; the weight file lies beside it.
        expected: A graph with the inputs and outputs that engines give and take; only those are looked at.
        weights: What the weight file holds.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # noqa: BLE001 - protobuf raises classes of its own
        yield f"cannot be read as ONNX: {type(error).__name__}"
        return
    yield from _interface_faults("input", expected.graph.input, model.graph.input)
    yield from _interface_faults("output", expected.graph.output, model.graph.output)
    found = False
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL and (fault := _weight_fault(tensor, weights)):
            found = True
            yield f"weight {tensor.name}: {fault}"
    if not found:  # the checker says of a weight that lies elsewhere less than is said above
        try:
            onnx.checker.check_model(str(path))
        except onnx.checker.ValidationError as error:
            yield f"is no valid ONNX graph: {str(error).splitlines()[0]}"


def _interface_faults(
    what: str, expected: Iterable[onnx.ValueInfoProto], found: Iterable[onnx.ValueInfoProto]
) -> Iterator[str]:
    """What of a graph's inputs, or outputs, is not as engines expect it."""
    wanted, present = ({value.name: _kind(value) for value in values} for values in (expected, found))
    for name in wanted.keys() | present.keys():
        if name not in present:
            yield f"has no {what} {name}"
        elif name not in wanted:
            yield f"has an {what} {name} that no engine knows"
        elif wanted[name] != present[name]:
            yield f"{what} {name} is {present[name]}, not {wanted[name]}"


def _kind(value: onnx.ValueInfoProto) -> str:
    """Type and shape of an input or output, with `?` for what may be of any length."""
    kind = value.type.tensor_type
    sizes = [str(d.dim_value) if d.HasField("dim_value") else "?" for d in kind.shape.dim]
    return f"{TensorProto.DataType.Name(kind.elem_type).lower()} [{', '.join(sizes)}]"


def _weight_fault(tensor: onnx.TensorProto, weights: Mapping[str, TensorEntry]) -> str | None:
    """What is wrong with a reference to the weight file; its name lists the tensors that it spans."""
    where = {entry.key: entry.value for entry in tensor.external_data}
    if where.get("location") != WEIGHTS_FILE:
        return f"lies in {where.get('location')!r}, not in {WEIGHTS_FILE}"
    names = tensor.name.split("+")
    missing = [name for name in names if name not in weights]
    if missing:
        return f"{WEIGHTS_FILE} has no {missing[0]}"
    spanned = [weights[name] for name in names]
    dtype, width = _STORED.get(tensor.data_type, ("", 0))
    begin, end = _range(where)
    if any(entry.dtype != dtype for entry in spanned):
        return f"is {TensorProto.DataType.Name(tensor.data_type).lower()}, and {WEIGHTS_FILE} has {spanned[0].dtype}"
    if any(one.end != other.begin for one, other in pairwise(spanned)):
        return f"spans tensors that do not lie side by side in {WEIGHTS_FILE}"
    if (begin, end) != (spanned[0].begin, spanned[-1].end):
        return f"is bytes {begin} to {end}, and in {WEIGHTS_FILE} {spanned[0].begin} to {spanned[-1].end}"
    size = math.prod(tensor.dims) * width
    return None if size == end - begin else f"has the shape {list(tensor.dims)}, which {end - begin} bytes are not"


def _range(where: Mapping[str, str]) -> tuple[int, int]:
    """First byte and one past the last; an empty range where the graph gives no numbers."""
    try:
        begin, length = int(where["offset"]), int(where["length"])
    except (KeyError, ValueError):
        return 0, 0
    return begin, begin + length
