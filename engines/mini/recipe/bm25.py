"""BM25 over the candidates' text, the baseline that figures stand beside."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

_K1, _B = 1.2, 0.75
_CJK = r"[\u3040-\u30ff\u4e00-\u9fff]"


def words(text: str) -> list[str]:
    """Lower-case words; Chinese and Japanese runs as characters and pairs of characters."""
    found: list[str] = []
    for word in re.findall(rf"{_CJK}+|\w+", text.lower()):
        if re.match(_CJK, word):
            found += [word[at : at + 2] for at in range(len(word) - 1)] + list(word)
        else:
            found.append(word)
    return found


class Bm25:
    """Document frequencies of one collection."""

    def __init__(self, collection: Sequence[str]) -> None:
        texts = [words(text) for text in collection]
        self._count = len(texts)
        self._mean = sum(map(len, texts)) / max(1, self._count)
        self._frequency = Counter(word for text in texts for word in set(text))

    def score(self, query: str, document: str) -> float:
        """The score of one document."""
        text = words(document)
        counts = Counter(text)
        total = 0.0
        for word in set(words(query)):
            seen = self._frequency[word]
            rarity = math.log(1 + (self._count - seen + 0.5) / (seen + 0.5))
            length = 1 - _B + _B * len(text) / self._mean
            total += rarity * counts[word] * (_K1 + 1) / (counts[word] + _K1 * length)
        return total
