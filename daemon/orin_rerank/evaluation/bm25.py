"""BM25 over the text documents of a set: the baseline that knows words and nothing else.

Our own few lines rather than a library: scripts without spaces need bigrams, which the tokenizers of the libraries
looked at do not make, and the collection's statistics must come from one pass over a stream. bm25s gives the same
scores from the same tokens; a test compares the two.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Bm25", "words"]

_K1 = 1.5
_B = 0.75

# Han, kana and the like are written without spaces between words.
_UNSPACED = r"\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_RUN = re.compile(rf"[{_UNSPACED}]")


def words(text: str) -> list[str]:
    """Case-folded words of a text (NFKC); overlapping pairs of characters in scripts without spaces."""
    terms: list[str] = []
    for run in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if _RUN.match(run) and len(run) > 1:
            terms.extend(run[place : place + 2] for place in range(len(run) - 1))
        else:
            terms.append(run)
    return terms


class Bm25:
    """Okapi BM25 with Lucene's inverse document frequency, which is never negative.

    Args:
        collection: The texts that document frequencies and the mean length come from.
    """

    def __init__(self, collection: Iterable[str]) -> None:
        self._documents = 0
        self._frequency: Counter[str] = Counter()
        length = 0
        for text in collection:
            terms = words(text)
            self._documents += 1
            length += len(terms)
            self._frequency.update(set(terms))
        self._mean_length = length / self._documents if self._documents else 0.0

    def scores(self, query: str, documents: Sequence[str]) -> list[float]:
        """Scores of the documents for the query, higher for more relevant, 0 where no term is shared."""
        terms = words(query)
        return [self._score(terms, words(document)) for document in documents]

    def _score(self, query: Sequence[str], document: Sequence[str]) -> float:
        if not self._mean_length:
            return 0.0
        counts = Counter(document)
        norm = _K1 * (1.0 - _B + _B * len(document) / self._mean_length)
        return sum(self._idf(term) * counts[term] / (counts[term] + norm) for term in query if term in counts)

    def _idf(self, term: str) -> float:
        frequency = self._frequency[term]
        return math.log1p((self._documents - frequency + 0.5) / (frequency + 0.5))
