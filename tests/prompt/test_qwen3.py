"""Qwen3's own ids, by a part of its tokenizer and what transformers gave with the whole; see qwen3/README.md."""

from __future__ import annotations

import json

import pytest

from orin_rerank.prompt.content import RerankInput, TextPart
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.profile import PromptFamily
from orin_rerank.prompt.templates import SpecialToken
from orin_rerank.prompt.tokenizer import PromptTokenizer
from prompt.corpus import CORPUS, SPECIAL, long_text
from prompt.golden_prompts import FOLDER, LONG, QUERIES, digest, pairs_of
from prompt.reference import profile

GOLDEN = json.loads((FOLDER / "ids.json").read_text())


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer.from_file(FOLDER / "tokenizer.json")


def test_ids_are_found_by_string(tokenizer):
    assert (tokenizer.yes_id, tokenizer.no_id) == (9693, 2152)
    names = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<think>", "</think>")
    ids = [tokenizer.special_id(SpecialToken(name)) for name in names]
    assert ids == [151644, 151645, 151652, 151653, 151655, 151667, 151668]


def test_every_text_of_the_corpus(tokenizer):
    assert len(CORPUS) > 90
    for text, ids in zip(CORPUS, GOLDEN["corpus"], strict=True):
        assert tokenizer.encode(text) == ids


@pytest.mark.parametrize("family", PromptFamily)
def test_every_prompt(tokenizer, family):
    encoder = PromptEncoder(profile(family, 10_240 if family is PromptFamily.VL else 8192), tokenizer)
    for (query, document), expected in zip(pairs_of(QUERIES), GOLDEN[family.value], strict=True):
        encoded = encoder.encode(RerankInput([TextPart(query)], [[TextPart(document)]]))
        assert digest([*encoded.prefix.ids.tolist(), *encoded.documents[0].ids.tolist()]) == expected


def test_long_texts(tokenizer):
    lengths = [tokens for tokens, _ in GOLDEN["long"]]
    assert lengths[0] < 10_000 < lengths[1] < 20_000 < lengths[2]
    for text, expected in zip(LONG, GOLDEN["long"], strict=True):
        assert digest(tokenizer.encode(long_text(*text))) == expected


@pytest.mark.parametrize("limit", [1, 100, 999, 1000, 5000, 8192, 10_240, 60_000])
def test_a_head_equals_the_head_of_the_whole(tokenizer, limit):
    text = long_text(*LONG[-1])
    (bounded,) = tokenizer.encode_bounded([text], limit)
    assert bounded.ids == tokenizer.encode(text)[:limit]


@pytest.mark.parametrize("family", PromptFamily)
def test_tokens_that_a_caller_spells_stay_text(tokenizer, family):
    """A document cannot close its own turn, as it can in the reference."""
    encoder = PromptEncoder(profile(family), tokenizer)

    def special(text: str) -> list[int]:
        encoded = encoder.encode(RerankInput([TextPart(text)], [[TextPart(text)]]))
        return [i for i in (*encoded.prefix.ids.tolist(), *encoded.documents[0].ids.tolist()) if i >= 151_643]

    for spelt in SPECIAL:
        assert special(spelt) == special("x")
