"""Writes tests/prompt/qwen3/: a part of Qwen3's tokenizer, and ids that transformers gives with the whole of it.

Run after `make test-tokenizer`, which fetches the whole: `python tests/oracle/make_qwen3_golden.py`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracle.fetch_qwen3_tokenizer import TOKENIZER_SHA256
from oracle.qwen3_reference import JUDGE, TEXT_INSTRUCTION, VL_INSTRUCTION, Qwen3Reference
from prompt.corpus import CORPUS, SPECIAL, long_text
from prompt.golden_prompts import FOLDER, LONG, QUERIES, digest, pairs_of

WHOLE = Path(__file__).parents[2] / "build" / "qwen3-tokenizer"


def applied_merges(word: str, ranks: dict[tuple[str, str], int]) -> set[tuple[str, str]]:
    """The merges by which byte-pair encoding puts a word together: the first of those that apply, again and again."""
    parts = list(word)
    applied = set()
    while pairs := [pair for pair in pairwise(parts) if pair in ranks]:
        best = min(pairs, key=ranks.__getitem__)
        applied.add(best)
        i = 0
        while i < len(parts) - 1:
            if (parts[i], parts[i + 1]) == best:
                parts[i : i + 2] = ["".join(best)]
            i += 1
    return applied


def part_of(definition: dict, texts: list[str]) -> dict:
    """The tokenizer with nothing but what these texts need; they get the same ids from it.

    At every step the best merge of all that apply is applied, so leaving out merges that never are changes no step.
    """
    plain = Tokenizer.from_str(json.dumps({**definition, "added_tokens": []}))
    words = {
        word for text in texts for word, _ in plain.pre_tokenizer.pre_tokenize_str(plain.normalizer.normalize_str(text))
    }
    model = definition["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    used = set().union(*(applied_merges(word, ranks) for word in words))
    vocabulary = {token: i for token, i in model["vocab"].items() if len(token) == 1}
    vocabulary |= {"".join(merge): model["vocab"]["".join(merge)] for merge in used}
    part = {
        **model,
        "vocab": dict(sorted(vocabulary.items(), key=lambda item: item[1])),
        "merges": [list(merge) for merge in merges if merge in used],
    }
    return {**definition, "model": part}


def main() -> None:
    reference = Qwen3Reference(WHOLE)
    contents = (WHOLE / "tokenizer.json").read_bytes()
    assert hashlib.sha256(contents).hexdigest() == TOKENIZER_SHA256
    texts = [*CORPUS, *SPECIAL, *(long_text(*text) for text in LONG)]
    frames = (
        f"system\n{JUDGE}",
        f"user\n<Instruct>: {VL_INSTRUCTION}<Query>:",
        f"user\n<Instruct>: {TEXT_INSTRUCTION}\n<Query>: ",
        "\n<Document",
        "assistant\n",
        "\n",
        "\n\n",
        "yes",
        "no",
    )
    # A text's first and last words depend on what is beside them in the prompt.
    framed = [
        text
        for content in texts
        for text in (f"<Query>:{content}\n<Document>:{content}", f"<Query>: {content}\n<Document>: {content}")
    ]
    part = part_of(json.loads(contents), [*texts, *frames, *framed])
    (FOLDER / "tokenizer.json").write_text(json.dumps(part, ensure_ascii=False, separators=(",", ":")) + "\n")
    golden = {
        "sha256": TOKENIZER_SHA256,
        "corpus": [reference.ids(text) for text in CORPUS],
        "long": [digest(reference.ids(long_text(*text))) for text in LONG],
        "vl": [digest(reference.vl([query], [document])) for query, document in pairs_of(QUERIES)],
        "text": [digest(reference.text(query, document)) for query, document in pairs_of(QUERIES)],
    }
    (FOLDER / "ids.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
