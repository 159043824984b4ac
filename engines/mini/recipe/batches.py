"""Draws training batches on the device, with fixed shapes and without ever waiting for the host.

Both are what lets a whole training step be captured as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .data import TrainingData
from .prompt import Vocabulary
from .sequence import Text

QUERY_TOKENS, TEXT_TOKENS, MIXED_TOKENS, LONG_TOKENS = 15, 31, 20, 95
KINDS = ("t2i", "i2t", "lex", "xling", "gloss", "glossr", "i2i", "mixed", "long")
# Shares of the concept kinds in picture batches: emoji have most words and styles, icons most names.
_EMOJI, _CLIP = 0.45, 0.15
_ENGLISH = 0.6


@dataclass
class Batch:
    """Queries and their documents, row by row.

    Attributes:
        kind: one of KINDS.
        query, document: words, or None.
        query_picture, document_picture: picture numbers [N], or None.
        end: [N, 1] what closes the query in the prompt (a newline, sometimes after punctuation).
        clash: [N, N] documents that answer another row's query as well.
        query_topics, document_topics: text numbers [N, k] (-1: none) whose teacher vectors, averaged, are
            what an embedding should resemble.
    """

    kind: str
    query: Text | None
    document: Text | None
    query_picture: Tensor | None
    document_picture: Tensor | None
    end: Tensor
    clash: Tensor
    query_topics: Tensor
    document_topics: Tensor


Part = tuple[Tensor, Tensor]  # ids [N, L] and how many of them count [N]


class Sampler:
    """Draws batches of every kind."""

    def __init__(self, data: TrainingData, vocabulary: Vocabulary) -> None:
        self.data = data
        self.device = data.device
        self.vocabulary = vocabulary
        self.ends = torch.tensor(vocabulary.ends, device=data.device)
        self._draws: dict[str, Callable[[str, int], Batch]] = {
            "gloss": self._gloss,
            "glossr": self._gloss,
            "long": self._long,
            "i2i": self._pictures,
            "t2i": self._concepts,
            "i2t": self._concepts,
            "lex": self._concepts,
            "xling": self._concepts,
            "mixed": self._concepts,
        }

    def batch(self, kind: str, size: int) -> Batch:
        """A batch of so many rows."""
        return self._draws[kind](kind, size)

    def _rand(self, *shape: int) -> Tensor:
        return torch.rand(*shape, device=self.device)

    def _pick(self, pool: Tensor, size: int) -> Tensor:
        return pool[torch.randint(0, len(pool), (size,), device=self.device)]

    def _below(self, counts: Tensor) -> Tensor:
        """A number below each count."""
        return torch.minimum((self._rand(len(counts)) * counts).long(), (counts - 1).clamp(min=0))

    def _end(self, size: int) -> Tensor:
        other = torch.randint(0, len(self.ends), (size, 1), device=self.device)
        return self.ends[torch.where(self._rand(size, 1) < 0.1, other, 0)]

    def _segment(self, texts: Tensor, *, first: bool) -> Part:
        ids, lengths = self.data.first if first else self.data.next
        row = texts.clamp(min=0)
        return ids[row], torch.where(texts >= 0, lengths[row], 0)

    def _token(self, token: int, wanted: Tensor) -> Part:
        return torch.full((len(wanted), 1), token, device=self.device), wanted.long()

    def _compose(self, parts: list[Part], length: int) -> Text:
        ids = torch.cat([part[0] for part in parts], 1)
        valid = torch.cat([torch.arange(p[0].shape[1], device=self.device)[None] < p[1][:, None] for p in parts], 1)
        order = (~valid).int().argsort(dim=1, stable=True)[:, :length]
        return Text(ids.gather(1, order), valid.gather(1, order))

    def _languages(self, concepts: Tensor, english: float) -> Tensor:
        other = torch.randint(1, self.data.names.shape[1], (len(concepts),), device=self.device)
        chosen = torch.where(self._rand(len(concepts)) < english, 0, other)
        return torch.where(self.data.names[concepts, chosen] < 0, 0, chosen)

    def _keywords(self, concepts: Tensor, languages: Tensor, count: int, dropped: Tensor | None) -> Tensor:
        words = self.data.words[concepts, languages]
        usable = words >= 0
        if dropped is not None:
            usable &= ~(words[:, :, None] == dropped[:, None, :]).any(-1)
        value, place = self._rand(*words.shape).masked_fill(~usable, -1).topk(count, 1)
        return torch.where(value >= 0, words.gather(1, place), -1)

    def _query(self, concepts: Tensor, languages: Tensor) -> tuple[Tensor, Text]:
        """A name, or (half the time) one to three keywords; with the texts it came from."""
        size = len(concepts)
        words = self._keywords(concepts, languages, 3, None)
        several = torch.randint(1, 4, (size, 1), device=self.device)
        words = torch.where(torch.arange(3, device=self.device)[None] < several, words, -1)
        use = (self._rand(size) < 0.5) & (words[:, 0] >= 0)
        none = torch.full_like(concepts, -1)
        name = torch.stack([self.data.names[concepts, languages], none, none], 1)
        said = torch.where(use[:, None], words, name)
        parts = [self._segment(said[:, n], first=n == 0) for n in range(3)]
        return said, self._compose(parts, QUERY_TOKENS)

    def _caption(self, concepts: Tensor, languages: Tensor, length: int, dropped: Tensor | None = None) -> Text:
        """A name, three times out of four with up to four keywords."""
        size = len(concepts)
        words = self._keywords(concepts, languages, 4, dropped)
        several = torch.randint(0, 5, (size,), device=self.device)
        several = torch.where(self._rand(size) < 0.15, 0, several)
        words = torch.where(torch.arange(4, device=self.device)[None] < several[:, None], words, -1)
        parts = [self._segment(self.data.names[concepts, languages], first=True)]
        for n in range(4):
            mark = self.vocabulary.colon if n == 0 else self.vocabulary.comma
            parts.append(self._token(mark, words[:, n] >= 0))
            parts.append(self._segment(words[:, n], first=False))
        return self._compose(parts, length)

    def _clash(self, said: Tensor, concepts: Tensor) -> Tensor:
        labels = self.data.said[concepts]
        clash = concepts[:, None] == concepts[None]
        said = torch.where(said < 0, -2, said)
        for column in range(said.shape[1]):
            clash = clash | (labels[None] == said[:, column, None, None]).any(-1)
        names = self.data.names[concepts, 0]
        return clash | (labels[:, None, :] == names[None, :, None]).any(-1)

    def _shown(self, concepts: Tensor) -> Tensor:
        return self.data.pictures[concepts, self._below(self.data.picture_counts[concepts])]

    def _concepts(self, kind: str, size: int) -> Batch:
        data = self.data
        draw = self._rand(size)
        concepts = torch.where(
            draw < _EMOJI,
            self._pick(data.emoji, size),
            torch.where(draw < _EMOJI + _CLIP, self._pick(data.clips, size), self._pick(data.icons, size)),
        )
        if kind == "xling":
            concepts = torch.where(draw < 0.6, self._pick(data.emoji, size), self._pick(data.terms, size))
        languages = self._languages(concepts, 1 / 6 if kind == "xling" else _ENGLISH)
        said, query = self._query(concepts, languages)
        name = data.names[concepts, :1]
        # Only English has teacher vectors: other languages aim at their concept's English name.
        english = (languages == 0)[:, None]
        topics = torch.where(english, said, torch.cat([name, torch.full_like(said[:, 1:], -1)], 1))
        batch = Batch(kind, query, None, None, None, self._end(size), concepts, topics, name)
        if kind in ("t2i", "mixed"):
            batch.document_picture = self._shown(concepts)
        if kind == "i2t":
            batch.query, batch.query_picture = None, self._shown(concepts)
            batch.query_topics, said = name, name
            batch.document = self._caption(concepts, languages, TEXT_TOKENS)
        if kind == "mixed":
            batch.document = self._caption(concepts, languages, MIXED_TOKENS)
        if kind in ("lex", "xling"):
            other = self._languages(concepts, 1 / 6)
            told = languages if kind == "lex" else torch.where(other == languages, 0, other)
            hidden = torch.where((self._rand(size, 1) < 0.4) & (said[:, :1] >= 0), said, -2)
            batch.document = self._caption(concepts, told, TEXT_TOKENS, hidden)
        batch.clash = self._clash(said, concepts)
        return batch

    def _pictures(self, kind: str, size: int) -> Batch:
        data = self.data
        mostly = self._rand(size) < 0.6
        concepts = torch.where(mostly, self._pick(data.paired_emoji, size), self._pick(data.paired, size))
        counts = data.other_counts[concepts]
        one = self._below(counts)
        other = (one + 1 + self._below(counts - 1)) % counts
        name = data.names[concepts, :1]
        shown, found = data.others[concepts, one], data.others[concepts, other]
        return Batch(kind, None, None, shown, found, self._end(size), self._clash(name, concepts), name, name)

    def _gloss(self, kind: str, size: int) -> Batch:
        data = self.data
        synsets = self._pick(data.synsets, size)
        lemma = data.lemmas[synsets, self._below(data.lemma_counts[synsets])]
        gloss = data.glosses[synsets]
        word = self._compose([self._segment(lemma, first=True)], QUERY_TOKENS)
        told = self._compose([self._segment(gloss, first=True)], TEXT_TOKENS)
        clash = (data.lemmas[synsets][None] == lemma[:, None, None]).any(-1)
        topics, about = lemma[:, None], gloss[:, None]
        if kind == "glossr":
            word, told, clash, topics, about = told, word, clash.T, about, topics
        return Batch(kind, word, told, None, None, self._end(size), clash, topics, about)

    def _long(self, kind: str, size: int) -> Batch:
        """A word asks for the passage, of three explanations, in which it is explained."""
        data = self.data
        synsets = self._pick(data.synsets, size)
        lemma = data.lemmas[synsets, self._below(data.lemma_counts[synsets])]
        three = torch.stack([synsets, self._pick(data.synsets, size), self._pick(data.synsets, size)], 1)
        three = three.gather(1, self._rand(size, 3).argsort(1))
        named = self._rand(size) < 0.5
        parts: list[Part] = []
        for n in range(3):
            own = data.lemmas[three[:, n], 0]
            own = torch.where(three[:, n] == synsets, lemma, own)
            head = self._segment(torch.where(named, own, -1), first=n == 0)
            parts += [head, self._token(self.vocabulary.colon, named)]
            parts.append(self._segment(data.glosses[three[:, n]], first=False))
            parts.append(self._token(self.vocabulary.stop, named | ~named))
        clash = (data.lemmas[synsets][None] == lemma[:, None, None]).any(-1)
        query = self._compose([self._segment(lemma, first=True)], QUERY_TOKENS)
        about = data.glosses[three]
        document = self._compose(parts, LONG_TOKENS)
        return Batch(kind, query, document, None, None, self._end(size), clash, lemma[:, None], about)
