"""The numbers that define a model, as its checkpoint's config.json gives them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orin_rerank.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Architecture", "TextArchitecture", "VisionArchitecture", "read_architecture"]


@dataclass(frozen=True, slots=True)
class TextArchitecture:
    """A Qwen3 decoder.

    Attributes:
        hidden: Width of the residual stream.
        intermediate: Width of the gated feed-forward layer.
        layers: Decoder layers.
        heads: Query heads.
        kv_heads: Key and value heads; each serves `heads / kv_heads` query heads.
        head_dim: Width of a head.
        vocabulary: Rows of the embedding.
        rms_norm_eps: Added to the mean square in every RMSNorm.
        rope_theta: Base of the rotary frequencies.
        mrope_section: Frequencies that time, height and width get, interleaved; None for plain rotary positions.
        tied: Whether the output head is the embedding.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int] | None
    tied: bool


@dataclass(frozen=True, slots=True)
class VisionArchitecture:
    """A Qwen3-VL vision encoder.

    Attributes:
        hidden: Width of its residual stream.
        intermediate: Width of its feed-forward layer.
        layers: Blocks.
        heads: Attention heads.
        out_hidden: Width of the features, which is the decoder's.
        channels: Colour channels.
        patch_size: Side of a patch in pixels.
        temporal_patch_size: Frames in a patch.
        merge_size: Side, in patches, of the square that becomes one token.
        positions: Rows of the learned position table, a square number.
        deepstack_layers: Blocks whose output also goes to the first decoder layers, in that order.
        rope_theta: Base of the rotary frequencies.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    out_hidden: int
    channels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    positions: int
    deepstack_layers: tuple[int, ...]
    rope_theta: float

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def patch_values(self) -> int:
        """Numbers in one patch."""
        return self.channels * self.temporal_patch_size * self.patch_size * self.patch_size

    @property
    def position_grid(self) -> int:
        """Side of the learned position table."""
        return math.isqrt(self.positions)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A reranker: a decoder, and a vision encoder where it takes images."""

    text: TextArchitecture
    vision: VisionArchitecture | None


_VL_MODELS = {"qwen3_vl"}
_TEXT_MODELS = {"qwen3"}


def read_architecture(checkpoint: Path) -> Architecture:
    """Reads config.json of a checkpoint folder in Hugging Face layout.

    The file goes through the `transformers` configuration classes, which supply what a saved file leaves out.

    Args:
        checkpoint: The folder.

    Raises:
        CheckpointError: If there is no config.json, or it describes a model that the graphs do not express; the item
            names the key.
    """
    path = checkpoint / "config.json"
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError("the checkpoint has no config.json", item=str(path)) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", item=str(path)) from None
    kind = raw.get("model_type")
    if kind not in _VL_MODELS | _TEXT_MODELS:
        known = ", ".join(sorted(_VL_MODELS | _TEXT_MODELS))
        raise CheckpointError(f"{kind!r} is not a reranker architecture known here ({known})", item="model_type")
    full = _complete(raw)
    if kind in _TEXT_MODELS:
        return Architecture(_text(full, tied=bool(full["tie_word_embeddings"]), prefix=""), None)
    text = _text(full["text_config"], tied=bool(full["tie_word_embeddings"]), prefix="text_config.")
    return Architecture(text, _vision(full["vision_config"], text))


def _complete(raw: dict[str, Any]) -> dict[str, Any]:
    """Fills in defaults by way of the configuration classes of transformers."""
    # It takes a second to import, only an export needs it, and it need not say that torch is absent.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoConfig  # noqa: PLC0415

    try:
        config = AutoConfig.for_model(**raw)
    except (TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"transformers does not accept the configuration: {error}", item="config.json") from None
    full: dict[str, Any] = config.to_dict()
    full["tie_word_embeddings"] = raw.get("tie_word_embeddings", full.get("tie_word_embeddings", True))
    return full


