"""Which concepts are held out. The split itself is data: `holdout.tsv` beside this file.

Columns: what is held out ("emoji" by its key, "name" for icons and clip art by name, "style" for an
emoji whose Twemoji picture is withheld), the split, and the key or name. It is kept as a list
rather than a seed so that a new data set joins training without moving a single evaluation item.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .records import RECIPE, Concept, normal

# Sets whose icons may be evaluated on; a set that joined later only loses what would leak.
EVALUATED_SETS = frozenset({"tabler", "lucide", "mdi", "ph"})


def _stem(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def _stems(name: str) -> tuple[str, ...]:
    return tuple(_stem(word) for word in re.findall(r"\w+", name.lower()))


@dataclass(frozen=True)
class Holdout:
    """The held-out emoji keys, icon names and withheld-style keys."""

    emoji: dict[str, str]
    names: dict[str, str]
    styles: frozenset[str]

    @classmethod
    def load(cls, path: Path = RECIPE / "holdout.tsv") -> Holdout:
        """Reads the list that ships with the recipe."""
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        return cls(
            {key: split for what, split, key in rows if what == "emoji"},
            {key: split for what, split, key in rows if what == "name"},
            frozenset(key for what, _, key in rows if what == "style"),
        )

    def apply(self, concepts: list[Concept]) -> None:
        """Sets split and style_withheld of every concept."""
        held = set()
        for concept in concepts:
            if concept.kind == "emoji":
                concept.split = self.emoji.get(concept.key, "train")
                concept.style_withheld = concept.key in self.styles
                if concept.split != "train":
                    held.add(_stems(concept.names["en"]))
        held.discard(())
        icons_held = {_stems(name) for name in self.names}
        for concept in concepts:
            if concept.kind != "emoji":
                concept.split = self._other(concept, held, icons_held)

    def _other(self, concept: Concept, held: set[tuple[str, ...]], icons_held: set[tuple[str, ...]]) -> str:
        stems = _stems(concept.names["en"])
        runs = (stems[at : at + n] for n in range(1, 5) for at in range(len(stems) - n + 1))
        if any(run in held for run in runs):
            return "drop"
        split = self.names.get(normal(concept.names["en"]))
        evaluated = concept.kind == "clip" or concept.group in EVALUATED_SETS
        if evaluated:
            return split or "train"
        return "drop" if split or stems in icons_held else "train"
