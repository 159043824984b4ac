"""Step 5b: writes the evaluation and calibration sets that ship with the product.

    python -m recipe.ship --work DIR --out ../../calibration_data

The evaluation set asks for concepts that training never saw, or for pictures in the withheld style. The
calibration set is drawn from training and validation concepts, less everything evaluation touches.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from .pool import EMOJI_STYLES, ICON_STYLES, Item, Part, Pool, item
from .records import Work

_SEED = 29
_DRAWN = 2  # times as many items as are needed, since not every one judges fairly
_WITHHELD = ("twemoji",)
_CALIBRATION_STYLES = ("noto", "fluent", "notov1", "fxemoji")
# Width x height of calibration pictures, so that other grids than the square one are calibrated too.
_SHAPES = ((128, 128), (128, 128), (128, 128), (128, 96), (96, 128), (160, 96), (96, 160), (64, 64), (256, 256))


def partial(pool: Pool, items: list[Item], candidates: list[int], styles: tuple[str, ...]) -> None:
    """Grades text-to-image items: the concept is 2, and one that shares a word of the query is 1."""
    for entry in items:
        entry["documents"][0]["relevance"] = 2
        words = set(entry["words"])
        related = [
            other
            for other in candidates
            if other != entry["concept"] and words & pool.words_of(other) and other not in entry["others"]
        ]
        for place, other in enumerate(pool.random.sample(related, min(2, len(related)))):
            document = entry["documents"][-1 - place]
            document["content"] = [pool.picture(other, styles)]
            document["relevance"] = 1


def graded(pool: Pool, candidates: list[int], styles: tuple[str, ...], count: int) -> list[Item]:
    """Text to image with grades."""
    candidates = pool.having(candidates, styles)
    items = []
    for concept in pool.draw(candidates, count):
        query = pool.query(concept)
        others = pool.negatives(concept, query.words, candidates)
        contents = [[pool.picture(other, styles)] for other in [concept, *others]]
        entry = item([{"text": pool.say(query)}], contents, query.language)
        items.append({**entry, "words": query.words, "concept": concept, "others": others})
    partial(pool, items, candidates, styles)
    return [{key: entry[key] for key in ("language", "query", "documents")} for entry in items]


def evaluation(pool: Pool, pictures: Pictures) -> dict[str, list[Item]]:
    """200 queries of 20 candidates."""
    test, withheld, drawn = pool.emoji("test"), pool.emoji("train", withheld=True), pool.drawn("test")

    def sound(draw: Callable[[int], list[Item]], count: int) -> list[Item]:
        return sound_items(draw(_DRAWN * count), pictures, pool.random, count)

    return {
        "text-to-image/unseen-style": sound(lambda n: graded(pool, withheld, _WITHHELD, n), 60),
        "text-to-image/unseen-concept": sound(lambda n: graded(pool, test, EMOJI_STYLES, n), 25)
        + sound(lambda n: graded(pool, drawn, ICON_STYLES, n), 15),
        "text-to-text/lexical": sound(lambda n: pool.text_to_text(test + drawn, n, cross=False), 17),
        "text-to-text/cross-lingual": sound(lambda n: pool.text_to_text(test, n, cross=True), 17),
        "text-to-text/gloss": sound(lambda n: pool.gloss(2, n), 16),
        "image-to-text/unseen-style": sound(lambda n: pool.image_to_text(withheld, _WITHHELD, n), 20),
        "image-to-image/unseen-concept": sound(
            lambda n: pool.image_to_image(test, ("noto",), ("twemoji", "fluent"), n), 15
        ),
        "mixed/unseen-style": sound(lambda n: pool.mixed(withheld, _WITHHELD, n), 15),
    }


def sound_items(items: list[Item], pictures: Pictures, random: Random, count: int) -> list[Item]:
    """The first `count` items that judge fairly, their documents shuffled.

    No two ask the same, and none shows the same content twice among its documents: sets name some pictures more than
    once. The right document must not always come first, or a ranker that changes nothing would look perfect.
    """

    def key(content: list[Part]) -> str:
        return json.dumps([pictures.name(part["picture"]) if "picture" in part else part["text"] for part in content])

    asked: set[str] = set()
    chosen: list[Item] = []
    for entry in items:
        query, shown = key(entry["query"]), {key(document["content"]) for document in entry["documents"]}
        if query in asked or query in shown or len(shown) < len(entry["documents"]):
            continue
        asked.add(query)
        chosen.append({**entry, "documents": random.sample(entry["documents"], len(entry["documents"]))})
    if len(chosen) < count:
        raise ValueError(f"only {len(chosen)} of {count} items judge fairly")
    return chosen[:count]


def calibration(pool: Pool) -> dict[str, list[Item]]:
    """65 queries of 5 candidates: 325 pairs, text 31 %, mixed 40 %, image 29 %."""
    concepts = [c for c in pool.emoji("train") if not pool.concepts[c]["withheld"]] + pool.emoji("val")
    drawn = pool.drawn("val") + pool.random.sample(pool.drawn("train"), 400)
    styles = _CALIBRATION_STYLES
    wanted = {
        "text": pool.text_to_text(concepts, 6, cross=True)
        + pool.text_to_text(concepts + drawn, 5, cross=False)
        + pool.gloss(1, 5)
        + long_passages(pool, 4),
        "mixed": pool.mixed(concepts, styles, 26),
        "image": pool.text_to_image(concepts, styles, 7)
        + pool.text_to_image(drawn, ICON_STYLES, 4)
        + pool.image_to_text(concepts, styles, 4)
        + pool.image_to_image(concepts, ("noto",), ("fluent", "fxemoji"), 4),
    }
    for items in wanted.values():
        for entry in items:
            entry["documents"] = entry["documents"][:5]
    return wanted


def long_passages(pool: Pool, count: int) -> list[Item]:
    """A word asks for a passage of several explanations: the long end of the lengths."""
    glosses = pool.gloss(1, count)
    for n, entry in enumerate(glosses):
        told = [document["content"][0]["text"] for document in entry["documents"]]
        size = 3 + 2 * n
        for at in range(5):
            entry["documents"][at]["content"] = [{"text": ". ".join(told[at : at + size]) + "."}]
    return glosses


def parts(entry: Item) -> Iterator[Part]:
    """Every part of an item."""
    yield from entry["query"]
    for document in entry["documents"]:
        yield from document["content"]


class Pictures:
    """The packed pictures as files."""

    def __init__(self, work: Work) -> None:
        lengths = np.load(work.packed / "images.npz")["lengths"].astype(np.int64)
        self._ends, self._lengths = np.cumsum(lengths), lengths
        self._raw = (work.packed / "images.bin").read_bytes()

    def bytes(self, number: int) -> bytes:
        """A picture's file."""
        return self._raw[self._ends[number] - self._lengths[number] : self._ends[number]]

    def name(self, number: int) -> str:
        """What tells it from any other picture."""
        return hashlib.sha256(self.bytes(number)).hexdigest()


