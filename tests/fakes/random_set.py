"""A calibration set that says nothing: random tokens and pictures of noise, in the form of a real one."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from engines.running import noise_picture
from orin_rerank.engines.bundle import TOKENIZER_FILE
from orin_rerank.evaluation.dataset import DATASET_FILE

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_random_set"]


def write_random_set(
    root: Path, bundle: Path, *, queries: int = 40, documents: int = 5, pictures: int = 16, seed: int = 1
) -> Path:
    """Writes a set whose every token is as likely as any other.

    Args:
        root: A folder that is made.
        bundle: Folder of the model whose tokens are drawn, special ones excepted.
        queries: How many queries.
        documents: How many documents each has.
        pictures: How many pictures there are; a third of all contents are a picture, another third hold one.
        seed: Of everything.
    """
    tokenizer = Tokenizer.from_file(str(bundle / TOKENIZER_FILE))
    special = set(tokenizer.get_added_tokens_decoder())
    ordinary = [token for token in range(tokenizer.get_vocab_size()) if token not in special]
    rng = random.Random(seed)
    names = [f"images/{number}.png" for number in range(pictures)]
    (root / "images").mkdir(parents=True)
    for number, name in enumerate(names):
        (root / name).write_bytes(noise_picture(seed + number, 128, 96 if number % 2 else 128).data)

    def text() -> dict[str, str]:
        return {"text": tokenizer.decode(rng.choices(ordinary, k=rng.randint(2, 40))).strip() or "?"}

    def content() -> list[dict[str, str]]:
        kind = rng.randrange(3) if names else 0
        picture = {"image": rng.choice(names)} if names else {}
        return [[text()], [picture], [picture, text()]][kind]

    lines: list[dict[str, Any]] = [
        {"query": content(), "documents": [{"content": content()} for _ in range(documents)]} for _ in range(queries)
    ]
    body = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (root / DATASET_FILE).write_text(body, encoding="utf-8")
    return root
