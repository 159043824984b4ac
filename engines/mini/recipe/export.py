"""Step 7: turns trained FP16 weights into a checkpoint folder that transformers loads.

python -m recipe.export --weights model.safetensors --tokenizer tokenizer.json --out DIR
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch

from .model import build
from .pictures import FACTOR, MAX_PIXELS, MIN_PIXELS
from .prompt import Vocabulary, load_tokenizer


def main() -> None:
    """Runs the step."""
    from safetensors.torch import load_file

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    model = build(Vocabulary.of(load_tokenizer(arguments.tokenizer)))
    weights = {name: value.float() for name, value in load_file(str(arguments.weights)).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or missing != ["lm_head.weight"]:
        raise ValueError(f"the weights do not fit: {missing} missing, {unexpected} unexpected")
    model.tie_weights()
    model.to(torch.float16).save_pretrained(arguments.out, safe_serialization=True)
    shutil.copy(arguments.tokenizer, arguments.out / "tokenizer.json")
    preprocessor = {
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "patch_size": FACTOR // 2,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": "bicubic",
    }
    (arguments.out / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")


if __name__ == "__main__":
    main()