class Writer:
    """Writes a data set folder; a picture is stored once, under a name made of its bytes."""

    def __init__(self, pictures: Pictures, folder: Path) -> None:
        self._pictures = pictures
        self.folder = folder
        (folder / "images").mkdir(parents=True, exist_ok=True)
        for old in (folder / "images").iterdir():
            old.unlink()

    def picture(self, number: int, size: tuple[int, int]) -> str:
        """Stores a picture and returns its path relative to the folder."""
        blob = self._pictures.bytes(number)
        ending = "png" if blob.startswith(b"\x89PNG") else "webp"
        if size != (128, 128):
            page = Image.new("RGB", size, "white")
            side = min(size)
            shown = Image.open(io.BytesIO(blob)).convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
            page.paste(shown, ((size[0] - side) // 2, (size[1] - side) // 2))
            out = io.BytesIO()
            page.save(out, "WEBP", quality=80, method=6)
            blob, ending = out.getvalue(), "webp"
        name = f"images/{hashlib.sha256(blob).hexdigest()[:12]}.{ending}"
        (self.folder / name).write_bytes(blob)
        return name

    def write(self, sets: dict[str, list[Item]], prefixes: dict[str, str], *, shapes: bool) -> None:
        """Writes dataset.jsonl."""
        lines = []
        sizes: dict[int, tuple[int, int]] = {}
        for split, items in sets.items():
            for n, entry in enumerate(items, 1):
                for part in parts(entry):
                    if "picture" in part:
                        number = part.pop("picture")
                        shape = _SHAPES[len(sizes) % len(_SHAPES)] if shapes else (128, 128)
                        part["image"] = self.picture(number, sizes.setdefault(number, shape))
                record = {"id": f"{prefixes[split]}-{n:04d}", "split": split, **entry}
                lines.append(json.dumps(record, ensure_ascii=False))
        (self.folder / "dataset.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def copied(sets: dict[str, list[Item]]) -> dict[str, list[Item]]:
    """A deep copy, since writing replaces picture numbers by paths."""
    return json.loads(json.dumps(sets))  # type: ignore[no-any-return]


def pictures_of(sets: dict[str, list[Item]]) -> set[int]:
    """Numbers of the pictures in use."""
    found = (part for items in sets.values() for entry in items for part in parts(entry))
    return {part["picture"] for part in found if "picture" in part}


def main() -> None:
    """Runs the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    work = Work(arguments.work)
    pictures = Pictures(work)
    judged, measured = evaluation(Pool(work, _SEED), pictures), calibration(Pool(work, _SEED + 1))
    shared = pictures_of(judged) & pictures_of(measured)
    if shared:
        raise ValueError(f"calibration would show {len(shared)} pictures of evaluation")
    names = {
        "text-to-image/unseen-style": "t2i-style",
        "text-to-image/unseen-concept": "t2i-concept",
        "text-to-text/lexical": "t2t-lexical",
        "text-to-text/cross-lingual": "t2t-cross",
        "text-to-text/gloss": "t2t-gloss",
        "image-to-text/unseen-style": "i2t-style",
        "image-to-image/unseen-concept": "i2i-concept",
        "mixed/unseen-style": "mixed-style",
    }
    Writer(pictures, arguments.out / "evaluation").write(copied(judged), names, shapes=False)
    kinds = {kind: f"calibration-{kind}" for kind in measured}
    Writer(pictures, arguments.out / "calibration").write(copied(measured), kinds, shapes=True)
    for name, sets in (("evaluation", judged), ("calibration", measured)):
        languages = Counter(entry["language"] for items in sets.values() for entry in items)
        pairs = {split: sum(len(entry["documents"]) for entry in items) for split, items in sets.items()}
        size = sum(path.stat().st_size for path in (arguments.out / name).rglob("*") if path.is_file())
        print(name, dict(languages), pairs, f"{size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
