"""How the decoder's queries meet its keys: three ways to write one attention.

A token sees its prefix, known or in the sequence, and the earlier tokens of its own document, itself included.
Compilers and processors are given all scores under a mask, `[S, C + S]`. ONNX Runtime on a GPU has an operator that
computes, of a packed sequence, the scores that count and no others (docs/decisions/0010-fused-float16.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import TensorProto

from orin_rerank.graph.builder import RUNTIME_DOMAIN

if TYPE_CHECKING:
    from orin_rerank.graph.architecture import TextArchitecture
    from orin_rerank.graph.builder import GraphBuilder

__all__ = ["MASKED", "Pages", "fused_attention", "page_rows", "primitive_attention"]

MASKED: Final[dict[int, float]] = {TensorProto.FLOAT: -1e30, TensorProto.FLOAT16: -3e4}
"""By the type of the products, what a score becomes that may not count, or what is added to it: finite in that type, so
that no arithmetic on it gives NaN, and exp() of it is 0. With float16's infinity a runtime's attention gave NaN."""


def primitive_attention(b: GraphBuilder, arch: TextArchitecture, query: str, key: str, value: str, mask: str) -> str:
    """`[1, heads, rows, D]` by `[1, heads, D, C + S]`, the form that TensorRT makes one kernel of.

    That kernel keeps no scores. For 8 key heads with 4 query heads each, stacked so that nothing is repeated, it is
    three: at 5,120 tokens the scores take 5 GB, and from 11,000 on they have more elements than a kernel can count
    (docs/decisions/0012-attention-in-one-kernel.md).
    """
    kind = b.precision.onnx_type
    scaled = b.op("Mul", query, b.constant(arch.head_dim**-0.5, np.float32))
    queries = _split_heads(b, arch, b.cast(scaled, kind), arch.heads, [0, 2, 1, 3])
    keys = _split_heads(b, arch, key, arch.kv_heads, [0, 2, 3, 1])
    values = _split_heads(b, arch, value, arch.kv_heads, [0, 2, 1, 3])
    scores = b.cast(b.op("MatMul", queries, keys, name="scores"), TensorProto.FLOAT)
    seen = b.op("Unsqueeze", mask, b.shape(0, 1))
    masked = b.op("Where", seen, scores, b.constant(MASKED[kind], np.float32))
    weights = b.cast(b.op("Softmax", masked, axis=-1), kind)
    mixed = b.cast(b.op("MatMul", weights, values, name="mixed"), TensorProto.FLOAT)
    return b.op("Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]), b.shape(-1, arch.heads * arch.head_dim))


def _split_heads(b: GraphBuilder, arch: TextArchitecture, value: str, heads: int, perm: list[int]) -> str:
    """`[1, rows, heads * D]` as `[1, rows, query heads, D]`, a head for each that shares it; then permuted."""
    if heads != arch.heads:
        apart = b.op("Reshape", value, b.shape(1, -1, heads, 1, arch.head_dim))
        value = b.op("Expand", apart, b.shape(1, 1, 1, arch.heads // heads, 1))
    return b.op("Transpose", b.op("Reshape", value, b.shape(1, -1, arch.heads, arch.head_dim)), perm=perm)


def fused_attention(b: GraphBuilder, arch: TextArchitecture, query: str, key: str, value: str, bias: str) -> str:
    """As one operator, which takes a bias to add to scores."""
    kind = b.precision.onnx_type
    attributes: dict[str, Any] = {
        "scale": arch.head_dim**-0.5,
        "softmax_precision": int(TensorProto.FLOAT),
        "name": "fused",
    }
    if not b.precision.half:
        counts: dict[str, Any] = {"q_num_heads": arch.heads, "kv_num_heads": arch.kv_heads}
        return b.op("Squeeze", b.op("Attention", query, key, value, bias, **counts, **attributes), b.shape(0))
    # Given flat float16 rows whose heads share keys, ONNX Runtime 1.23 reads memory that nobody wrote.
    heads = [
        b.op("Transpose", b.op("Reshape", x, b.shape(1, -1, count, arch.head_dim)), perm=[0, 2, 1, 3])
        for x, count in ((b.cast(query, kind), arch.heads), (key, arch.kv_heads), (value, arch.kv_heads))
    ]
    mixed = b.cast(b.op("Attention", *heads, b.cast(bias, kind), **attributes), TensorProto.FLOAT)
    rows = b.op("Transpose", mixed, perm=[0, 2, 1, 3])
    return b.op("Reshape", rows, b.shape(-1, arch.heads * arch.head_dim))


def page_rows(head_dim: int) -> int:
    """Rows of one page of keys: as many as a tile of the flash kernel takes, which may not straddle two pages."""
    return 256 if head_dim <= 64 else 128


@dataclass(frozen=True, slots=True)
class Pages:
    """Attention over pages of keys, and the inputs that say where those of every segment lie.

    A segment is a prefix that the sequence holds, or a document; B of them in the sequence's order.

    ======================  =================  ================================================================
    `segment_begin`         int32 `[B + 1]`    where each segment begins in the sequence, and where the last ends
    `segment_past`          int32 `[B]`        rows that a segment sees before its own: its prefix's
    `page_row`              int32 `[R]`        the pages, row by row: a known row, or C + a place in the sequence
    `page_table`            int32 `[B, M]`     which pages a segment's rows are, its prefix's first
    `page_slot`             int32 `[S]`        -1 throughout: no row is to be written to a page
    `longest`               int32 `[2]`        most tokens of a segment, and most rows that one sees
    `document_segment`      int32 `[N]`        which segment each document is
    `document_past`         int32 `[N]`        rows that its last token sees before itself
    `document_begin`        int32 `[N + 1]`    0, 1, ..., N
    ======================  =================  ================================================================
    """

    b: GraphBuilder
    arch: TextArchitecture
    last: str

    @classmethod
    def declare(cls, b: GraphBuilder, arch: TextArchitecture, last: str) -> Pages:
        """Adds the inputs.

        Args:
            b: Of the graph.
            arch: The decoder.
            last: int32 `[N]`, place of every document's last token.
        """
        for name, *shape in (
            ("segment_begin", "segments + 1"),
            ("segment_past", "segments"),
            ("page_row", "page_rows"),
            ("page_table", "segments", "pages"),
            ("page_slot", "tokens"),
            ("longest", 2),
            ("document_segment", "documents"),
            ("document_past", "documents"),
            ("document_begin", "documents + 1"),
        ):
            b.input(name, TensorProto.INT32, shape)
        return cls(b, arch, last)

    def attend(self, query: str, key: str, value: str, joined: tuple[str, str], *, last: bool) -> str:
        """`[rows, heads * D]`, of every token or of the documents' last ones.

        Args:
            query: `[1, rows, heads * D]`.
            key: `[1, S, kv_heads * D]`.
            value: Likewise.
            joined: Keys and values with those of known prefixes before them, `[1, C + S, kv_heads * D]`.
            last: Whether the queries are the last tokens'.
        """
        b, arch = self.b, self.arch
        pages = [
            b.op(
                "Reshape",
                b.op("Gather", rows, "page_row", axis=1),
                b.shape(-1, page_rows(arch.head_dim), arch.kv_heads, arch.head_dim),
                name="pages",
            )
            for rows in joined
        ]
        # The operator would write new rows to the pages, where they lie already; it wants as many as there are queries.
        begin, past, table, slot, longest = "segment_begin", "segment_past", "page_table", "page_slot", "longest"
        if last:
            key, value = (b.op("Gather", x, self.last, axis=1) for x in (key, value))
            table = b.op("Gather", table, "document_segment", axis=0)
            slot = b.op("Gather", slot, self.last, axis=0)
            begin, past, longest = "document_begin", "document_past", ""
        rows = [
            b.op("Reshape", x, b.shape(-1, heads * arch.head_dim))
            for x, heads in ((query, arch.heads), (key, arch.kv_heads), (value, arch.kv_heads))
        ]
        absent = [""] * 5  # sinks, norms and scales, which are written elsewhere or not used
        return b.op(
            "PagedAttention",
            *(*rows, *pages, begin, past, table, "", "", slot, *absent, longest),
            domain=RUNTIME_DOMAIN,
            num_heads=arch.heads,
            kv_num_heads=arch.kv_heads,
            scale=arch.head_dim**-0.5,
            name="paged",
        )
