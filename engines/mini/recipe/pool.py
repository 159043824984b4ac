"""Draws evaluation queries and their candidates from packed concepts and pictures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .records import Work

Part = dict[str, Any]
Item = dict[str, Any]

EMOJI_STYLES = ("noto", "twemoji", "fluent")
ICON_STYLES = ("tabler", "lucide", "mdi", "ph", "clip")
CANDIDATES = 20
_NEIGHBOURS = 7


@dataclass(frozen=True)
class Query:
    """Words that ask for a concept, and the numbers of the texts that they came from."""

    words: list[int]
    language: str


class Pool:
    """Concepts, texts and pictures with the draws that evaluation sets are made of."""

    def __init__(self, work: Work, seed: int) -> None:
        self.concepts = json.loads((work.packed / "concepts.json").read_text(encoding="utf-8"))
        self.texts = json.loads((work.packed / "texts.json").read_text(encoding="utf-8"))
        self.random = random.Random(seed)
        meta = np.load(work.packed / "images.npz")
        styles = [str(name) for name in meta["style_names"]]
        self.pictures: dict[int, dict[str, int]] = {}
        for number, (concept, style) in enumerate(zip(meta["concepts"], meta["styles"], strict=True)):
            self.pictures.setdefault(int(concept), {})[styles[style]] = number
        self._said = [
            {number for name, words in concept["labels"].values() for number in (name, *words)}
            for concept in self.concepts
        ]
        tables = np.load(work.packed / "texts.npz")
        ends = np.cumsum(tables["lemma_counts"].astype(np.int64))
        self._lemmas = np.split(tables["lemmas"], ends[:-1])
        self._glosses = tables["glosses"]
        self._synset_splits = tables["synset_splits"]

    def emoji(self, split: str, *, withheld: bool = False) -> list[int]:
        """Emoji of a split; with withheld, only those whose Twemoji picture was held back."""
        return [
            number
            for number, concept in enumerate(self.concepts)
            if concept["kind"] == "emoji" and concept["split"] == split and (concept["withheld"] or not withheld)
        ]

    def drawn(self, split: str) -> list[int]:
        """Icons and clip art of a split."""
        return [
            number
            for number, concept in enumerate(self.concepts)
            if concept["kind"] in ("icon", "clip") and concept["split"] == split and number in self.pictures
        ]

    def having(self, pool: Iterable[int], styles: Iterable[str]) -> list[int]:
        """Those concepts that have a picture in one of the styles."""
        wanted = set(styles)
        return [number for number in pool if wanted & set(self.pictures.get(number, ()))]

    def query(self, concept: int, language: str | None = None) -> Query:
        """A name (60 %) or one to three keywords, in English (60 %) or another language."""
        labels = self.concepts[concept]["labels"]
        others = [code for code in labels if code != "en"]
        if language is None:
            english = not others or self.random.random() < 0.6
            language = "en" if english else self.random.choice(others)
        name, keywords = labels[language]
        if not keywords or self.random.random() < 0.6:
            return Query([name], language)
        count = min(len(keywords), self.random.choice((1, 2, 2, 3)))
        return Query(self.random.sample(keywords, count), language)

    def say(self, query: Query) -> str:
        """A query's text."""
        return " ".join(self.texts[number] for number in query.words)

    def caption(self, concept: int, language: str) -> str:
        """A name with up to four keywords."""
        labels = self.concepts[concept]["labels"]
        name, keywords = labels.get(language) or labels["en"]
        chosen = self.random.sample(keywords, min(4, len(keywords)))
        tail = ": " + ", ".join(self.texts[word] for word in chosen) if chosen else ""
        return str(self.texts[name]) + tail

    def picture(self, concept: int, styles: Iterable[str]) -> Part:
        """A picture of the concept in one of the styles."""
        own = self.pictures[concept]
        return {"picture": own[self.random.choice([style for style in styles if style in own])]}

    def related(self, words: list[int], concept: int, other: int) -> bool:
        """Whether the other concept answers the query too, so is no fair negative."""
        english = self.concepts[other]["labels"]["en"][0]
        said = self._said[other]
        return concept == other or any(word in said for word in words) or english in self._said[concept]

    def words_of(self, concept: int) -> set[int]:
        """Numbers of every name and keyword of a concept."""
        return self._said[concept]

    def negatives(self, concept: int, words: list[int], pool: list[int]) -> list[int]:
        """Other concepts: up to seven of the same group, the rest at random."""
        group = self.concepts[concept]["group"]
        near = [
            other
            for other in pool
            if self.concepts[other]["group"] == group and not self.related(words, concept, other)
        ]
        chosen = self.random.sample(near, min(_NEIGHBOURS, len(near)))
        while len(chosen) < CANDIDATES - 1:
            other = self.random.choice(pool)
            if other not in chosen and not self.related(words, concept, other):
                chosen.append(other)
        return chosen

    def draw(self, pool: list[int], count: int) -> list[int]:
        """So many concepts, without repeats where the pool allows."""
        return self.random.sample(pool, count) if len(pool) >= count else self.random.choices(pool, k=count)

    def text_to_image(self, pool: list[int], styles: tuple[str, ...], count: int) -> list[Item]:
        """Words ask for a picture."""
        pool = self.having(pool, styles)
        items = []
        for concept in self.draw(pool, count):
            query = self.query(concept)
            documents = [concept, *self.negatives(concept, query.words, pool)]
            items.append(
                item([{"text": self.say(query)}], [[self.picture(d, styles)] for d in documents], query.language)
            )
        return items

    def text_to_text(self, pool: list[int], count: int, *, cross: bool) -> list[Item]:
        """Words ask for a caption, in the same language or (cross) in another one."""
        items = []
        for concept in self.draw(pool, count):
            languages = list(self.concepts[concept]["labels"])
            query = self.query(concept, self.random.choice(languages) if cross else None)
            others = [code for code in languages if code != query.language]
            language = self.random.choice(others) if cross else query.language
            documents = [concept, *self.negatives(concept, query.words, pool)]
            contents = [[{"text": self.caption(d, language)}] for d in documents]
            items.append(item([{"text": self.say(query)}], contents, query.language))
        return items

    def gloss(self, split: int, count: int) -> list[Item]:
        """A word asks for its explanation among explanations of other words."""
        pool = np.flatnonzero(self._synset_splits == split).tolist()
        items = []
        for synset in self.random.sample(pool, count):
            lemma = self.random.choice(self._lemmas[synset].tolist())
            own = set(self._lemmas[synset].tolist())
            documents = [synset]
            while len(documents) < CANDIDATES:
                other = self.random.choice(pool)
                if other not in documents and not own & set(self._lemmas[other].tolist()):
                    documents.append(other)
            contents = [[{"text": self.texts[self._glosses[d]]}] for d in documents]
            items.append(item([{"text": self.texts[lemma]}], contents, "en"))
        return items

    def image_to_text(self, pool: list[int], styles: tuple[str, ...], count: int) -> list[Item]:
        """A picture asks for its caption."""
        pool = self.having(pool, styles)
        items = []
        for concept in self.draw(pool, count):
            language = self.query(concept).language
            documents = [concept, *self.negatives(concept, [], pool)]
            contents = [[{"text": self.caption(d, language)}] for d in documents]
            items.append(item([self.picture(concept, styles)], contents, language))
        return items

    def image_to_image(
        self, pool: list[int], asked: tuple[str, ...], styles: tuple[str, ...], count: int
    ) -> list[Item]:
        """A picture asks for the same thing in another style."""
        pool = self.having(self.having(pool, asked), styles)
        items = []
        for concept in self.draw(pool, count):
            documents = [concept, *self.negatives(concept, [], pool)]
            contents = [[self.picture(d, styles)] for d in documents]
            items.append(item([self.picture(concept, asked)], contents, "none"))
        return items

    def mixed(self, pool: list[int], styles: tuple[str, ...], count: int) -> list[Item]:
        """Words ask for a picture with its caption; some negatives have only one of the two right."""
        pool = self.having(pool, styles)
        items = []
        for concept in self.draw(pool, count):
            query = self.query(concept)
            pairs: list[tuple[int, int]] = [(concept, concept)]
            for place, other in enumerate(self.negatives(concept, query.words, pool)):
                if place in (3, 4, 13, 14):
                    pairs.append((concept, other))
                elif place in (5, 15):
                    pairs.append((other, concept))
                else:
                    pairs.append((other, other))
            contents = [
                [self.picture(shown, styles), {"text": self.caption(told, query.language)}] for shown, told in pairs
            ]
            items.append(item([{"text": self.say(query)}], contents, query.language))
        return items


def item(query: list[Part], contents: list[list[Part]], language: str) -> Item:
    """One query in the data sets' format; its first document is the relevant one."""
    documents = [{"content": content, "relevance": int(n == 0)} for n, content in enumerate(contents)]
    return {"language": language, "query": query, "documents": documents}


Draw = Callable[[], list[Item]]
