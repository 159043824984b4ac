"""Checks a checkpoint in transformers (FP32) against this recipe's own forward passes.

    python -m recipe.golden --checkpoint DIR --images DIR

Prints the largest difference of the margins over text, picture and mixed pairs, for the scorer (whole
prompts) and for the assembler (training's segments).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from .evaluate import Scorer, open_checkpoint
from .grids import GRIDS
from .model import FastModel
from .pictures import read_picture
from .prompt import image, prompt
from .sequence import Assembler, Constant, Image, Segment, Text

WORDS = (
    "red apple", "猫", "maison", "Hund", "perro y gato", "a motor vehicle with four wheels", "赤い車",
    "fire engine", "book?", "(tree)",
)  # fmt: skip


def patches_for_transformers(picture: np.ndarray) -> torch.Tensor:
    """[patches, 1536] as the reference's preprocessor lays them out."""
    x = torch.from_numpy(picture.transpose(2, 0, 1).copy()).float() / 127.5 - 1
    rows, columns = picture.shape[0] // 16, picture.shape[1] // 16
    frames = x[None].repeat(2, 1, 1, 1).reshape(1, 2, 3, rows // 2, 2, 16, columns // 2, 2, 16)
    return frames.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(rows * columns, -1)


def reference(model: Any, tokenizer: Tokenizer, text: str, pictures: list[np.ndarray]) -> float:
    """The margin of one prompt according to transformers."""
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
    pad = int(tokenizer.token_to_id("<|image_pad|>") or 0)
    extra: dict[str, Any] = {}
    if pictures:
        grids = [[1, p.shape[0] // 16, p.shape[1] // 16] for p in pictures]
        extra["pixel_values"] = torch.cat([patches_for_transformers(p) for p in pictures])
        extra["image_grid_thw"] = torch.tensor(grids)
    with torch.no_grad():
        out = model.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=torch.eq(ids, pad).int(),
            use_cache=False,
            **extra,
        )
        logits = model.lm_head(out.last_hidden_state[0, -1])
    return float(logits[tokenizer.token_to_id("yes")] - logits[tokenizer.token_to_id("no")])


def segments_margin(fast: FastModel, tokenizer: Tokenizer, query: str, document: list[Any]) -> float:
    """The margin by training's path; the document is words, a picture, or a picture and words."""
    assembler = Assembler(fast)

    def text(words: str) -> Text:
        ids = torch.tensor([tokenizer.encode(words, add_special_tokens=False).ids])
        return Text(ids, torch.ones_like(ids, dtype=torch.bool))

    from .augment import grid_number, patchify, scale

    parts: list[Segment] = [text(query + "\n"), Constant(assembler.document)]
    for part in document:
        if isinstance(part, str):
            parts.append(text(part))
        else:
            grid = torch.tensor([grid_number(*part.shape[:2])])
            pixels = torch.from_numpy(part.transpose(2, 0, 1).copy())[None]
            parts.append(Image(fast.vision(patchify(scale(pixels)), grid), grid))
    parts.append(Constant(assembler.tail))
    with torch.no_grad():
        return float(fast.margin(assembler.run(parts, torch.tensor([0]))))


def main() -> None:
    """Runs the check; exits with 1 where a difference reaches 1e-4."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    arguments = parser.parse_args()
    fast, tokenizer = open_checkpoint(arguments.checkpoint, torch.device("cpu"))
    pictures = [read_picture(path) for path in sorted(arguments.images.iterdir()) if path.suffix in (".png", ".webp")]
    # Other grids than the square one, by stretching.
    from PIL import Image as Pil

    for n, (rows, columns) in enumerate(GRIDS[:7]):
        size = (columns * 16, rows * 16)
        pictures[n] = np.asarray(Pil.fromarray(pictures[n]).resize(size))
    with torch.no_grad():
        scorer = Scorer(fast, tokenizer, pictures)
    worst = worst_segments = 0.0
    for n in range(30):
        a, b = WORDS[n % len(WORDS)], WORDS[(n * 3 + 1) % len(WORDS)]
        first, second = n % len(pictures), (n * 5 + 2) % len(pictures)
        query: list[Any] = [{"picture": first}] if n % 6 in (2, 3) else [{"text": a}]
        document: list[Any] = ([{"picture": second}] if n % 6 in (1, 3, 4) else []) + (
            [{"text": b}] if n % 6 in (0, 2, 4, 5) else []
        )
        own = float(scorer.margins([(query, document)], lambda part: part["picture"])[0])

        def say(parts: list[Any]) -> str:
            return "".join(
                part["text"]
                if "text" in part
                else image(pictures[part["picture"]].shape[0] * pictures[part["picture"]].shape[1] // 1024)
                for part in parts
            )

        shown = [pictures[part["picture"]] for part in query + document if "picture" in part]
        true = reference(fast.model, tokenizer, prompt(say(query), say(document)), shown)
        worst = max(worst, abs(true - own))
        if "text" in query[0] and not b.startswith("("):
            parts = [part.get("text", pictures[part["picture"]] if "picture" in part else "") for part in document]
            worst_segments = max(worst_segments, abs(true - segments_margin(fast, tokenizer, a, parts)))
        print(f"{n:2} {true:9.5f} {own:9.5f}")
    print(f"largest difference: scorer {worst:.2e}, segments {worst_segments:.2e}")
    raise SystemExit(int(max(worst, worst_segments) >= 1e-4))


if __name__ == "__main__":
    main()
