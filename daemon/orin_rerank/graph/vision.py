"""The vision encoder graph, over one or several images of one grid.

Inputs, with B images of P patches each, both dynamic:

=================  ===========================  ==================================================================
`patches`          float32 `[B * P, values]`    normalised pixels, image after image, patches in merge-block order
`position_index`   int32 `[P, 4]`               rows of the learned position table around each patch
`position_weight`  float32 `[P, 4]`             their bilinear weights
`cos`, `sin`       float32 `[P, D/2]`           rotary tables; D is head_dim, and both halves of a head turn alike
=================  ===========================  ==================================================================

Output: `features` `[1 + taps, B * P / merge**2, out_hidden]`, in the precision of the matrix products, as the decoder
takes them; first what replaces the token embeddings, then what is added after decoder layer 0, 1, ...

Attention is full within an image and never crosses images. The patch embedding is one matrix product, since patches do
not overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import TensorProto

from orin_rerank.graph.builder import RUNTIME_DOMAIN, Dialect, GraphBuilder, Precision
from orin_rerank.graph.weights import WeightFile, WeightSpec

if TYPE_CHECKING:
    from orin_rerank.graph.architecture import VisionArchitecture
    from orin_rerank.graph.product import ProductForm

__all__ = ["POSITION_TABLE", "vision_graph", "vision_weights"]

_P: Final = "model.visual."
POSITION_TABLE: Final = f"{_P}pos_embed.weight"
"""Name of the learned position table, float32 `[positions, hidden]` in a full-precision model."""
_LAYER_NORM_EPS: Final = 1e-6


def _merger(name: str, norm_width: int, arch: VisionArchitecture, matrices: str) -> list[WeightSpec]:
    wide = arch.hidden * arch.merge_size**2
    return [
        WeightSpec(f"{name}.norm.weight", "F32", (norm_width,)),
        WeightSpec(f"{name}.norm.bias", "F32", (norm_width,)),
        WeightSpec(f"{name}.linear_fc1.weight", matrices, (wide, wide)),
        WeightSpec(f"{name}.linear_fc1.bias", "F32", (wide,)),
        WeightSpec(f"{name}.linear_fc2.weight", matrices, (arch.out_hidden, wide)),
        WeightSpec(f"{name}.linear_fc2.bias", "F32", (arch.out_hidden,)),
    ]


def vision_weights(arch: VisionArchitecture, *, matrices: str = "F16") -> list[WeightSpec]:
    """The vision encoder's tensors, in the order in which the graph uses them.

    Args:
        arch: The encoder.
        matrices: How projections are stored, F16 or F32.
    """
    h, p = arch.hidden, arch.patch_size
    specs = [
        WeightSpec(f"{_P}patch_embed.proj.weight", matrices, (h, arch.channels, arch.temporal_patch_size, p, p)),
        WeightSpec(f"{_P}patch_embed.proj.bias", "F32", (h,)),
        WeightSpec(POSITION_TABLE, "F32", (arch.positions, h)),
    ]
    for i in range(arch.layers):
        block = f"{_P}blocks.{i}."
        specs += [
            WeightSpec(f"{block}norm1.weight", "F32", (h,)),
            WeightSpec(f"{block}norm1.bias", "F32", (h,)),
            WeightSpec(f"{block}attn.qkv.weight", matrices, (3 * h, h)),
            WeightSpec(f"{block}attn.qkv.bias", "F32", (3 * h,)),
            WeightSpec(f"{block}attn.proj.weight", matrices, (h, h)),
            WeightSpec(f"{block}attn.proj.bias", "F32", (h,)),
            WeightSpec(f"{block}norm2.weight", "F32", (h,)),
            WeightSpec(f"{block}norm2.bias", "F32", (h,)),
            WeightSpec(f"{block}mlp.linear_fc1.weight", matrices, (arch.intermediate, h)),
            WeightSpec(f"{block}mlp.linear_fc1.bias", "F32", (arch.intermediate,)),
            WeightSpec(f"{block}mlp.linear_fc2.weight", matrices, (h, arch.intermediate)),
            WeightSpec(f"{block}mlp.linear_fc2.bias", "F32", (h,)),
        ]
    for j in range(len(arch.deepstack_layers)):
        specs += _merger(f"{_P}deepstack_merger_list.{j}", h * arch.merge_size**2, arch, matrices)
    return [*specs, *_merger(f"{_P}merger", h, arch, matrices)]


def vision_graph(
    arch: VisionArchitecture,
    weights: WeightFile,
    *,
    dialect: Dialect,
    precision: Precision,
    form: ProductForm | None = None,
) -> onnx.ModelProto:
    """Writes the vision encoder graph.

    Args:
        arch: The encoder.
        weights: File that holds `vision_weights(arch)`.
        dialect: Which operators to use.
        precision: What matrix products are computed in.
        form: How they are written; None writes them as plain floating-point products.
    """
    return _VisionGraph(arch, GraphBuilder("vision", weights, dialect, precision, form)).write()


@dataclass(frozen=True, slots=True)
class _Stream:
    """The residual stream, float32.

    Attributes:
        hidden: Its values.
        normed: Its next norm, where the operator that last added to it computed that too.
    """

    hidden: str
    normed: str | None = None


@dataclass(slots=True)
class _VisionGraph:
    arch: VisionArchitecture
    b: GraphBuilder

    def write(self) -> onnx.ModelProto:
        b, arch = self.b, self.arch
        half = arch.head_dim // 2
        patches = b.input("patches", TensorProto.FLOAT, ["patches", arch.patch_values])
        position_index = b.input("position_index", TensorProto.INT32, ["grid", 4])
        position_weight = b.input("position_weight", TensorProto.FLOAT, ["grid", 4])
        cos = b.input("cos", TensorProto.FLOAT, ["grid", half])
        sin = b.input("sin", TensorProto.FLOAT, ["grid", half])
        stream = _Stream(self._embed(b.narrowed(patches), position_index, position_weight))
        taps = {layer: j for j, layer in enumerate(arch.deepstack_layers)}
        deepstack = []
        grid = b.op("Shape", position_index, end=1)
        with b.scope("rotary"):
            cos, sin = (self._angles(x, stream.hidden, grid) for x in (cos, sin))
        for i in range(arch.layers):
            following = f"{_P}merger.norm" if i == arch.layers - 1 else f"{_P}blocks.{i + 1}.norm1"
            with b.scope(f"blocks.{i}"):
                stream = self._block(i, stream, (cos, sin, grid), following)
            if i in taps:
                with b.scope(f"deepstack.{taps[i]}"):
                    name = f"{_P}deepstack_merger_list.{taps[i]}"
                    rows = self._layer_norm(self._shuffle(stream.hidden), f"{name}.norm")
                    deepstack.append(self._merge(name, f"deepstack.{taps[i]}", rows))
        with b.scope("merger"):
            rows = self._shuffle(self._normed(stream, f"{_P}merger.norm"))
            merged = self._merge(f"{_P}merger", "merger", rows)
        features = [b.op("Unsqueeze", x, b.shape(0)) for x in (merged, *deepstack)]
        joined = b.op("Concat", *features, axis=0)
        b.output(joined, "features", b.precision.onnx_type, [len(features), "rows", arch.out_hidden])
        return b.model()

    def _angles(self, table: str, hidden: str, grid: str) -> str:
        """The rotary table `[P, D/2]` as `_attention` takes it.

        That is `[P, 1, D/2]`, against `[B, P, heads, D/2]`; where one operator turns heads, `[1, B * P, D/2]`.
        """
        b, half = self.b, self.arch.head_dim // 2
        if not b.narrow:
            return b.op("Unsqueeze", table, b.shape(1))
        by_image = b.op("Reshape", hidden, b.op("Concat", b.shape(-1), grid, b.shape(self.arch.hidden), axis=0))
        shape = b.op("Concat", b.op("Shape", by_image, end=2), b.shape(half), axis=0)
        return b.op("Reshape", b.op("Expand", b.narrowed(table), shape), b.shape(1, -1, half))

    def _embed(self, patches: str, index: str, weight: str) -> str:
        """Patch embedding plus the position table between its four nearest rows."""
        b, arch = self.b, self.arch
        with b.scope("embedding"):
            name = f"{_P}patch_embed.proj"
            flat = (arch.hidden, arch.patch_values)
            hidden = b.widened(
                b.linear(patches, f"{name}.weight", place="patches", bias=f"{name}.bias", shape=flat, name="patches")
            )
            rows = b.op("Gather", b.weight(POSITION_TABLE, to=TensorProto.FLOAT), index, axis=0)
            position = b.op(
                "Squeeze", b.op("MatMul", b.op("Unsqueeze", weight, b.shape(1)), rows), b.shape(1), name="position"
            )
            shape = b.op("Concat", b.shape(-1), b.op("Shape", position), axis=0)
            return b.op("Reshape", b.op("Add", b.op("Reshape", hidden, shape), position), b.shape(-1, arch.hidden))

    def _block(self, i: int, stream: _Stream, geometry: tuple[str, str, str], following: str) -> _Stream:
        """One layer; `geometry` is rotary tables and grid, `following` the norm that comes behind it."""
        name = f"{_P}blocks.{i}."
        with self.b.scope("attention"):
            normed = self.b.narrowed(self._normed(stream, f"{name}norm1"))
            attended = self._attention(i, normed, *geometry)
            added = (attended, f"{name}attn.proj", f"blocks.{i}.output", "output")
            stream = self._add(stream, added, f"{name}norm2")
        with self.b.scope("mlp"):
            normed = self.b.narrowed(self._normed(stream, f"{name}norm2"))
            grown = self._linear(normed, f"{name}mlp.linear_fc1", f"blocks.{i}.fc1", "fc1")
            added = (self._gelu_tanh(grown), f"{name}mlp.linear_fc2", f"blocks.{i}.fc2", "fc2")
            return self._add(stream, added, following)

    def _add(self, stream: _Stream, product: tuple[str, str, str, str], norm: str) -> _Stream:
        """Adds a product, given as `_linear` takes it, to the residual stream, behind which `norm` comes.

        Where no compiler joins operators, one adds product and bias to the stream and norms it, in float32.
        """
        b = self.b
        if not b.narrow:
            return _Stream(b.op("Add", stream.hidden, b.widened(self._linear(*product)), name="residual"))
        value, tensors, place, name = product
        bare = b.widened(b.linear(value, f"{tensors}.weight", place=place, name=name))
        inputs = (bare, stream.hidden, *(b.weight(x) for x in (f"{norm}.weight", f"{norm}.bias", f"{tensors}.bias")))
        normed, _, _, hidden = b.ops(
            "SkipLayerNormalization",
            4,
            *inputs,
            unwanted=(1, 2),
            domain=RUNTIME_DOMAIN,
            epsilon=_LAYER_NORM_EPS,
            name="residual",
        )
        return _Stream(hidden, normed)

    def _normed(self, stream: _Stream, name: str) -> str:
        return stream.normed or self._layer_norm(stream.hidden, name)

    def _linear(self, value: str, tensors: str, place: str, name: str) -> str:
        return self.b.linear(value, f"{tensors}.weight", place=place, bias=f"{tensors}.bias", name=name)

    def _attention(self, i: int, normed: str, cos: str, sin: str, grid: str) -> str:
        """Full attention within each image; `[B * P, hidden]` in and out."""
        b, arch = self.b, self.arch
        merged = self._linear(normed, f"{_P}blocks.{i}.attn.qkv", f"blocks.{i}.qkv", "qkv")
        if b.narrow:
            return self._narrow_attention(merged, cos, sin, grid)
        shape = b.op("Concat", b.shape(-1), grid, b.shape(3 * arch.heads, arch.head_dim), axis=0)
        heads = b.op("Reshape", merged, shape)
        query, key, value = b.ops("Split", 3, heads, b.shape(arch.heads, arch.heads, arch.heads), axis=2)
        query, key = self._rotate(query, cos, sin), self._rotate(key, cos, sin)
        scale = arch.head_dim**-0.5
        value = b.op("Transpose", value, perm=[0, 2, 1, 3])
        query = b.op("Transpose", query, perm=[0, 2, 1, 3])
        if b.dialect is Dialect.FUSED:
            kind = b.precision.onnx_type
            inputs = [b.cast(x, kind) for x in (query, b.op("Transpose", key, perm=[0, 2, 1, 3]), value)]
            mixed = b.cast(
                b.op("Attention", *inputs, scale=scale, softmax_precision=int(TensorProto.FLOAT), name="fused"),
                TensorProto.FLOAT,
            )
        else:
            scaled = b.op("Mul", query, b.constant(scale, np.float32))
            scores = b.matmul(scaled, b.op("Transpose", key, perm=[0, 2, 3, 1]), "scores")
            mixed = b.matmul(b.op("Softmax", scores, axis=-1), value, "mixed")
        return b.op("Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]), b.shape(-1, arch.hidden))

    def _narrow_attention(self, merged: str, cos: str, sin: str, grid: str) -> str:
        """The same of `[B * P, 3 * hidden]`, where one operator turns heads and another takes them side by side."""
        b, arch = self.b, self.arch
        turned = []
        query, key, value = b.split(merged, arch.hidden, arch.hidden, arch.hidden)
        with b.scope("rotary"):
            for part in (query, key):
                row = b.op("Unsqueeze", part, b.shape(0))
                turned.append(b.op("RotaryEmbedding", row, cos, sin, num_heads=arch.heads, name="fused"))
        shape = b.op("Concat", b.shape(-1), grid, b.shape(arch.hidden), axis=0)
        mixed = b.op(
            "Attention",
            *(b.op("Reshape", x, shape) for x in (*turned, value)),
            q_num_heads=arch.heads,
            kv_num_heads=arch.heads,
            scale=arch.head_dim**-0.5,
            softmax_precision=int(TensorProto.FLOAT),
            name="fused",
        )
        return b.op("Reshape", mixed, b.shape(-1, arch.hidden))

    def _merge(self, name: str, place: str, rows: str) -> str:
        """The merger's two layers: float32 `[B * P / merge**2, hidden * merge**2]` to features `[.., out_hidden]`."""
        b = self.b
        wide = self._linear(b.narrowed(rows), f"{name}.linear_fc1", f"{place}.fc1", "fc1")
        features = self._linear(self._gelu(wide), f"{name}.linear_fc2", f"{place}.fc2", "fc2")
        return features if b.narrow else b.cast(features, b.precision.onnx_type)

    def _shuffle(self, value: str) -> str:
        """Joins the patches of a merge block, which lie side by side, into one row."""
        return self.b.op("Reshape", value, self.b.shape(-1, self.arch.hidden * self.arch.merge_size**2))

    def _rotate(self, heads: str, cos: str, sin: str) -> str:
        b, half = self.b, self.arch.head_dim // 2
        with b.scope("rotary"):
            first, second = b.ops("Split", 2, heads, b.shape(half, half), axis=3)
            turned_first = b.op("Sub", b.op("Mul", first, cos), b.op("Mul", second, sin))
            turned_second = b.op("Add", b.op("Mul", second, cos), b.op("Mul", first, sin))
            return b.op("Concat", turned_first, turned_second, axis=3)

    def _layer_norm(self, value: str, name: str) -> str:
        b = self.b
        inputs = (value, b.weight(f"{name}.weight"), b.weight(f"{name}.bias"))
        return b.op("LayerNormalization", *inputs, axis=-1, epsilon=_LAYER_NORM_EPS, name="norm")

    def _gelu(self, value: str) -> str:
        """GELU by the error function."""
        b = self.b
        if b.dialect is Dialect.FUSED:
            return b.op("Gelu", value, approximate="none")
        with b.scope("gelu"):
            half = b.op("Mul", value, b.constant(0.5, np.float32))
            erf = b.op("Erf", b.op("Mul", value, b.constant(0.5**0.5, np.float32)))
            return b.op("Mul", half, b.op("Add", erf, b.constant(1.0, np.float32)))

    def _gelu_tanh(self, value: str) -> str:
        """GELU by its tanh approximation."""
        b = self.b
        if b.dialect is Dialect.FUSED:
            return b.op("Gelu", value, approximate="tanh")
        with b.scope("gelu"):
            cube = b.op("Mul", b.op("Mul", value, value), value)
            inner = b.op("Add", value, b.op("Mul", cube, b.constant(0.044715, np.float32)))
            tanh = b.op("Tanh", b.op("Mul", inner, b.constant((2 / np.pi) ** 0.5, np.float32)))
            half = b.op("Mul", value, b.constant(0.5, np.float32))
            return b.op("Mul", half, b.op("Add", tanh, b.constant(1.0, np.float32)))
