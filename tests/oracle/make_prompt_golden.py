"""Writes tests/prompt/golden/ from the reference implementations, so that exactness is checked without torch.

Run with transformers, torch and qwen-vl-utils installed: `python tests/oracle/make_prompt_golden.py`.
Inputs are made from formulas and stored beside the results; nothing of the product is used.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracle import prompt_reference as oracle
from prompt.pictures import file_of, gradient
from prompt.reference import GOLDEN, MULTILINGUAL, TOKENIZER_PATH, text_prompt, vl_prompt

LIMITS = ((4 * 32 * 32, 1800 * 32 * 32), (4 * 32 * 32, 16 * 32 * 32), (64 * 32 * 32, 1280 * 32 * 32))
GRIDS = ((2, 2), (4, 6), (10, 2))
LAYOUTS = ([5], [3, [2, 2], 4], [1, [3, 5], 1, [4, 1], 2], [[1, 1]], [2, [7, 3], 1])


def resize_cases() -> list[list[int]]:
    rng = random.Random(1)
    sizes = [(rng.randint(1, 4000), rng.randint(1, 4000)) for _ in range(150)]
    sizes += [(16, 16), (48, 80), (1, 1), (1, 200), (112, 80), (4000, 20), (3000, 4000), (720, 1280)]
    cases = []
    for low, high in LIMITS:
        for height, width in sizes:
            if max(height, width) / min(height, width) > 200:
                continue
            rows, columns = oracle.smart_resize(height, width, low, high)
            if rows and columns:  # qwen-vl-utils lets a thin side vanish, and then fails
                cases.append([low, high, height, width, rows, columns])
    return cases


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER_PATH))
    prompts = {
        name: [
            tokenizer(make(query, document), add_special_tokens=False)["input_ids"]
            for query, document in zip(MULTILINGUAL, reversed(MULTILINGUAL), strict=True)
        ]
        for name, make in (("vl", vl_prompt), ("text", text_prompt))
    }
    golden = {
        "resize": resize_cases(),
        "positions": [{"layout": layout, "positions": oracle.rope_index(layout)} for layout in LAYOUTS],
        "prompts": prompts,
    }
    (GOLDEN / "integers.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    arrays: dict[str, np.ndarray] = {}
    for rows, columns in GRIDS:
        for head_dim in (64, 72):
            for name, array in oracle.vision((rows, columns), head_dim).items():
                arrays[f"vision/{rows}x{columns}/{head_dim}/{name}"] = array
    for height, width, patch_size in ((32, 32, 16), (16, 24, 4)):
        arrays[f"patches/{height}x{width}/{patch_size}"] = oracle.patches(gradient(height, width), patch_size)
    for height, width, channels in ((70, 111, 3), (40, 33, 4), (500, 300, 3)):
        file = file_of(Image.fromarray(gradient(height, width, channels)), "PNG")
        arrays[f"pixels/{height}x{width}x{channels}"] = oracle.fetched(file, 4096, 3 * 4096)
    np.savez_compressed(GOLDEN / "arrays.npz", **arrays)


if __name__ == "__main__":
    main()
