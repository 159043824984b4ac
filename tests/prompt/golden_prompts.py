"""Which prompts tests/prompt/qwen3/ holds ids of; the script that makes them and the test that reads them share it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from prompt.corpus import CORPUS, long_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FOLDER = Path(__file__).parent / "qwen3"
LONG = ((1, 12_000), (2, 19_000), (3, 60_000))
"""Seeds and lengths of long texts: under 10,000 tokens, a little over, and far over."""
QUERIES = CORPUS[::20]


def digest(ids: Sequence[int]) -> list[int | str]:
    """Ids as their number and a SHA-256."""
    return [len(ids), hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:32]]


def pairs_of(queries: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every query with every document of the corpus, and with the long texts."""
    documents = [*CORPUS, *(long_text(*text) for text in LONG)]
    for query in queries:
        for document in documents:
            yield query, document
