"""Random checkpoints in Hugging Face layout, made from formulas: the same numbers wherever they are made."""

from __future__ import annotations

import json
import math
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from orin_rerank.graph.architecture import read_architecture
from orin_rerank.graph.text import text_weights
from orin_rerank.graph.vision import vision_weights
from orin_rerank.graph.weights import MARGIN_ROW

TOKENIZER = Path(__file__).resolve().parents[2] / "engines" / "mini" / "tokenizer.json"
VOCABULARY = 12314
IMAGE_PAD, VISION_START, VISION_END, VIDEO_PAD = 12300, 12297, 12298, 12301

TEXT: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "vocab_size": VOCABULARY,
}
_VL_TEXT = {
    **TEXT,
    "model_type": "qwen3_vl_text",
    "num_hidden_layers": 3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_interleaved": True,
        "mrope_section": [4, 2, 2],
    },
}
VL: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "text_config": {key: value for key, value in _VL_TEXT.items() if key != "architectures"},
    "vision_config": {
        "model_type": "qwen3_vl_vision",
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_heads": 2,
        "num_position_embeddings": 36,
        "out_hidden_size": 32,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "deepstack_visual_indexes": [0, 2],
    },
    "image_token_id": IMAGE_PAD,
    "video_token_id": VIDEO_PAD,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "tie_word_embeddings": True,
}


def uniform(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 numbers in -1..1 that depend on the name and their place only (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()) << 24)
        x *= np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return ((x >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)).reshape(shape)


def random_tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight large enough for attention to prefer some tokens; norms are around one."""
    values = uniform(name, shape)
    if len(shape) == 1:
        return values * np.float32(0.3) + np.float32("norm" in name and name.endswith("weight"))
    scale = 0.6 if "embed" in name or "lm_head" in name else 2.5 / math.sqrt(math.prod(shape[1:]))
    return values * np.float32(scale)


def tensors_of(config: dict[str, Any], folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of the configuration that lies in `folder`."""
    architecture = read_architecture(folder)
    vl = architecture.vision is not None
    specs = text_weights(architecture.text, vl=vl)
    if architecture.vision is not None:
        specs += vision_weights(architecture.vision)
    tensors = {spec.name: random_tensor(spec.name, spec.shape) for spec in specs if spec.name != MARGIN_ROW}
    if not config["tie_word_embeddings"]:
        shape = (architecture.text.vocabulary, architecture.text.hidden)
        tensors["lm_head.weight"] = random_tensor("lm_head.weight", shape)
    return tensors


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F16") -> None:
    header: dict[str, Any] = {}
    bodies = []
    begin = 0
    for name, values in tensors.items():
        if dtype == "BF16":
            body = (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
        else:
            body = values.astype({"F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8"}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [begin, begin + len(body)]}
        begin += len(body)
        bodies.append(body)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(bodies))


def write_sharded(folder: Path, tensors: dict[str, np.ndarray], dtype: str = "F16", shards: int = 3) -> None:
    """Writes tensors to shards with an index, in place of model.safetensors."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = names[number::shards]
        write_safetensors(folder / file, {name: tensors[name] for name in part}, dtype)
        weight_map |= dict.fromkeys(part, file)
    write_index(folder, weight_map)


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_checkpoint(folder: Path, config: dict[str, Any], dtype: str = "F16") -> Path:
    """Writes config.json, tokenizer.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    write_safetensors(folder / "model.safetensors", tensors_of(config, folder), dtype)
    return folder
