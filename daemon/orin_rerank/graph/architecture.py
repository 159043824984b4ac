"""The numbers that define a model, as its checkpoint's config.json gives them."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.errors import CheckpointError
from orin_rerank.graph.config_file import check_rope_type, is_vl, read_config

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
        deepstack_layers: Blocks whose output also goes to the first decoder layers: the lowest block's to the first,
            whatever the order here, which is that of the mergers in the checkpoint.
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


_DEFAULT_SECTION: Final = (24, 20, 20)
"""What transformers takes where a Qwen3-VL configuration names no sections."""


def read_architecture(checkpoint: Path) -> Architecture:
    """Reads config.json of a checkpoint folder in Hugging Face layout.

    The file goes through the `transformers` configuration classes, which supply what a saved file leaves out.

    Args:
        checkpoint: The folder.

    Raises:
        CheckpointError: If there is no config.json, or it describes a model that the graphs do not express; the item
            names the key.
    """
    raw = read_config(checkpoint)
    full = _complete(raw)
    tied = bool(full["tie_word_embeddings"])
    if not is_vl(raw):
        return Architecture(_text(full, tied=tied, prefix=""), None)
    text = _text(full["text_config"], tied=tied, prefix="text_config.")
    if text.mrope_section is None:
        text = dataclasses.replace(text, mrope_section=_DEFAULT_SECTION)
    return Architecture(text, _vision(full["vision_config"], text))


def _complete(raw: dict[str, Any]) -> dict[str, Any]:
    """Fills in defaults by way of the configuration classes of transformers."""
    # It takes a second to import, only an export needs it, and it need not say that torch is absent.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoConfig  # noqa: PLC0415

    try:
        config = AutoConfig.for_model(**raw)
        full: dict[str, Any] = config.to_dict()
    except Exception as error:  # its validation raises classes of several libraries
        raise CheckpointError(f"transformers does not accept the configuration: {error}", item="config.json") from error
    # The outer value decides, as in transformers 5: some releases write another, which means nothing, into the inner
    # configuration of a model whose head is its own.
    inner = raw.get("text_config") if is_vl(raw) else None
    stated = [config["tie_word_embeddings"] for config in (raw, inner) if config and "tie_word_embeddings" in config]
    full["tie_word_embeddings"] = stated[0] if stated else full.get("tie_word_embeddings", True)
    return full


def _number(config: dict[str, Any], key: str, prefix: str, kind: type[int | float]) -> Any:
    """A setting that must be a positive number; Python reads `Infinity` in JSON as one."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, kind)) or not 0 < value < math.inf:
        raise CheckpointError(f"must be a positive {kind.__name__}, not {value!r}", item=f"{prefix}{key}")
    return kind(value)


def _rope(config: dict[str, Any], prefix: str) -> tuple[float, tuple[int, int, int] | None]:
    """Rotary base and sections, in the spellings of transformers 4 and 5."""
    check_rope_type(config, prefix)
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", config.get("rope_theta"))
    rope.pop("rope_type", None)
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
    base: float = _number({"rope_theta": theta}, "rope_theta", prefix, float)
    if section is None:
        return base, None
    if not isinstance(section, (list, tuple)) or [type(n) for n in section] != [int] * 3 or min(section) < 0:
        raise CheckpointError(f"must be three counts, not {section!r}", item=f"{prefix}rope_parameters.mrope_section")
    return base, (section[0], section[1], section[2])


