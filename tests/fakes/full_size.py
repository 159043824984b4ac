"""Checkpoints of the published models as they lie on disk: sharded BF16 of the true shapes, with random numbers.

Their weights are not here, but a converter sees only names, shapes and bytes; config.json is in the spelling that the
published folders have.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from fakes.random_models import QWEN3_06B, QWEN3_4B, QWEN3_8B, VL_2B, VL_8B
from fakes.tiny_checkpoint import TOKENIZER
from orin_rerank.graph.text import text_weights
from orin_rerank.graph.vision import vision_weights
from orin_rerank.graph.weights import MARGIN_ROW

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from orin_rerank.graph.architecture import Architecture, TextArchitecture, VisionArchitecture

__all__ = ["PUBLISHED", "published_config", "shapes_of", "write_full_size", "write_shards"]

PUBLISHED = {"vl-2b": VL_2B, "vl-8b": VL_8B, "0.6b": QWEN3_06B, "4b": QWEN3_4B, "8b": QWEN3_8B}
SHARD_BYTES = 5_000_000_000
_BLOCK = 1 << 20


def shapes_of(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint, the head included where it is stored."""
    specs = text_weights(architecture.text, vl=architecture.vision is not None)
    specs += vision_weights(architecture.vision) if architecture.vision is not None else []
    shapes = {spec.name: spec.shape for spec in specs if spec.name != MARGIN_ROW}
    if not architecture.text.tied:
        shapes["lm_head.weight"] = (architecture.text.vocabulary, architecture.text.hidden)
    return shapes


def published_config(architecture: Architecture) -> dict[str, Any]:
    """config.json of a published folder."""
    text, vision = architecture.text, architecture.vision
    if vision is None:
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "max_window_layers": text.layers,
            "rope_scaling": None,
            "sliding_window": None,
            "tie_word_embeddings": text.tied,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.51.3",
            "use_sliding_window": False,
            **_decoder(text),
        }
    section = {"mrope_interleaved": True, "mrope_section": list(text.mrope_section or ()), "rope_type": "default"}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": {"model_type": "qwen3_vl_text", "dtype": "bfloat16", "rope_scaling": section, **_decoder(text)},
        "tie_word_embeddings": text.tied,
        "transformers_version": "4.57.1",
        "vision_config": _encoder(vision),
    }


def _decoder(text: TextArchitecture) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": text.head_dim,
        "hidden_act": "silu",
        "hidden_size": text.hidden,
        "initializer_range": 0.02,
        "intermediate_size": text.intermediate,
        "max_position_embeddings": 40960,
        "num_attention_heads": text.heads,
        "num_hidden_layers": text.layers,
        "num_key_value_heads": text.kv_heads,
        "rms_norm_eps": text.rms_norm_eps,
        "rope_theta": round(text.rope_theta),
        "use_cache": True,
        "vocab_size": text.vocabulary,
    }


def _encoder(vision: VisionArchitecture) -> dict[str, Any]:
    return {
        "deepstack_visual_indexes": list(vision.deepstack_layers),
        "depth": vision.layers,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": vision.hidden,
        "in_channels": vision.channels,
        "initializer_range": 0.02,
        "intermediate_size": vision.intermediate,
        "model_type": "qwen3_vl",
        "num_heads": vision.heads,
        "num_position_embeddings": vision.positions,
        "out_hidden_size": vision.out_hidden,
        "patch_size": vision.patch_size,
        "spatial_merge_size": vision.merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
    }


def write_full_size(
    folder: Path, architecture: Architecture, *, shard_bytes: int = SHARD_BYTES, sparse: bool = False
) -> Path:
    """Writes config.json, tokenizer.json, the preprocessor's configuration and shards with their index.

    Args:
        folder: Made here.
        architecture: The model's.
        shard_bytes: Most that a shard holds.
        sparse: Whether weights are zeros that take no room on the disk.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(published_config(architecture), indent=2))
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    if architecture.vision is not None:
        size = {"longest_edge": 1_310_720, "shortest_edge": 4096}
        half = [0.5, 0.5, 0.5]
        preprocessor = {"size": size, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
        preprocessor |= {"image_mean": half, "image_std": half, "image_processor_type": "Qwen2VLImageProcessorFast"}
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    write_shards(folder, shapes_of(architecture), shard_bytes, sparse=sparse)
    return folder


def write_shards(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], shard_bytes: int = SHARD_BYTES, *, sparse: bool = False
) -> None:
    """Writes BF16 shards the way transformers cuts them: full up to a limit, a tensor never in two."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    room = shard_bytes
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        if size > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = shape
        room -= size
    block = np.random.default_rng(11).standard_normal(_BLOCK, dtype=np.float32) * np.float32(0.02)
    bits = (block.view(np.uint32) >> np.uint32(16)).astype("<u2")
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map |= dict.fromkeys(shard, file)
        _write_shard(folder / file, shard, None if sparse else bits)
    total = sum(2 * math.prod(shape) for shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _write_shard(path: Path, shapes: Mapping[str, tuple[int, ...]], bits: np.ndarray | None) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, shape in shapes.items():
        end = begin + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        if bits is None:
            out.truncate(out.tell() + begin)
            return
        for name, shape in shapes.items():
            own = np.roll(bits, zlib.crc32(name.encode()) % _BLOCK)  # no two tensors are equal
            for done in range(0, math.prod(shape), _BLOCK):
                out.write(own[: math.prod(shape) - done].data)
