"""The places of a model where an activation meets weights, and where scales for its channels can be put.

A place is one activation `[rows, channels]` and the projections that take it. Multiplying a channel's column in every
one of these weights by s and dividing the channel itself by s leaves the products as they are. The division costs
nothing where what makes the channel is linear in something stored: the weight of a norm, or the rows of an earlier
projection. Those tensors are the place's producers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from orin_rerank.graph.architecture import Architecture, TextArchitecture, VisionArchitecture

__all__ = ["Place", "Producer", "model_places", "text_places", "vision_places"]


@dataclass(frozen=True, slots=True)
class Producer:
    """Rows of a tensor, along its first axis, that are divided by a place's scales.

    Attributes:
        tensor: Its name.
        begin: The first of the rows.
    """

    tensor: str
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """An activation that may be quantised, and the weights that it meets.

    Attributes:
        name: Such as `layers.3.down` or `blocks.0.qkv`.
        channels: Width of the activation.
        outputs: Rows of all its weights together.
        weights: Their names; each `[out, channels]`.
        producers: Where scales for its channels can be folded in; empty where they cannot.
        layout: `(outer, repeat, inner)`: channel `(o, r, i)` comes from row `(o, i)` of every producer, so channels
            that differ in `r` alone share a scale.
        vision: Whether it is of the vision encoder.
        final: Whether it sees a document's last token only, and so costs next to nothing.
    """

    name: str
    channels: int
    outputs: int
    weights: tuple[str, ...]
    producers: tuple[Producer, ...]
    layout: tuple[int, int, int]
    vision: bool = False
    final: bool = False

    @property
    def producer_rows(self) -> npt.NDArray[np.int64]:
        """For each channel, int64 `[channels]`, the row that makes it, counted from a producer's `begin`."""
        outer, repeat, inner = self.layout
        rows = np.arange(outer * inner, dtype=np.int64).reshape(outer, 1, inner)
        return np.broadcast_to(rows, (outer, repeat, inner)).reshape(-1)

    @property
    def multiplications(self) -> int:
        """Multiply-adds for one row."""
        return self.channels * self.outputs


def _plain(channels: int) -> tuple[int, int, int]:
    return (1, 1, channels)


def text_places(arch: TextArchitecture, *, vl: bool) -> list[Place]:
    """The decoder's places, in the order in which it computes them.

    Args:
        arch: The decoder.
        vl: Whether the model takes images, and names its tensors accordingly.
    """
    h, d, ffn = arch.hidden, arch.head_dim, arch.intermediate
    wide, narrow = arch.heads * d, arch.kv_heads * d
    places = []
    for i in range(arch.layers):
        layer = f"{'model.language_model' if vl else 'model'}.layers.{i}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        final = i == arch.layers - 1
        places += [
            Place(
                f"layers.{i}.qkv",
                h,
                wide + 2 * narrow,
                tuple(f"{attention}{part}_proj.weight" for part in "qkv"),
                (Producer(f"{layer}input_layernorm.weight"),),
                _plain(h),
            ),
            Place(
                f"layers.{i}.output",
                wide,
                h,
                (f"{attention}o_proj.weight",),
                (Producer(f"{attention}v_proj.weight"),),
                (arch.kv_heads, arch.heads // arch.kv_heads, d),
                final=final,
            ),
            Place(
                f"layers.{i}.gate_up",
                h,
                2 * ffn,
                (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"),
                (Producer(f"{layer}post_attention_layernorm.weight"),),
                _plain(h),
                final=final,
            ),
            Place(
                f"layers.{i}.down",
                ffn,
                h,
                (f"{mlp}down_proj.weight",),
                (Producer(f"{mlp}up_proj.weight"),),
                _plain(ffn),
                final=final,
            ),
        ]
    return places


def vision_places(arch: VisionArchitecture) -> list[Place]:
    """The vision encoder's places, in the order in which it computes them.

    Behind a GELU nothing linear is at hand to fold scales into.
    """
    h, ffn, values = arch.hidden, arch.intermediate, arch.patch_values
    p = "model.visual."
    places = [Place("patches", values, h, (f"{p}patch_embed.proj.weight",), (), _plain(values), vision=True)]
    for i in range(arch.layers):
        block = f"{p}blocks.{i}."
        name = f"blocks.{i}."
        qkv = f"{block}attn.qkv."
        places += [
            Place(f"{name}qkv", h, 3 * h, (f"{qkv}weight",), _norm(f"{block}norm1"), _plain(h), vision=True),
            Place(
                f"{name}output",
                h,
                h,
                (f"{block}attn.proj.weight",),
                (Producer(f"{qkv}weight", 2 * h), Producer(f"{qkv}bias", 2 * h)),
                _plain(h),
                vision=True,
            ),
            Place(
                f"{name}fc1", h, ffn, (f"{block}mlp.linear_fc1.weight",), _norm(f"{block}norm2"), _plain(h), vision=True
            ),
            Place(f"{name}fc2", ffn, h, (f"{block}mlp.linear_fc2.weight",), (), _plain(ffn), vision=True),
        ]
        for j, layer in enumerate(arch.deepstack_layers):
            if layer == i:
                places += _merger(f"deepstack.{j}", f"{p}deepstack_merger_list.{j}", arch, shuffled_first=True)
    return places + _merger("merger", f"{p}merger", arch, shuffled_first=False)


def model_places(architecture: Architecture) -> list[Place]:
    """All places of a model, the decoder's first."""
    vision = architecture.vision
    return text_places(architecture.text, vl=vision is not None) + ([] if vision is None else vision_places(vision))


def _norm(name: str) -> tuple[Producer, ...]:
    return (Producer(f"{name}.weight"), Producer(f"{name}.bias"))


def _merger(name: str, tensors: str, arch: VisionArchitecture, *, shuffled_first: bool) -> list[Place]:
    """A merger norms before it joins the patches of a block (`shuffled_first` is false) or after."""
    patches = arch.merge_size**2
    wide = arch.hidden * patches
    layout = _plain(wide) if shuffled_first else (1, patches, arch.hidden)
    first, second = (f"{tensors}.linear_{name}.weight" for name in ("fc1", "fc2"))
    return [
        Place(f"{name}.fc1", wide, wide, (first,), _norm(f"{tensors}.norm"), layout, vision=True),
        Place(f"{name}.fc2", wide, arch.out_hidden, (second,), (), _plain(wide), vision=True),
    ]