def _text(config: dict[str, Any], *, tied: bool, prefix: str) -> TextArchitecture:
    for key, wanted in (("hidden_act", "silu"), ("attention_bias", False)):
        if config.get(key, wanted) != wanted:
            raise CheckpointError(f"{config[key]!r} is not supported, only {wanted!r}", item=f"{prefix}{key}")
    if config.get("use_sliding_window"):
        raise CheckpointError("sliding-window attention is not supported", item=f"{prefix}use_sliding_window")
    others = sorted({str(kind) for kind in config.get("layer_types") or ()} - {"full_attention"})
    if others:
        raise CheckpointError(f"{others[0]!r} is not supported, only 'full_attention'", item=f"{prefix}layer_types")
    theta, section = _rope(config, prefix)

    def integer(key: str) -> int:
        return int(_number(config, key, prefix, int))

    heads = integer("num_attention_heads")
    text = TextArchitecture(
        hidden=integer("hidden_size"),
        intermediate=integer("intermediate_size"),
        layers=integer("num_hidden_layers"),
        heads=heads,
        kv_heads=heads if config.get("num_key_value_heads") is None else integer("num_key_value_heads"),
        head_dim=integer("hidden_size") // heads if config.get("head_dim") is None else integer("head_dim"),
        vocabulary=integer("vocab_size"),
        rms_norm_eps=_number(config, "rms_norm_eps", prefix, float),
        rope_theta=theta,
        mrope_section=section,
        tied=tied,
    )
    if text.heads % text.kv_heads:
        raise CheckpointError(
            f"{text.heads} query heads cannot share {text.kv_heads} key heads", item=f"{prefix}num_key_value_heads"
        )
    if text.head_dim % 2:
        raise CheckpointError(f"{text.head_dim} is odd, so its halves cannot turn", item=f"{prefix}head_dim")
    return text


def _vision(config: dict[str, Any], text: TextArchitecture) -> VisionArchitecture:
    if config.get("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise CheckpointError(f"{config['hidden_act']!r} is not supported", item="vision_config.hidden_act")
    taps = config.get("deepstack_visual_indexes")
    if not isinstance(taps, (list, tuple)) or any(type(layer) is not int for layer in taps):
        raise CheckpointError(f"must be a list of blocks, not {taps!r}", item="vision_config.deepstack_visual_indexes")

    def integer(key: str) -> int:
        return int(_number(config, key, "vision_config.", int))

    vision = VisionArchitecture(
        hidden=integer("hidden_size"),
        intermediate=integer("intermediate_size"),
        layers=integer("depth"),
        heads=integer("num_heads"),
        out_hidden=integer("out_hidden_size"),
        channels=integer("in_channels"),
        patch_size=integer("patch_size"),
        temporal_patch_size=integer("temporal_patch_size"),
        merge_size=integer("spatial_merge_size"),
        positions=integer("num_position_embeddings"),
        deepstack_layers=tuple(taps),
        rope_theta=_vision_rope(config),
    )
    taps = vision.deepstack_layers
    checks = (
        (vision.channels == 3, "in_channels", "only three colour channels are supported"),
        (vision.hidden % (4 * vision.heads) == 0, "num_heads", "heads whose width 4 does not divide are not supported"),
        (vision.out_hidden == text.hidden, "out_hidden_size", f"does not fit a decoder of width {text.hidden}"),
        (vision.position_grid**2 == vision.positions, "num_position_embeddings", "must be a square number"),
        (len(taps) <= text.layers, "deepstack_visual_indexes", "has more taps than the decoder has layers"),
        (set(taps) <= set(range(vision.layers)), "deepstack_visual_indexes", "a tap lies outside the blocks"),
        (len(set(taps)) == len(taps), "deepstack_visual_indexes", "names a block twice"),
    )
    for holds, key, message in checks:
        if not holds:
            raise CheckpointError(f"{message}: {config[key]!r}", item=f"vision_config.{key}")
    return vision


def _vision_rope(config: dict[str, Any]) -> float:
    rope = dict(config.get("rope_parameters") or {})
    kind = rope.pop("rope_type", "axial")
    if kind not in ("axial", "default"):
        raise CheckpointError(
            f"rotary scaling {kind!r} is not supported", item="vision_config.rope_parameters.rope_type"
        )
    theta: float = _number({"rope_theta": rope.pop("rope_theta", 10000.0)}, "rope_theta", "vision_config.", float)
    if rope:
        raise CheckpointError("unknown rotary setting", item=f"vision_config.rope_parameters.{min(rope)}")
    return theta
