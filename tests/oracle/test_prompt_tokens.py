"""Prompts against transformers, with the tokenizer of the mini model; test_qwen3_tokens.py has the published one."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

from orin_rerank.prompt.content import ImagePart, RerankInput, TextPart
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.profile import PromptFamily
from orin_rerank.prompt.tokenizer import PromptTokenizer
from prompt.pictures import picture
from prompt.reference import MULTILINGUAL, PROMPTS, TOKENIZER_PATH, image_text, profile, truncate_vl, vl_prompt

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer.from_file(TOKENIZER_PATH)


@pytest.fixture(scope="module")
def reference():
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER_PATH))
    return lambda text: fast(text, add_special_tokens=False)["input_ids"]


def pair_ids(encoded, i: int) -> list[int]:
    return [*encoded.prefix.ids.tolist(), *encoded.documents[i].ids.tolist()]


@pytest.mark.parametrize("family", PromptFamily)
def test_every_pair_of_the_corpus(tokenizer, reference, family):
    encoder = PromptEncoder(profile(family), tokenizer)
    for query in MULTILINGUAL:
        encoded = encoder.encode(RerankInput([TextPart(query)], [[TextPart(text)] for text in MULTILINGUAL]))
        for i, document in enumerate(MULTILINGUAL):
            assert pair_ids(encoded, i) == reference(PROMPTS[family](query, document))


@pytest.mark.parametrize("family", PromptFamily)
def test_random_text_of_all_of_unicode(tokenizer, reference, family):
    random = np.random.default_rng(11)
    encoder = PromptEncoder(profile(family), tokenizer)

    def text() -> str:
        points = random.integers(0, random.choice([0x80, 0x800, 0x3000, 0x11000, 0x20000]), random.integers(1, 60))
        return "x" + "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)

    for _ in range(300):
        query, document, instruction = text()[1:] + "x", text()[1:] + "x", text()
        encoded = encoder.encode(RerankInput([TextPart(query)], [[TextPart(document)]], instruction))
        assert pair_ids(encoded, 0) == reference(PROMPTS[family](query, document, instruction))


def test_documents_cut_as_the_reference_cuts_them(tokenizer, reference):
    special = {reference(name)[0] for name in ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")}
    special |= set(reference("<|image_pad|>"))
    suffix = len(reference("<|im_end|>\n<|im_start|>assistant\n"))
    image = ImagePart(picture(height=64, width=96))
    for text in MULTILINGUAL:
        long = (text + "\n") * 40
        content = [TextPart(long), image, TextPart(long)]
        encoder = PromptEncoder(profile(PromptFamily.VL, 180), tokenizer)
        encoded = encoder.encode(RerankInput([TextPart("a query")], [content, [TextPart(long)]]))
        for i, document in enumerate((long + image_text(6) + long, long)):
            whole = reference(vl_prompt("a query", document))
            expected = truncate_vl(whole, 180, special, suffix)
            assert pair_ids(encoded, i) == expected
            assert encoded.documents[i].truncated_tokens == len(whole) - len(expected)


def test_the_head_of_a_long_text(tokenizer, reference):
    for text in MULTILINGUAL:
        long = (text + " ") * (40_000 // len(text))
        (bounded,) = tokenizer.encode_bounded([long], 500)
        assert bounded.ids == reference(long)[:500]
