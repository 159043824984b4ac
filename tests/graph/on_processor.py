"""Graphs for a GPU as a processor can run them: what ONNX Runtime has for GPUs only becomes functions of ONNX's own."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from orin_rerank.graph.builder import RUNTIME_DOMAIN

_DOMAIN = "test"
_PAGED_INPUTS = (0, 3, 4, 5, 6, 7)  # neither new keys and values, which are in the pages, nor what it does without

_PAGED = f"""
<opset_import: ["" : 23], domain: "{_DOMAIN}">
PagedAttention <num_heads: int, kv_num_heads: int, scale: float>
  (query, key_pages, value_pages, begin, past, table) => (output)
{{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    axis0 = Constant <value = int64[1] {{0}}> ()
    axis1 = Constant <value = int64[1] {{1}}> ()
    axis2 = Constant <value = int64[1] {{2}}> ()
    all = Constant <value = int64[1] {{-1}}> ()
    query_heads = Constant <value_int: int = @num_heads> ()
    key_heads = Constant <value_int: int = @kv_num_heads> ()
    width = Shape <start = 3, end = 4> (key_pages)
    size = Shape <start = 1, end = 2> (key_pages)

    tokens_ = Shape <start = 0, end = 1> (query)
    tokens = Squeeze (tokens_)
    place = Range (zero, tokens, one)
    begins = Cast <to = 7> (begin)
    pasts = Cast <to = 7> (past)
    tables = Cast <to = 7> (table)
    far = Constant <value = int64[1] {{9223372036854775807}}> ()
    ends = Slice (begins, axis1, far, axis0)
    ends_column = Unsqueeze (ends, axis1)
    place_row = Unsqueeze (place, axis0)
    ended = LessOrEqual (ends_column, place_row)
    ended_count = Cast <to = 7> (ended)
    segment = ReduceSum <keepdims = 0> (ended_count, axis0)
    begin_of = Gather (begins, segment)
    past_of = Gather (pasts, segment)
    within = Sub (place, begin_of)
    position = Add (past_of, within)

    size_ = Squeeze (size)
    row_in_page = Range (zero, size_, one)
    page_column = Unsqueeze (tables, axis2)
    page_begin = Mul (page_column, size_)
    page_rows = Add (page_begin, row_in_page)
    flat = Constant <value = int64[2] {{0, -1}}> ()
    rows_of_segment = Reshape (page_rows, flat)
    rows = Gather (rows_of_segment, segment)
    columns_ = Shape <start = 1, end = 2> (rows)
    columns = Squeeze (columns_)
    column = Range (zero, columns, one)
    position_column = Unsqueeze (position, axis1)
    seen = LessOrEqual (column, position_column)

    key_heads_ = Reshape (key_heads, axis1)
    query_heads_ = Reshape (query_heads, axis1)
    group = Div (query_heads_, key_heads_)
    by_row = Concat <axis = 0> (all, key_heads_, width)
    keys_ = Reshape (key_pages, by_row)
    values_ = Reshape (value_pages, by_row)
    keys_wide = Cast <to = 1> (keys_)
    values_wide = Cast <to = 1> (values_)
    keys = Gather (keys_wide, rows)
    values = Gather (values_wide, rows)
    by_head = Concat <axis = 0> (all, key_heads_, group, width)
    queries_ = Reshape (query, by_head)
    queries = Cast <to = 1> (queries_)
    products = Einsum <equation = "sgrd,sjgd->sgrj"> (queries, keys)
    factor = Constant <value_float: float = @scale> ()
    scores = Mul (products, factor)
    low = Constant <value = float {{-1e30}}> ()
    both = Constant <value = int64[2] {{1, 2}}> ()
    seen_ = Unsqueeze (seen, both)
    masked = Where (seen_, scores, low)
    weights = Softmax <axis = -1> (masked)
    mixed = Einsum <equation = "sgrj,sjgd->sgrd"> (weights, values)
    by_token = Constant <value = int64[2] {{0, -1}}> ()
    joined = Reshape (mixed, by_token)
    output = Cast <to = 10> (joined)
}}
"""

_GATED = f"""
<opset_import: ["" : 23], domain: "{_DOMAIN}">
GatedRMSNorm <epsilon: float> (value, gain, gate) => (output)
{{
    axis = Constant <value = int64[1] {{-1}}> ()
    least = Constant <value_float: float = @epsilon> ()
    wide = Cast <to = 1> (value)
    squares = Mul (wide, wide)
    mean = ReduceMean (squares, axis)
    sum = Add (mean, least)
    root = Sqrt (sum)
    normed = Div (wide, root)
    gain_ = Cast <to = 1> (gain)
    scaled = Mul (normed, gain_)
    gate_ = Cast <to = 1> (gate)
    share = Sigmoid (gate_)
    open = Mul (gate_, share)
    product = Mul (scaled, open)
    output = Cast <to = 10> (product)
}}
"""

_SKIP_NORM = f"""
<opset_import: ["" : 23], domain: "{_DOMAIN}">
SkipLayerNormalization <epsilon: float> (value, skip, gain, shift, bias) => (output, mean, inverse, sum)
{{
    biased = Add (value, bias)
    sum = Add (biased, skip)
    output, mean, inverse = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gain, shift)
}}
"""

_FUNCTIONS = {"PagedAttention": _PAGED, "GatedRMSNorm": _GATED, "SkipLayerNormalization": _SKIP_NORM}


def on_processor(graph: Path, folder: Path) -> Path:
    """Writes such a form of a graph into a folder, where it needs one; its weights stay where they are."""
    model = onnx.load(graph, load_external_data=False)
    changed = with_functions(model)
    if not changed.functions:
        return graph
    target = folder / graph.name
    target.write_bytes(changed.SerializeToString())
    return target


def with_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model that takes those operators from functions of its own."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    used = set()
    for node in changed.graph.node:
        if node.domain == RUNTIME_DOMAIN and node.op_type in _FUNCTIONS:
            used.add(node.op_type)
            node.domain = _DOMAIN
            if node.op_type == "PagedAttention":
                inputs = [node.input[i] for i in _PAGED_INPUTS]
                del node.input[:]
                node.input.extend(inputs)
            else:
                kept = [attribute for attribute in node.attribute if attribute.name == "epsilon"]
                del node.attribute[:]
                node.attribute.extend(kept)
    changed.functions.extend(onnx.parser.parse_function(_FUNCTIONS[name]) for name in sorted(used))
    if used:
        changed.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return changed