def _rope(config: dict[str, Any], prefix: str) -> tuple[float, tuple[int, int, int] | None]:
    """Rotary base and sections, in the spellings of transformers 4 and 5."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", config.get("rope_theta"))
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    if kind not in ("default", "mrope"):
        raise CheckpointError(f"rotary scaling {kind!r} is not supported", item=f"{prefix}rope_parameters.rope_type")
    rope.pop("type", None)
    section = rope.pop("mrope_section", None)
    interleaved = rope.pop("mrope_interleaved", section is not None)
    if section is not None and not interleaved:
        raise CheckpointError(
            "only interleaved sections are supported", item=f"{prefix}rope_parameters.mrope_interleaved"
        )
    factor = rope.pop("partial_rotary_factor", 1.0)
    if factor not in (None, 1.0):
        raise CheckpointError(
            "rotary positions on a part of the head are not supported",
            item=f"{prefix}rope_parameters.partial_rotary_factor",
        )
    if rope:
        raise CheckpointError("unknown rotary setting", item=f"{prefix}rope_parameters.{min(rope)}")
    if theta is None:
        raise CheckpointError("the rotary base is missing", item=f"{prefix}rope_theta")
    return float(theta), None if section is None else (int(section[0]), int(section[1]), int(section[2]))


def _text(config: dict[str, Any], *, tied: bool, prefix: str) -> TextArchitecture:
    for key, wanted in (("hidden_act", "silu"), ("attention_bias", False)):
        if config.get(key, wanted) != wanted:
            raise CheckpointError(f"{config[key]!r} is not supported, only {wanted!r}", item=f"{prefix}{key}")
    if config.get("use_sliding_window"):
        raise CheckpointError("sliding-window attention is not supported", item=f"{prefix}use_sliding_window")
    theta, section = _rope(config, prefix)
    heads = int(config["num_attention_heads"])
    text = TextArchitecture(
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config["num_key_value_heads"] or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        vocabulary=int(config["vocab_size"]),
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope_theta=theta,
        mrope_section=section,
        tied=tied,
    )
    if text.heads % text.kv_heads:
        raise CheckpointError(
            f"{text.heads} query heads cannot share {text.kv_heads} key heads", item=f"{prefix}num_key_value_heads"
        )
    if section is not None and sum(section) * 2 != text.head_dim:
        raise CheckpointError(
            f"sections {list(section)} do not add up to half of head_dim {text.head_dim}",
            item=f"{prefix}rope_parameters.mrope_section",
        )
    return text


def _vision(config: dict[str, Any], text: TextArchitecture) -> VisionArchitecture:
    if config.get("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise CheckpointError(f"{config['hidden_act']!r} is not supported", item="vision_config.hidden_act")
    vision = VisionArchitecture(
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        layers=int(config["depth"]),
        heads=int(config["num_heads"]),
        out_hidden=int(config["out_hidden_size"]),
        channels=int(config["in_channels"]),
        patch_size=int(config["patch_size"]),
        temporal_patch_size=int(config["temporal_patch_size"]),
        merge_size=int(config["spatial_merge_size"]),
        positions=int(config["num_position_embeddings"]),
        deepstack_layers=tuple(int(layer) for layer in config["deepstack_visual_indexes"]),
        rope_theta=float((config.get("rope_parameters") or {}).get("rope_theta", 10000.0)),
    )
    if vision.out_hidden != text.hidden:
        raise CheckpointError(
            f"features of width {vision.out_hidden} do not fit a decoder of width {text.hidden}",
            item="vision_config.out_hidden_size",
        )
    if vision.position_grid**2 != vision.positions:
        raise CheckpointError(f"{vision.positions} is no square number", item="vision_config.num_position_embeddings")
    if len(vision.deepstack_layers) > text.layers:
        raise CheckpointError("more taps than decoder layers", item="vision_config.deepstack_visual_indexes")
    if any(not 0 <= layer < vision.layers for layer in vision.deepstack_layers):
        raise CheckpointError("a tap lies outside the blocks", item="vision_config.deepstack_visual_indexes")
    return vision
