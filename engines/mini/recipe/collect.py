"""Step 1: gathers concepts and their SVG pictures from the installed packages.

    python -m recipe.collect --work DIR

Writes DIR/data/concepts.jsonl, DIR/data/synsets.jsonl and DIR/data/svg.jsonl (one picture a line).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from . import sources, wordnet
from .records import Concept, Picture, Work, save_concepts
from .splits import Holdout


def main() -> None:
    """Runs the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    work = Work(parser.parse_args().work)
    concepts, terms = sources.emoji(work)
    keys = {concept.key: index for index, concept in enumerate(concepts)}
    pictures = [Picture(*found) for found in sources.emoji_pictures(work, keys)]
    for concept, style, svg in sources.icons(work):
        pictures.append(Picture(len(concepts), style, svg))
        concepts.append(concept)
    for concept, svg in sources.clip_art(work):
        pictures.append(Picture(len(concepts), "clip", svg))
        concepts.append(concept)
    concepts += terms + list(sources.terms(work))
    Holdout.load().apply(concepts)
    _report(concepts, pictures)
    save_concepts(work.data / "concepts.jsonl", concepts)
    with (work.data / "svg.jsonl").open("w", encoding="utf-8") as out:
        for number, picture in enumerate(pictures):
            split = concepts[picture.concept].split
            if split == "drop":
                continue
            record = {
                "id": number,
                "concept": picture.concept,
                "style": picture.style,
                "svg": picture.svg,
            }
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
    wordnet.save(work.data / "synsets.jsonl", wordnet.read(work))


def _report(concepts: list[Concept], pictures: list[Picture]) -> None:
    counts = Counter((concept.kind, concept.split) for concept in concepts)
    for (kind, split), count in sorted(counts.items()):
        print(f"{kind:6} {split:6} {count}")
    for style, count in Counter(picture.style for picture in pictures).most_common():
        print(f"{style:14} {count} pictures")


if __name__ == "__main__":
    main()
