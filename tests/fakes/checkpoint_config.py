"""config.json of a checkpoint with random weights, in the spelling that transformers 5 writes.

`fakes.full_size` has the one of the published folders, which are older.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orin_rerank.graph.architecture import Architecture

__all__ = ["checkpoint_config"]


def checkpoint_config(architecture: Architecture, *, image_pad: int, vision_start: int) -> dict[str, Any]:
    """The configuration of an architecture, as `Qwen3Config` or `Qwen3VLConfig` takes it.

    Args:
        architecture: The model's dimensions.
        image_pad: Token that stands for a picture's feature; no matter for a text-only model.
        vision_start: Token before a picture; likewise.
    """
    text, vision = architecture.text, architecture.vision
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": text.rope_theta}
    if text.mrope_section is not None:
        rope |= {"mrope_section": list(text.mrope_section), "mrope_interleaved": True}
    decoder = {
        "model_type": "qwen3" if vision is None else "qwen3_vl_text",
        "hidden_size": text.hidden,
        "intermediate_size": text.intermediate,
        "num_hidden_layers": text.layers,
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.kv_heads,
        "head_dim": text.head_dim,
        "hidden_act": "silu",
        "vocab_size": text.vocabulary,
        "rms_norm_eps": text.rms_norm_eps,
        "max_position_embeddings": 40960,
        "rope_parameters": rope,
        "tie_word_embeddings": text.tied,
    }
    if vision is None:
        return decoder
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": decoder,
        "vision_config": {
            "model_type": "qwen3_vl_vision",
            "depth": vision.layers,
            "hidden_size": vision.hidden,
            "hidden_act": "gelu_pytorch_tanh",
            "intermediate_size": vision.intermediate,
            "num_heads": vision.heads,
            "out_hidden_size": vision.out_hidden,
            "in_channels": vision.channels,
            "patch_size": vision.patch_size,
            "temporal_patch_size": vision.temporal_patch_size,
            "spatial_merge_size": vision.merge_size,
            "num_position_embeddings": vision.positions,
            "deepstack_visual_indexes": list(vision.deepstack_layers),
        },
        "image_token_id": image_pad,
        "vision_start_token_id": vision_start,
        "tie_word_embeddings": text.tied,
    }
