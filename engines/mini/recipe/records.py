"""Plain records that pass between the steps, and where each step keeps its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

LANGUAGES = ("en", "zh", "ja", "de", "fr", "es")
MAX_KEYWORDS = 14
RECIPE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Work:
    """Folders of one run of the recipe, all below one root that git ignores."""

    root: Path

    @property
    def npm(self) -> Path:
        """Installed npm packages."""
        return self.root / "npm" / "node_modules"

    @property
    def icons(self) -> Path:
        """Iconify icon sets."""
        return self.npm / "@iconify-json"

    @property
    def openclipart(self) -> Path:
        """Unpacked Debian package openclipart-svg."""
        return self.root / "deb" / "x" / "usr" / "share" / "openclipart" / "svg"

    @property
    def data(self) -> Path:
        """Intermediate files."""
        return self.root / "data"

    @property
    def packed(self) -> Path:
        """What a training machine needs."""
        return self.root / "packed"


@dataclass
class Concept:
    """One thing that can be named and pictured.

    Attributes:
        kind: "emoji", "icon", "clip" (clip art) or "term" (names without a picture).
        key: stable identity, e.g. an emoji's code points or "tabler:anchor".
        group: near neighbours share it; hard negatives are drawn from it.
        split: "train", "val", "test" or "drop" (its name would leak a held-out one).
        style_withheld: Twemoji's picture of it was never trained on.
        names: language -> name.
        keywords: language -> keywords, without the name.
    """

    kind: str
    key: str
    group: str
    names: dict[str, str]
    keywords: dict[str, list[str]]
    split: str = "train"
    style_withheld: bool = False


@dataclass
class Picture:
    """One picture of a concept in one style (an emoji font or an icon set)."""

    concept: int
    style: str
    svg: str = field(repr=False, default="")


def normal(text: str) -> str:
    """Lower-cases a name and collapses its white space."""
    return re.sub(r"\s+", " ", text.lower().strip())


def plain(name: str) -> str:
    """Turns an icon's identifier into words."""
    return re.sub(r"[-_]+", " ", name).strip()


def save_concepts(path: Path, concepts: Iterable[Concept]) -> None:
    """Writes concepts, one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for concept in concepts:
            out.write(json.dumps(asdict(concept), ensure_ascii=False) + "\n")


def load_concepts(path: Path) -> list[Concept]:
    """Reads what save_concepts wrote."""
    with path.open(encoding="utf-8") as lines:
        return [Concept(**json.loads(line)) for line in lines]
