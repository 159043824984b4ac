"""The decoder graph over a packed sequence.

Inputs, with S tokens, N documents, V rows of visual features, C rows of known prefixes and K rows to keep, all dynamic
(L is layers, G key heads, D head_dim, H hidden width):

====================  ======================  ===================================================================
`ids`                 int32 `[S]`             token ids
`cos`, `sin`          float32 `[S, D/2]`      rotary tables; both halves of a head turn alike
`prefix_id`           int32 `[S]`             which prefix the token belongs to
`document_id`         int32 `[S]`             which document it belongs to, 0 for a prefix
`visual_index`        int32 `[S]`             row of the visual features; 0 for a text token
`visual`              `[V, H]`                features that replace the embedding; row 0 is not read
`deepstack_0` ...     `[V, H]`                features added after decoder layer 0, 1, ...; row 0 must be zeros
`last`                int32 `[N]`             place of every document's last token
`known`               `[L, 2, C, G, D]`       keys and values of prefixes that an earlier run computed
`known_id`            int32 `[C]`             which prefix each of those rows belongs to; -1 for none
`keep`                int32 `[K]`             places of tokens whose keys and values to return
====================  ======================  ===================================================================

Outputs: `margin` float32 `[N]`, logit(yes) - logit(no); and `kept` `[L, 2, K, G, D]`, what `known` takes. What has no
type here is in the precision of the matrix products. A text-only model lacks the visual inputs.

A token sees its prefix, known or in the sequence, and the earlier tokens of its own document, itself included.
Residual stream, norms, rotary, softmax and head are float32; the other products are in the graph's precision. The last
layer computes queries, attention and feed-forward for the N last tokens only, since nothing else of it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import TensorProto

from orin_rerank.graph.attention import MASKED, Pages, fused_attention, primitive_attention
from orin_rerank.graph.builder import RUNTIME_DOMAIN, Dialect, GraphBuilder, Precision
from orin_rerank.graph.weights import MARGIN_ROW, WeightFile, WeightSpec

if TYPE_CHECKING:
    from orin_rerank.graph.architecture import TextArchitecture
    from orin_rerank.graph.product import ProductForm

__all__ = ["embedding_name", "text_graph", "text_weights"]


_NO_NORM: Final = 2.0**30
"""An epsilon beside which a mean square is nothing; its root is the largest power of two in float16."""


def _prefix(vl: bool) -> str:
    return "model.language_model." if vl else "model."


def embedding_name(*, vl: bool) -> str:
    """Name of the embedding in a checkpoint."""
    return f"{_prefix(vl)}embed_tokens.weight"


def text_weights(arch: TextArchitecture, *, vl: bool, matrices: str = "F16") -> list[WeightSpec]:
    """The decoder's tensors, in an order that puts projections of one input side by side.

    Args:
        arch: The decoder.
        vl: Whether the model takes images, and names its tensors accordingly.
        matrices: How embedding and projections are stored, F16 or F32.
    """
    p, h, d = _prefix(vl), arch.hidden, arch.head_dim
    specs = [WeightSpec(embedding_name(vl=vl), matrices, (arch.vocabulary, h))]
    for i in range(arch.layers):
        layer = f"{p}layers.{i}."
        specs += [
            WeightSpec(f"{layer}input_layernorm.weight", "F32", (h,)),
            WeightSpec(f"{layer}self_attn.q_proj.weight", matrices, (arch.heads * d, h)),
            WeightSpec(f"{layer}self_attn.k_proj.weight", matrices, (arch.kv_heads * d, h)),
            WeightSpec(f"{layer}self_attn.v_proj.weight", matrices, (arch.kv_heads * d, h)),
            WeightSpec(f"{layer}self_attn.q_norm.weight", "F32", (d,)),
            WeightSpec(f"{layer}self_attn.k_norm.weight", "F32", (d,)),
            WeightSpec(f"{layer}self_attn.o_proj.weight", matrices, (h, arch.heads * d)),
            WeightSpec(f"{layer}post_attention_layernorm.weight", "F32", (h,)),
            WeightSpec(f"{layer}mlp.gate_proj.weight", matrices, (arch.intermediate, h)),
            WeightSpec(f"{layer}mlp.up_proj.weight", matrices, (arch.intermediate, h)),
            WeightSpec(f"{layer}mlp.down_proj.weight", matrices, (h, arch.intermediate)),
        ]
    return [*specs, WeightSpec(f"{p}norm.weight", "F32", (h,)), WeightSpec(MARGIN_ROW, "F32", (h,))]


def text_graph(
    arch: TextArchitecture,
    weights: WeightFile,
    *,
    vl: bool,
    taps: int,
    dialect: Dialect,
    precision: Precision,
    merged: bool = True,
    form: ProductForm | None = None,
) -> onnx.ModelProto:
    """Writes the decoder graph.

    Args:
        arch: The decoder.
        weights: File that holds `text_weights(arch)`.
        vl: Whether the model takes images, and names its tensors accordingly.
        taps: Decoder layers that get visual features added.
        dialect: Which operators to use.
        precision: What matrix products are computed in.
        merged: Whether query, key and value, and gate and up, are one product each. Saves reading the input again,
            costs cutting the output up.
        form: How products are written; None writes them as plain floating-point products.
    """
    return _TextGraph(arch, GraphBuilder("text", weights, dialect, precision, form), vl, taps, merged).write()


@dataclass(slots=True)
class _TextGraph:
    arch: TextArchitecture
    b: GraphBuilder
    vl: bool
    taps: int
    merged: bool
    _known: str = ""
    _keep: str = ""
    _kept: list[str] = field(default_factory=list)
    _pages: Pages | None = None

    def write(self) -> onnx.ModelProto:
        b, arch = self.b, self.arch
        ids = b.input("ids", TensorProto.INT32, ["tokens"])
        half = arch.head_dim // 2
        cos = b.input("cos", TensorProto.FLOAT, ["tokens", half])
        sin = b.input("sin", TensorProto.FLOAT, ["tokens", half])
        if b.narrow:
            cos, sin = b.narrowed(cos), b.narrowed(sin)
        hidden = b.rows(embedding_name(vl=self.vl), ids, "embedding")
        deepstack: list[str] = []
        if self.vl:
            visual_index = b.input("visual_index", TensorProto.INT32, ["tokens"])
            hidden = self._insert_visual(hidden, visual_index)
            deepstack = [
                self._features(f"deepstack_{tap}", visual_index, f"deepstack/{tap}") for tap in range(self.taps)
            ]
        last = b.input("last", TensorProto.INT32, ["documents"])
        kind = b.precision.onnx_type
        known_shape: list[int | str] = [arch.layers, 2, "known", arch.kv_heads, arch.head_dim]
        self._known = b.input("known", kind, known_shape)
        self._keep = b.input("keep", TensorProto.INT32, ["keep"])
        mask = mask_of_last = ""
        if b.narrow:
            self._pages = Pages.declare(b, arch, last)
        else:
            prefix_id = b.input("prefix_id", TensorProto.INT32, ["tokens"])
            document_id = b.input("document_id", TensorProto.INT32, ["tokens"])
            known_id = b.input("known_id", TensorProto.INT32, ["known"])
            mask = self._mask(prefix_id, document_id, known_id)
            mask_of_last = self._mask(prefix_id, document_id, known_id, last)
        for i in range(arch.layers):
            final = i == arch.layers - 1
            rows, mask = (last, mask_of_last) if final else (None, mask)
            with b.scope(f"layers.{i}"):
                hidden = self._layer(i, hidden, (cos, sin), mask, rows)
                if i < self.taps and not final:  # a document's last token is text, to which no feature is added
                    hidden = b.op("Add", hidden, deepstack[i], name="deepstack")
        with b.scope("head"):
            normed = self._rms_norm(hidden, b.weight(f"{_prefix(self.vl)}norm.weight"))
            row = b.weight(MARGIN_ROW, shape=(arch.hidden, 1))
            margin = b.op("Squeeze", b.op("MatMul", normed, row), b.shape(1))
        b.output(margin, "margin", TensorProto.FLOAT, ["documents"])
        rows_kept = b.op("Concat", *self._kept, axis=0, name="all_kept")
        kept = b.op("Reshape", rows_kept, b.shape(arch.layers, 2, -1, arch.kv_heads, arch.head_dim))
        b.output(kept, "kept", kind, [arch.layers, 2, "keep", arch.kv_heads, arch.head_dim])
        return b.model()

    def _insert_visual(self, hidden: str, visual_index: str) -> str:
        b = self.b
        with b.scope("visual"):
            is_text = b.op("Unsqueeze", b.op("Equal", visual_index, b.constant(0, np.int32)), b.shape(1))
            return b.op("Where", is_text, hidden, self._features("visual", visual_index, "gather"), name="inserted")

    def _features(self, name: str, visual_index: str, label: str) -> str:
        """Every token's row, float32, of an input of visual features, which are in the precision of the products."""
        b = self.b
        rows = b.input(name, b.precision.onnx_type, ["visual", self.arch.hidden])
        return b.cast(b.op("Gather", rows, visual_index, axis=0, name=label), TensorProto.FLOAT)

    def _mask(self, prefix_id: str, document_id: str, known_id: str, rows: str | None = None) -> str:
        """Which columns a row's token sees: `[S, C + S]`; with `rows`, those rows of it.

        Boolean, a quarter of the memory: at 11,000 tokens 150 MB. For fused attention a float32 bias, 0 where it sees.
        """
        b = self.b
        with b.scope("mask" if rows is None else "mask_of_last"):
            tokens = b.op("Squeeze", b.op("Shape", prefix_id), b.shape(0))
            places = b.op("Range", b.constant(0, np.int64), tokens, b.constant(1, np.int64))
            # Of rows the ids are gathered, not the mask: a second reader would have a compiler store that twice.
            seeing = [places, prefix_id, document_id]
            if rows is not None:
                seeing = [b.op("Cast", rows, to=TensorProto.INT64)]
                seeing += [b.op("Gather", ids, rows, axis=0) for ids in (prefix_id, document_id)]
            row_place, row_prefix, row_document = (b.op("Unsqueeze", ids, b.shape(1)) for ids in seeing)
            place, prefix, document, known_prefix = (
                b.op("Unsqueeze", ids, b.shape(0)) for ids in (places, prefix_id, document_id, known_id)
            )
            earlier = b.op("LessOrEqual", place, row_place)
            same_prefix = b.op("Equal", prefix, row_prefix)
            same_document = b.op("Equal", document, row_document)
            in_prefix = b.op("Equal", document, b.constant(0, np.int32))
            seen = b.op("And", b.op("And", earlier, same_prefix), b.op("Or", in_prefix, same_document))
            every = b.op("Concat", b.op("Equal", known_prefix, row_prefix), seen, axis=1, name="seen")
            if b.dialect is Dialect.PRIMITIVE:
                return every
            masked = b.constant(MASKED[b.precision.onnx_type], np.float32)
            return b.op("Where", every, b.constant(0.0, np.float32), masked, name="bias")

    def _layer(self, i: int, hidden: str, rotary: tuple[str, str], mask: str, rows: str | None) -> str:
        """One decoder layer; with `rows`, only those rows of it."""
        b = self.b
        name = f"{_prefix(self.vl)}layers.{i}."
        with b.scope("attention"):
            normed = b.narrowed(self._rms_norm(hidden, b.weight(f"{name}input_layernorm.weight")))
            attended = self._attention(i, normed, rotary, mask, rows)
            output = b.linear(attended, f"{name}self_attn.o_proj.weight", place=f"layers.{i}.output", name="output")
            residual = hidden if rows is None else b.op("Gather", hidden, rows, axis=0)
            hidden = b.op("Add", residual, b.widened(output), name="residual")
        with b.scope("mlp"):
            normed = b.narrowed(self._rms_norm(hidden, b.weight(f"{name}post_attention_layernorm.weight")))
            wide = self.arch.intermediate
            widths = {f"{name}mlp.gate_proj.weight": wide, f"{name}mlp.up_proj.weight": wide}
            # Cutting up what is that wide costs more than a second product, and either product fills a GPU.
            gate, up = self._project(normed, widths, f"layers.{i}.gate_up", "gate_up", merged=not b.narrow)
            gated = self._gated(gate, up)
            down = b.linear(gated, f"{name}mlp.down_proj.weight", place=f"layers.{i}.down", name="down")
            return b.op("Add", hidden, b.widened(down), name="residual")

    def _gated(self, gate: str, up: str) -> str:
        """`silu(gate) * up`."""
        b = self.b
        if not b.narrow:
            return b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), up, name="gated")
        # One operator that computes this in float32: an RMS norm of `up`, with so large an epsilon that nothing is
        # normed. Of a row whose root mean square is 700 it takes off as much as rounding to float16 does.
        gain = b.constant(np.full(self.arch.intermediate, _NO_NORM**0.5), np.float16)
        return b.op(
            "GatedRMSNorm",
            *(up, gain, gate),
            domain=RUNTIME_DOMAIN,
            epsilon=_NO_NORM,
            activation="silu",
            name="gated",
        )

    def _attention(self, i: int, normed: str, rotary: tuple[str, str], mask: str, rows: str | None) -> str:
        """Attention of `normed` `[S, H]` to itself; returns `[rows, heads * head_dim]`."""
        b, arch = self.b, self.arch
        name = f"{_prefix(self.vl)}layers.{i}.self_attn."
        nq, nkv = arch.heads, arch.kv_heads
        cos, sin = rotary
        names = {
            f"{name}{part}_proj.weight": count * arch.head_dim
            for part, count in zip("qkv", (nq, nkv, nkv), strict=True)
        }
        place = f"layers.{i}.qkv"
        if rows is None:
            query, key, value = self._project(normed, names, place, "qkv")
            query_cos, query_sin = cos, sin
        else:
            query_weight = next(iter(names))
            del names[query_weight]
            key, value = self._project(normed, names, place, "kv")
            chosen = b.op("Gather", normed, rows, axis=0)
            query = b.linear(chosen, query_weight, place=place, name="query")
            query_cos, query_sin = (b.op("Gather", x, rows, axis=0) for x in (cos, sin))
        query = self._heads(query, nq, f"{name}q_norm.weight", query_cos, query_sin)
        key = self._heads(key, nkv, f"{name}k_norm.weight", cos, sin)
        kind = b.precision.onnx_type
        value = b.op("Unsqueeze", value, b.shape(0))
        if self._pages is not None:
            return self._pages.attend(query, key, value, self._with_known(i, key, value), last=rows is not None)
        key, value = self._with_known(i, b.cast(key, kind), b.cast(value, kind))
        attend = fused_attention if b.dialect is Dialect.FUSED else primitive_attention
        return attend(b, arch, query, key, value, mask)

    def _project(self, value: str, widths: dict[str, int], place: str, name: str, *, merged: bool = True) -> list[str]:
        """Products of `value` with several weights that lie side by side, given with their output widths."""
        b = self.b
        if not (self.merged and merged):
            return [b.linear(value, weight, place=place, name=name) for weight in widths]
        product = b.linear(value, *widths, place=place, name=name)
        return b.split(product, *widths.values())

    def _with_known(self, i: int, key: str, value: str) -> tuple[str, str]:
        """Puts the rows of known prefixes before those of the sequence, and notes what is to be kept of these.

        Keys and values are `[1, rows, kv_heads * head_dim]`.
        """
        b = self.b
        with b.scope("known"):
            joined = []
            for which, new in enumerate((key, value)):
                self._kept.append(b.op("Gather", new, self._keep, axis=1))
                # Sliced from the input itself, which a compiler reads in place; of a reshaped one it copies all layers.
                row = b.op("Slice", self._known, b.shape(i, which), b.shape(i + 1, which + 1), b.shape(0, 1))
                known = b.op("Reshape", row, b.shape(1, -1, self.arch.kv_heads * self.arch.head_dim))
                joined.append(b.op("Concat", known, new, axis=1))
        return joined[0], joined[1]

    def _heads(self, value: str, heads: int, norm: str, cos: str, sin: str) -> str:
        """Norms each head of `[rows, heads * D]` and turns it by its row's angles; returns `[1, rows, heads * D]`.

        The first half of a head turns against the second.
        """
        b, d = self.b, self.arch.head_dim
        gain = b.weight(norm, to=b.precision.onnx_type if b.narrow else None)
        normed = self._rms_norm(b.op("Reshape", value, b.shape(-1, heads, d)), gain)
        with b.scope("rotary"):
            if b.dialect is Dialect.FUSED:
                flat = b.op("Reshape", normed, b.shape(1, -1, heads * d))
                c, s = (b.op("Unsqueeze", x, b.shape(0)) for x in (cos, sin))
                return b.op("RotaryEmbedding", flat, c, s, num_heads=heads, name="fused")
            c, s = (b.op("Unsqueeze", x, b.shape(1)) for x in (cos, sin))
            first, second = b.ops("Split", 2, normed, b.shape(d // 2, d // 2), axis=2)
            turned_first = b.op("Sub", b.op("Mul", first, c), b.op("Mul", second, s))
            turned_second = b.op("Add", b.op("Mul", second, c), b.op("Mul", first, s))
            return b.op("Reshape", b.op("Concat", turned_first, turned_second, axis=2), b.shape(1, -1, heads * d))

    def _rms_norm(self, value: str, weight: str) -> str:
        b, eps = self.b, self.arch.rms_norm_eps
        if b.dialect is Dialect.FUSED:
            return b.op("RMSNormalization", value, weight, axis=-1, epsilon=eps, name="norm")
        with b.scope("norm"):
            mean = b.op("ReduceMean", b.op("Mul", value, value), axes=[-1], keepdims=1)
            root = b.op("Sqrt", b.op("Add", mean, b.constant(eps, np.float32)))
            return b.op("Mul", b.op("Div", value, root), weight)
