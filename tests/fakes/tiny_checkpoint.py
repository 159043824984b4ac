"""A checkpoint of the real architecture, small and random: what the commands do with it does not depend on sense."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from orin_rerank.graph.architecture import read_architecture
from orin_rerank.graph.text import text_weights
from orin_rerank.graph.vision import vision_weights
from orin_rerank.graph.weights import MARGIN_ROW

TOKENIZER = Path(__file__).resolve().parents[2] / "engines" / "mini" / "tokenizer.json"

TEXT = {
    "model_type": "qwen3_vl_text",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "max_position_embeddings": 512,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_interleaved": True,
        "mrope_section": [4, 2, 2],
    },
    "tie_word_embeddings": True,
    "vocab_size": 12314,
}
VISION = {
    "model_type": "qwen3_vl_vision",
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 32,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "deepstack_visual_indexes": [0],
}


def write_checkpoint(folder: Path) -> Path:
    """Writes config.json, tokenizer.json and model.safetensors."""
    folder.mkdir(parents=True)
    config = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": VISION, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    architecture = read_architecture(folder)
    specs = [*text_weights(architecture.text, vl=True), *vision_weights(architecture.vision)]
    random = np.random.default_rng(7)
    save_file(
        {spec.name: random.normal(0, 0.1, spec.shape).astype(np.float16) for spec in specs if spec.name != MARGIN_ROW},
        folder / "model.safetensors",
    )
    return folder
