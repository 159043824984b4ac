"""Step 4: packs texts, concepts and pictures into the few files that training reads.

    python -m recipe.pack --work DIR --tokenizer tokenizer.json

Writes DIR/packed/: texts.npz (token tables), concepts.json, texts.json, images.bin and images.npz.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from . import wordnet
from .prompt import load_tokenizer
from .records import Concept, Work, load_concepts

SIDE = 128
TEXT_TOKENS = 32
MAX_LEMMAS = 6
_MONOCHROME_COLOURS = 8
_BLANK = 3.0
COLOURED = frozenset(
    {
        "noto", "notov1", "twemoji", "fluent", "fluent3d", "fxemoji", "emojione", "clip",
        "fluentcolor", "flatcolor", "iconpark", "meteocons",
    }
)  # fmt: skip


class Texts:
    """Numbers texts in order of first use."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._ids: dict[str, int] = {}

    def add(self, text: str) -> int:
        """The number of a text, less the punctuation around it (it would merge with the prompt)."""
        bare = text.strip().strip(".;,:!?\"'“”„«»()[]") or text.strip()
        if bare not in self._ids:
            self._ids[bare] = len(self.all)
            self.all.append(bare)
        return self._ids[bare]


def pack_texts(work: Work, tokenizer_path: Path, concepts: list[Concept]) -> None:
    """Writes the token tables of every text, at the start of a line and after a space."""
    tokenizer = load_tokenizer(tokenizer_path)
    texts = Texts()
    packed = []
    for concept in concepts:
        labels = {
            language: [
                texts.add(name),
                [texts.add(word) for word in concept.keywords.get(language, []) if 0 < len(word) < 40],
            ]
            for language, name in concept.names.items()
        }
        packed.append(
            {
                "kind": concept.kind,
                "split": concept.split,
                "withheld": concept.style_withheld,
                "group": concept.group,
                "labels": labels,
            }
        )
    synsets = wordnet.load(work.data / "synsets.jsonl")
    lemmas = [[texts.add(lemma) for lemma in synset.lemmas[:MAX_LEMMAS]] for synset in synsets]
    glosses = [texts.add(synset.gloss) for synset in synsets]
    tables: dict[str, Any] = {}
    for name, lead in (("first", ""), ("next", " ")):
        encoded = tokenizer.encode_batch([lead + text for text in texts.all], add_special_tokens=False)
        ids = [entry.ids[:TEXT_TOKENS] for entry in encoded]
        tables[f"{name}_ids"] = np.concatenate([np.array(row, np.uint16) for row in ids])
        tables[f"{name}_lengths"] = np.array([len(row) for row in ids], np.uint8)
    codes = {"train": 0, "val": 1, "test": 2}
    np.savez_compressed(
        work.packed / "texts.npz",
        lemmas=np.concatenate([np.array(row, np.int32) for row in lemmas]),
        lemma_counts=np.array([len(row) for row in lemmas], np.uint8),
        glosses=np.array(glosses, np.int32),
        synset_splits=np.array([codes[synset.split] for synset in synsets], np.uint8),
        **tables,
    )
    _dump(work.packed / "concepts.json", packed)
    _dump(work.packed / "texts.json", texts.all)
    print(len(texts.all), "texts")


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _fingerprint(pixels: np.ndarray) -> int:
    """A 256-bit difference hash."""
    small = np.asarray(Image.fromarray(pixels).convert("L").resize((17, 16), Image.Resampling.BOX))
    bits = (small[:, 1:].astype(int) > small[:, :-1].astype(int) + 2).ravel()
    return int("".join("1" if bit else "0" for bit in bits), 2)


def _encode(job: tuple[np.ndarray, str]) -> tuple[bytes, int, float]:
    pixels, style = job
    out = io.BytesIO()
    if style in COLOURED:
        Image.fromarray(pixels).save(out, "WEBP", quality=80, method=2)
    else:
        grey = Image.fromarray(pixels).convert("L").quantize(_MONOCHROME_COLOURS)
        grey.save(out, "PNG", optimize=True)
    return out.getvalue(), _fingerprint(pixels), float(pixels.std())


def _rendered(work: Work, styles: dict[int, str]) -> Iterator[tuple[int, np.ndarray, str]]:
    for path in sorted(work.data.glob("pixels.*.bin")):
        ids = [int(line) for line in path.with_suffix(".txt").read_text().split()]
        pixels = np.memmap(path, np.uint8, "r").reshape(-1, SIDE, SIDE, 3)
        for number, picture in zip(ids, pixels, strict=True):
            yield number, np.array(picture), styles[number]


def pack_images(work: Work, concepts: list[Concept]) -> None:
    """Writes the pictures; repeats under one name, and blank ones, are left out."""
    meta: dict[int, tuple[int, str]] = {}
    with (work.data / "svg.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            meta[record["id"]] = (record["concept"], record["style"])
    styles = {number: style for number, (_, style) in meta.items()}
    jobs = sorted(_rendered(work, styles), key=lambda job: job[0])
    with ProcessPoolExecutor(2) as pool:
        encoded = pool.map(_encode, [job[1:] for job in jobs], chunksize=200)
        kept = []
        seen = set()
        for (number, _, style), (data, mark, contrast) in zip(jobs, encoded, strict=True):
            concept = meta[number][0]
            identity = (mark, concepts[concept].names["en"].lower())
            if contrast > _BLANK and identity not in seen:
                seen.add(identity)
                kept.append((data, concept, style))
    names = sorted({style for _, _, style in kept})
    (work.packed / "images.bin").write_bytes(b"".join(data for data, _, _ in kept))
    np.savez_compressed(
        work.packed / "images.npz",
        lengths=np.array([len(data) for data, _, _ in kept], np.int32),
        concepts=np.array([concept for _, concept, _ in kept], np.int32),
        styles=np.array([names.index(style) for _, _, style in kept], np.uint8),
        style_names=np.array(names),
    )
    size = sum(len(data) for data, _, _ in kept)
    print(f"{len(kept)} pictures of {len(jobs)} kept, {size / 2**20:.1f} MiB")


def main() -> None:
    """Runs the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    arguments = parser.parse_args()
    work = Work(arguments.work)
    work.packed.mkdir(parents=True, exist_ok=True)
    concepts = load_concepts(work.data / "concepts.jsonl")
    pack_texts(work, arguments.tokenizer, concepts)
    pack_images(work, concepts)


if __name__ == "__main__":
    main()
