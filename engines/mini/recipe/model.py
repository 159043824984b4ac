"""The model: transformers' Qwen3-VL at 14 M parameters, and a batched forward pass for training.

transformers loops over images and takes no shared prefix. FastModel computes the same function from
the same parameters for padded batches: all images of a batch at once, and the constant head of the
prompt once instead of once a pair. ``golden.py`` checks it against transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .grids import HEAD_DIM, LEARNED, MAX_PATCHES, PATCH, GridTables
from .prompt import Vocabulary

HIDDEN, HEADS, KV_HEADS, LAYERS, FFN = 256, 4, 2, 6, 768
VISION, VISION_HEADS, VISION_LAYERS, VISION_FFN = 192, 3, 6, 768
DEEPSTACK = (1, 2, 4)
THETA = 100000.0
SECTIONS = (12, 10, 10)
EPS = 1e-6
Weights = tuple[Tensor, ...]
Features = list[Tensor]  # 4 x [n, 16, HIDDEN]: the merged patches, then the three deepstack taps


def config(vocabulary: Vocabulary) -> Any:
    """The transformers configuration."""
    from transformers import Qwen3VLConfig

    special = vocabulary.special
    return Qwen3VLConfig(
        text_config={
            "vocab_size": vocabulary.size,
            "hidden_size": HIDDEN,
            "intermediate_size": FFN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": 4096,
            "rms_norm_eps": EPS,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": THETA,
                "mrope_section": list(SECTIONS),
                "mrope_interleaved": True,
            },
            "pad_token_id": special["<|endoftext|>"],
        },
        vision_config={
            "depth": VISION_LAYERS,
            "hidden_size": VISION,
            "intermediate_size": VISION_FFN,
            "num_heads": VISION_HEADS,
            "out_hidden_size": HIDDEN,
            "patch_size": PATCH,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": LEARNED * LEARNED,
            "deepstack_visual_indexes": list(DEEPSTACK),
        },
        image_token_id=special["<|image_pad|>"],
        video_token_id=special["<|video_pad|>"],
        vision_start_token_id=special["<|vision_start|>"],
        vision_end_token_id=special["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def build(vocabulary: Vocabulary) -> Any:
    """A freshly initialised model."""
    from transformers import Qwen3VLForConditionalGeneration

    return Qwen3VLForConditionalGeneration(config(vocabulary))


class _Embed(torch.autograd.Function):
    """Embedding whose gradient is a plain scatter-add: no sort, so a CUDA graph can capture it."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = table.shape[0]
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        grad = grads[0]
        out = torch.zeros(ctx.rows, grad.shape[-1], device=grad.device, dtype=torch.float32)
        return out.index_add_(0, ids.reshape(-1), grad.reshape(-1, grad.shape[-1]).float()), None


