"""Training tables on the device: texts, concepts, synsets, pictures and teacher vectors."""

from __future__ import annotations

import io
import json
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .pack import COLOURED, SIDE, TEXT_TOKENS
from .records import LANGUAGES, MAX_KEYWORDS
from .sources import EVALUATION_ONLY

MAX_PICTURES = 8
_MIRRORED_WRONG = frozenset({"flags", "flag"})


def decode_all(packed: Path, *, workers: int = 12) -> np.ndarray:
    """All pictures as uint8 [N, 3, SIDE, SIDE]."""
    lengths = np.load(packed / "images.npz")["lengths"].astype(np.int64)
    ends = np.cumsum(lengths)
    raw = (packed / "images.bin").read_bytes()
    blobs = [raw[end - size : end] for end, size in zip(ends, lengths, strict=True)]
    with ProcessPoolExecutor(workers) as pool:
        parts = list(pool.map(_decode, [blobs[at : at + 400] for at in range(0, len(blobs), 400)]))
    return np.concatenate(parts)


def _decode(blobs: list[bytes]) -> np.ndarray:
    pictures = [np.asarray(Image.open(io.BytesIO(blob)).convert("RGB")) for blob in blobs]
    return np.stack(pictures).transpose(0, 3, 1, 2)


class TrainingData:
    """Everything that batches are drawn from. Held-out concepts and pictures are not in it.

    Text tables hold token ids [T, 32] with lengths, once for the start of a line and once for after a
    space. Concept tables are indexed by concept: NAME [C, 6] and KEYWORDS [C, 6, 14] hold text
    numbers (-1: none), PICTURES [C, 8] picture numbers.
    """

    def __init__(self, packed: Path, device: torch.device, pixels: np.ndarray | None) -> None:
        self.device = device
        tables = np.load(packed / "texts.npz")
        self.first = self._table(tables, "first")
        self.next = self._table(tables, "next")
        concepts = json.loads((packed / "concepts.json").read_text(encoding="utf-8"))
        count = len(concepts)
        names = np.full((count, len(LANGUAGES)), -1, np.int64)
        words = np.full((count, len(LANGUAGES), MAX_KEYWORDS), -1, np.int64)
        for number, concept in enumerate(concepts):
            for language, (name, keywords) in concept["labels"].items():
                column = LANGUAGES.index(language)
                names[number, column] = name
                chosen = keywords[:MAX_KEYWORDS]
                words[number, column, : len(chosen)] = chosen
        said = np.concatenate([names[:, :, None], words], 2).reshape(count, -1)
        said[said < 0] = -7
        meta = np.load(packed / "images.npz")
        styles = [str(style) for style in meta["style_names"]]
        pictures, counts = _pictures(concepts, meta, styles)
        others, other_counts = _other_styles(names[:, 0], pictures, counts)
        kinds = np.array([concept["kind"] for concept in concepts])
        train = np.array([concept["split"] == "train" for concept in concepts])
        drawn = train & (counts > 0)
        several = np.array([len(concept["labels"]) > 1 for concept in concepts])
        self.names, self.words, self.said = self._put(names), self._put(words), self._put(said)
        self.pictures, self.picture_counts = self._put(pictures), self._put(counts)
        self.others, self.other_counts = self._put(others), self._put(other_counts)
        self.emoji = self._put(np.flatnonzero(drawn & (kinds == "emoji")))
        self.icons = self._put(np.flatnonzero(drawn & (kinds == "icon")))
        self.clips = self._put(np.flatnonzero(drawn & (kinds == "clip")))
        self.terms = self._put(np.flatnonzero(train & several & (kinds == "term")))
        self.paired = self._put(np.flatnonzero(drawn & (other_counts > 1)))
        self.paired_emoji = self._put(np.flatnonzero(drawn & (other_counts > 1) & (kinds == "emoji")))
        fixed = [concept["group"] in _MIRRORED_WRONG or concept["kind"] == "icon" for concept in concepts]
        self.picture_fixed = self._put(np.array(fixed)[meta["concepts"]])
        self.picture_mono = self._put(np.array([styles[s] not in COLOURED for s in meta["styles"]]))
        self._synsets(tables)
        if pixels is None:  # a stand-in that lets the code run without the pictures
            grey = torch.randint(0, 255, (1, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
            self.pixels = grey.expand(len(meta["concepts"]), -1, -1, -1)
        else:
            self.pixels = torch.from_numpy(pixels).to(device)
        self.teacher: Tensor | None = None
        self.teacher_rows: Tensor | None = None

    def _put(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def _table(self, tables: np.lib.npyio.NpzFile, name: str) -> tuple[Tensor, Tensor]:
        lengths = tables[f"{name}_lengths"].astype(np.int64)
        ids = np.zeros((len(lengths), TEXT_TOKENS), np.int64)
        ids[np.arange(TEXT_TOKENS)[None] < lengths[:, None]] = tables[f"{name}_ids"]
        return self._put(ids), self._put(lengths)

    def _synsets(self, tables: np.lib.npyio.NpzFile) -> None:
        counts = tables["lemma_counts"].astype(np.int64)
        ends = np.cumsum(counts)
        lemmas = np.full((len(counts), counts.max()), -3, np.int64)
        flat = tables["lemmas"]  # once: every look into the archive unpacks it again
        for number, (end, size) in enumerate(zip(ends, counts, strict=True)):
            lemmas[number, :size] = flat[end - size : end]
        self.lemmas, self.lemma_counts = self._put(lemmas), self._put(counts)
        self.glosses = self._put(tables["glosses"].astype(np.int64))
        self.synsets = self._put(np.flatnonzero(tables["synset_splits"] == 0))

    def teach(self, rows: np.ndarray, vectors: Tensor) -> None:
        """Adds teacher vectors [R, D] of the texts numbered rows [R]."""
        where = torch.full((len(self.first[1]),), -1, dtype=torch.long, device=self.device)
        where[self._put(rows.astype(np.int64))] = torch.arange(len(rows), device=self.device)
        self.teacher_rows = where
        self.teacher = torch.nn.functional.normalize(vectors.to(self.device).float(), dim=-1)


def _pictures(
    concepts: list[dict[str, object]], meta: np.lib.npyio.NpzFile, styles: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    pictures = np.full((len(concepts), MAX_PICTURES), -1, np.int64)
    counts = np.zeros(len(concepts), np.int64)
    for number, (concept, code) in enumerate(zip(meta["concepts"], meta["styles"], strict=True)):
        style = styles[code]
        entry = concepts[concept]
        withheld = style == "twemoji" and entry["withheld"]
        if entry["split"] == "train" and style not in EVALUATION_ONLY and not withheld:
            pictures[concept, counts[concept]] = number
            counts[concept] += 1
    return pictures, counts


def _other_styles(names: np.ndarray, pictures: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of the same name in any set, for picture to picture."""
    same: dict[int, list[int]] = {}
    for concept in np.flatnonzero(counts):
        same.setdefault(int(names[concept]), []).append(int(concept))
    others = np.full((len(names), MAX_PICTURES), -1, np.int64)
    found = np.zeros(len(names), np.int64)
    for members in same.values():
        shown = [int(p) for member in members for p in pictures[member, : counts[member]]]
        for member in members:
            chosen = random.Random(member).sample(shown, min(MAX_PICTURES, len(shown)))
            others[member, : len(chosen)] = chosen
            found[member] = len(chosen)
    return others, found
