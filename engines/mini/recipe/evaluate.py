"""Scores evaluation items with whole prompts, as a server would, in FP32.

As a program it scores a data set folder (dataset.jsonl with images/) with a checkpoint:

    python -m recipe.evaluate --checkpoint DIR --dataset DIR
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer
from torch import Tensor

from . import metrics
from .augment import grid_number, patchify, scale
from .grids import GRIDS
from .model import DEEPSTACK, HIDDEN, FastModel, embed
from .pool import Item, Part
from .prompt import DEFAULT_INSTRUCTION, Vocabulary, image, prompt

MAX_TOKENS_A_BATCH = 60_000
Pixels = np.ndarray  # uint8 [H, W, 3], sides of a grid that the tables know


@dataclass(frozen=True)
class Encoded:
    """A tokenised sequence and the numbers of the images in it, in order."""

    ids: list[int]
    images: list[int]


class Scorer:
    """Scores parts that are {"text": ...} or pictures, which `picture_of` numbers."""

    def __init__(self, fast: FastModel, tokenizer: Tokenizer, pixels: Sequence[Pixels]) -> None:
        self.fast = fast
        self.tokenizer = tokenizer
        self.pad = fast.vocabulary.special["<|image_pad|>"]
        self.grids = [grid_number(*picture.shape[:2]) for picture in pixels]
        self.features = torch.zeros(len(pixels), 1 + len(DEEPSTACK), 16, HIDDEN, device=fast.device)
        for grid in set(self.grids):
            members = [n for n, own in enumerate(self.grids) if own == grid]
            for at in range(0, len(members), 256):
                chosen = members[at : at + 256]
                stack = np.stack([pixels[n] for n in chosen]).transpose(0, 3, 1, 2)
                x = patchify(scale(torch.from_numpy(stack).to(fast.device)))
                found = fast.vision(x, torch.tensor([grid], device=fast.device))
                self.features[torch.tensor(chosen, device=fast.device)] = torch.stack(found, 1).float()

    def _say(self, parts: Iterable[Part], number: Callable[[Part], int]) -> tuple[str, list[int]]:
        images = [number(part) for part in parts if "text" not in part]
        words = "".join(part["text"] for part in parts if "text" in part)
        shown = "".join(image(GRIDS[self.grids[n]][0] * GRIDS[self.grids[n]][1] // 4) for n in images)
        return (shown + words) or "NULL", images

    def margins(
        self,
        pairs: Sequence[tuple[list[Part], list[Part]]],
        number: Callable[[Part], int],
        instruction: str = DEFAULT_INSTRUCTION,
    ) -> Tensor:
        """The cross-encoder's margins of (query, document) pairs, on the host."""
        texts, images = [], []
        for query, document in pairs:
            asked, seen = self._say(query, number)
            told, shown = self._say(document, number)
            texts.append(prompt(asked, told, instruction))
            images.append(seen + shown)
        hidden = self._run(texts, images)
        return self.fast.margin(hidden.to(self.fast.device)).cpu()

    def embeddings(self, contents: Sequence[list[Part]], number: Callable[[Part], int]) -> Tensor:
        """The bi-encoder's unit vectors, on the host."""
        said = [self._say(parts, number) for parts in contents]
        hidden = self._run([text + "<|im_end|>" for text, _ in said], [images for _, images in said])
        return F.normalize(hidden, dim=-1)

    def _run(self, texts: list[str], images: list[list[int]]) -> Tensor:
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        rows = [Encoded(list(e.ids), i) for e, i in zip(encoded, images, strict=True)]
        order = sorted(range(len(rows)), key=lambda n: len(rows[n].ids))
        out = torch.zeros(len(rows), HIDDEN)
        at = 0
        while at < len(order):
            # Sorted by length: take rows until the batch, padded to its longest, is full.
            take = 1
            while at + take < len(order) and (take + 1) * len(rows[order[at + take]].ids) <= MAX_TOKENS_A_BATCH:
                take += 1
            chosen = order[at : at + take]
            out[torch.tensor(chosen)] = self._batch([rows[n] for n in chosen]).float().cpu()
            at += take
        return out

    def _batch(self, rows: list[Encoded]) -> Tensor:
        """Left-pads the rows and runs them."""
        fast, device = self.fast, self.fast.device
        size, length = len(rows), max(len(row.ids) for row in rows)
        ids = np.zeros((size, length), np.int64)
        place = np.zeros((4, size, length), np.float32)  # position, row, column, exists
        spots: list[tuple[int, int, int, int]] = []
        for n, row in enumerate(rows):
            begin = length - len(row.ids)
            ids[n, begin:] = row.ids
            place[3, n, begin:] = 1
            self._positions(row, place[:3, n, begin:], n, begin, spots)
        table = torch.from_numpy(place).to(device)
        x = embed(fast.table, torch.from_numpy(ids).to(device))
        deep = None
        if spots:
            where = torch.tensor(spots, device=device)
            found = self.features[where[:, 2], :, where[:, 3]]
            x = x.clone()
            x[where[:, 0], where[:, 1]] = found[:, 0]
            deep = []
            for tap in range(len(DEEPSTACK)):
                extra = torch.zeros_like(x)
                extra[where[:, 0], where[:, 1]] = found[:, 1 + tap]
                deep.append(extra)
        exists = table[3] > 0
        steps = torch.arange(length, device=device)
        seen = (steps[:, None] >= steps[None])[None] & exists[:, None, :] | (steps[:, None] == steps[None])[None]
        mask = torch.zeros(seen.shape, device=device).masked_fill_(~seen, -1e9)[:, None]
        return fast.decode(x, fast.rotary(table[0], table[1], table[2]), mask, deep, None)

    def _positions(
        self, row: Encoded, place: np.ndarray, n: int, begin: int, spots: list[tuple[int, int, int, int]]
    ) -> None:
        position, at = 0, 0
        images = iter(row.images)
        while at < len(row.ids):
            if row.ids[at] != self.pad:
                place[0, at] = position
                position += 1
                at += 1
                continue
            picture = next(images)
            rows, columns = (side // 2 for side in GRIDS[self.grids[picture]])
            inside = np.arange(rows * columns)
            place[0, at : at + len(inside)] = position
            place[1, at : at + len(inside)] = inside // columns
            place[2, at : at + len(inside)] = inside % columns
            spots.extend((n, begin + at + k, picture, k) for k in range(len(inside)))
            position += max(rows, columns)
            at += len(inside)


@torch.no_grad()
def figures(
    scorer: Scorer, items: Sequence[Item], number: Callable[[Part], int], *, cross: bool
) -> tuple[list[float], list[list[float]]]:
    """Mean (NDCG@10, MRR, pairwise accuracy) over the items, and every item's scores."""
    counts = [len(item["documents"]) for item in items]
    if cross:
        pairs = [(item["query"], document["content"]) for item in items for document in item["documents"]]
        flat = scorer.margins(pairs, number)
    else:
        documents = [document["content"] for item in items for document in item["documents"]]
        asked = scorer.embeddings([item["query"] for item in items], number)
        found = scorer.embeddings(documents, number)
        owner = torch.arange(len(items)).repeat_interleave(torch.tensor(counts))
        flat = (asked[owner] * found).sum(-1)
    scores = [part.tolist() for part in torch.split(flat, counts)]
    rows = [
        metrics.evaluate(score, [document["relevance"] for document in item["documents"]])
        for score, item in zip(scores, items, strict=True)
    ]
    return [round(sum(column) / len(rows), 4) for column in zip(*rows, strict=True)], scores


def packed_scorer(
    fast: FastModel, tokenizer: Tokenizer, tasks: dict[str, list[Item]], pixels: np.ndarray
) -> tuple[Scorer, Callable[[Part], int]]:
    """A scorer over the packed pictures [N, 3, 128, 128] that the tasks refer to."""
    used = sorted(
        {
            part["picture"]
            for items in tasks.values()
            for item in items
            for parts in (item["query"], *(document["content"] for document in item["documents"]))
            for part in parts
            if "picture" in part
        }
    )
    index = {picture: n for n, picture in enumerate(used)}
    with torch.no_grad():
        scorer = Scorer(fast, tokenizer, [pixels[picture].transpose(1, 2, 0) for picture in used])
    return scorer, lambda part: index[part["picture"]]


def open_checkpoint(path: Path, device: torch.device) -> tuple[FastModel, Tokenizer]:
    """Loads a checkpoint folder in FP32."""
    from transformers import Qwen3VLForConditionalGeneration

    from .prompt import load_tokenizer

    tokenizer = load_tokenizer(path / "tokenizer.json")
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(path, dtype=torch.float32)
    return FastModel(model.to(device).eval(), Vocabulary.of(tokenizer)), tokenizer


def main() -> None:
    """Prints the figures of every split of a data set."""
    from .pictures import read_picture

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--dataset", type=Path, required=True)
    arguments = parser.parse_args()
    fast, tokenizer = open_checkpoint(arguments.checkpoint, torch.device("cpu"))
    lines = (arguments.dataset / "dataset.jsonl").read_text(encoding="utf-8").splitlines()
    items = [json.loads(line) for line in lines]
    names = sorted(
        {
            part["image"]
            for item in items
            for parts in (item["query"], *(document["content"] for document in item["documents"]))
            for part in parts
            if "image" in part
        }
    )
    index = {name: n for n, name in enumerate(names)}
    with torch.no_grad():
        scorer = Scorer(fast, tokenizer, [read_picture(arguments.dataset / name) for name in names])
    splits: dict[str, list[Item]] = {}
    for item in items:
        splits.setdefault(item["split"], []).append(item)
    for split, members in sorted(splits.items()):
        found = figures(scorer, members, lambda part: index[part["image"]], cross=True)[0]
        print(f"{split:40} {len(members):4} queries  NDCG@10 {found[0]:.3f}  MRR {found[1]:.3f}  pairs {found[2]:.3f}")


if __name__ == "__main__":
    main()