def embed(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of the embedding table."""
    return _Embed.apply(table, ids)  # type: ignore[no-any-return,no-untyped-call]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves convention."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def vision_block(x: Tensor, weights: Weights, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
    """One vision block: x [n, 64, VISION]; bias [1, 1, 64, 64] hides patches that do not exist."""
    (norm1, norm1b, qkv, qkvb, proj, projb, norm2, norm2b, up, upb, down, downb) = weights
    n = x.shape[0]
    y = F.layer_norm(x, (VISION,), norm1, norm1b, EPS)
    q, k, v = F.linear(y, qkv, qkvb).view(n, MAX_PATCHES, 3, VISION_HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
    q = rotate(q.float(), cos, sin).to(v.dtype)
    k = rotate(k.float(), cos, sin).to(v.dtype)
    mask = bias.to(v.dtype).expand(n, VISION_HEADS, -1, -1)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(n, MAX_PATCHES, VISION)
    x = x + F.linear(y, proj, projb)
    y = F.layer_norm(x, (VISION,), norm2, norm2b, EPS)
    return x + F.linear(F.gelu(F.linear(y, up, upb), approximate="tanh"), down, downb)


def _project(x: Tensor, weights: Weights, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (norm, q_proj, k_proj, v_proj, _, q_norm, k_norm, *_) = weights
    batch, length = x.shape[:2]
    y = F.rms_norm(x, (HIDDEN,), norm, EPS)
    q = F.rms_norm(F.linear(y, q_proj).view(batch, length, HEADS, HEAD_DIM).float(), (HEAD_DIM,), q_norm, EPS)
    k = F.rms_norm(F.linear(y, k_proj).view(batch, length, KV_HEADS, HEAD_DIM).float(), (HEAD_DIM,), k_norm, EPS)
    v = F.linear(y, v_proj).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    return rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype), v


def _finish(x: Tensor, attended: Tensor, weights: Weights) -> Tensor:
    (*_, o_proj, _, _, norm, gate, up, down) = weights
    x = x + F.linear(attended.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1), o_proj)
    y = F.rms_norm(x, (HIDDEN,), norm, EPS)
    return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


@dataclass
class Prefix:
    """The head of the prompt, shared by a batch: hidden [1, P, HIDDEN], rotary, mask [1, 1, P, P]."""

    hidden: Tensor
    cos: Tensor
    sin: Tensor
    mask: Tensor


def text_layer(x: Tensor, weights: Weights, cos: Tensor, sin: Tensor, mask: Tensor, deep: Tensor | None) -> Tensor:
    """One decoder layer without a shared prefix."""
    q, k, v = _project(x, weights, cos, sin)
    groups = HEADS // KV_HEADS
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype).expand(-1, HEADS, -1, -1))
    x = _finish(x, y, weights)
    return x if deep is None else x + deep


def prefixed_layer(
    x: Tensor,
    weights: Weights,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor,
    deep: Tensor | None,
    head: tuple[Tensor, Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """One decoder layer whose keys begin with those of the shared head; returns both hidden states."""
    hidden, head_cos, head_sin, head_mask = head
    groups = HEADS // KV_HEADS
    q, k, v = _project(x, weights, cos, sin)
    hq, hk, hv = _project(hidden, weights, head_cos, head_sin)
    hkr, hvr = hk.repeat_interleave(groups, 1), hv.repeat_interleave(groups, 1)
    bias = head_mask.to(hq.dtype).expand(-1, HEADS, -1, -1)
    attended = F.scaled_dot_product_attention(hq, hkr, hvr, attn_mask=bias)
    batch = x.shape[0]
    k = torch.cat([hk.expand(batch, -1, -1, -1), k], 2).repeat_interleave(groups, 1)
    v = torch.cat([hv.expand(batch, -1, -1, -1), v], 2).repeat_interleave(groups, 1)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype).expand(-1, HEADS, -1, -1))
    x = _finish(x, y, weights)
    return (x if deep is None else x + deep), _finish(hidden, attended, weights)


class FastModel:
    """Batched forward pass over the parameters of a transformers model."""

    def __init__(self, model: Any, vocabulary: Vocabulary, *, compiled: bool = False) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.visual = model.model.visual
        self.language = model.model.language_model
        self.device = next(model.parameters()).device
        self.tables = GridTables.build(self.device)
        self.frequencies, self.by_row, self.by_column = _mrope(self.device)
        wrap: Callable[..., Any] = lambda f: torch.compile(f, dynamic=False) if compiled else f  # noqa: E731
        self._vision_block = wrap(vision_block)
        self._text_layer = wrap(text_layer)
        self._prefixed_layer = wrap(prefixed_layer)

    @property
    def table(self) -> Tensor:
        """The (tied) embedding table."""
        return self.language.embed_tokens.weight  # type: ignore[no-any-return]

    def _vision_weights(self) -> list[Weights]:
        return [
            (
                b.norm1.weight, b.norm1.bias, b.attn.qkv.weight, b.attn.qkv.bias, b.attn.proj.weight,
                b.attn.proj.bias, b.norm2.weight, b.norm2.bias, b.mlp.linear_fc1.weight, b.mlp.linear_fc1.bias,
                b.mlp.linear_fc2.weight, b.mlp.linear_fc2.bias,
            )
            for b in self.visual.blocks
        ]  # fmt: skip

    def _text_weights(self) -> list[Weights]:
        return [
            (
                x.input_layernorm.weight, x.self_attn.q_proj.weight, x.self_attn.k_proj.weight,
                x.self_attn.v_proj.weight, x.self_attn.o_proj.weight, x.self_attn.q_norm.weight,
                x.self_attn.k_norm.weight, x.post_attention_layernorm.weight, x.mlp.gate_proj.weight,
                x.mlp.up_proj.weight, x.mlp.down_proj.weight,
            )
            for x in self.language.layers
        ]  # fmt: skip

    def _merge(self, merger: Any, x: Tensor, *, shuffled_first: bool) -> Tensor:
        n = x.shape[0]
        if shuffled_first:
            x = x.reshape(n, -1, 4 * VISION)
            y = F.layer_norm(x, (4 * VISION,), merger.norm.weight, merger.norm.bias, EPS)
        else:
            y = F.layer_norm(x, (VISION,), merger.norm.weight, merger.norm.bias, EPS).reshape(n, -1, 4 * VISION)
        y = F.gelu(F.linear(y, merger.linear_fc1.weight, merger.linear_fc1.bias))
        return F.linear(y, merger.linear_fc2.weight, merger.linear_fc2.bias)

    def vision(self, patches: Tensor, grid: Tensor) -> Features:
        """Image features of patches [n, 64, 768] in -1..1 (channel, row, column), all of one grid [1]."""
        t = self.tables
        # Both frames of a still picture are alike, so the two temporal halves of the kernel add up.
        kernel = self.visual.patch_embed.proj.weight.sum(2).reshape(VISION, -1)
        x = F.linear(patches, kernel, self.visual.patch_embed.proj.bias)
        x = x + t.positions[grid] @ self.visual.pos_embed.weight
        bias = t.patch_bias[grid][:, None, None, :].expand(-1, -1, MAX_PATCHES, -1)
        cos, sin = t.cos[grid], t.sin[grid]
        taps = []
        for number, weights in enumerate(self._vision_weights()):
            x = self._vision_block(x, weights, cos, sin, bias)
            if number in DEEPSTACK:
                merger = self.visual.deepstack_merger_list[DEEPSTACK.index(number)]
                taps.append(self._merge(merger, x, shuffled_first=True))
        return [self._merge(self.visual.merger, x, shuffled_first=False), *taps]

    def rotary(self, position: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Interleaved MRoPE: cos and sin [..., 1, S, HEAD_DIM] of position, row and column [..., S]."""
        angles = position[..., None] * self.frequencies
        angles = angles + row[..., None] * self.by_row + column[..., None] * self.by_column
        angles = torch.cat([angles, angles], -1)[..., None, :, :]
        return angles.cos(), angles.sin()

    def decode(
        self,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor,
        deep: list[Tensor] | None,
        prefix: Prefix | None,
    ) -> Tensor:
        """Last position's hidden state [B, HIDDEN] after the final norm."""
        cos, sin = rotary
        head = prefix.hidden if prefix else None
        for number, weights in enumerate(self._text_weights()):
            tap = deep[number] if deep is not None and number < len(DEEPSTACK) else None
            if prefix is None:
                hidden = self._text_layer(hidden, weights, cos, sin, mask, tap)
            else:
                shared = (head, prefix.cos, prefix.sin, prefix.mask)
                hidden, head = self._prefixed_layer(hidden, weights, cos, sin, mask, tap, shared)
        return F.rms_norm(hidden[:, -1].float(), (HIDDEN,), self.language.norm.weight, EPS)

    def margin(self, hidden: Tensor) -> Tensor:
        """yes minus no, in FP32."""
        with torch.autocast(hidden.device.type, enabled=False):
            head = self.table[self.vocabulary.yes] - self.table[self.vocabulary.no]
            return hidden.float() @ head.float()


def _mrope(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    half = HEAD_DIM // 2
    frequencies = 1 / (THETA ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
    axis = torch.zeros(half, dtype=torch.long)
    axis[1 : SECTIONS[1] * 3 : 3] = 1
    axis[2 : SECTIONS[2] * 3 : 3] = 2
    return (
        frequencies.to(device),
        (frequencies * (axis == 1)).to(device),
        (frequencies * (axis == 2)).to(device),
    )
