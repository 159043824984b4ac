"""Prompts of the 2B and the 8B, token for token, against transformers with the published tokenizer.

`make test-tokenizer` fetches that and runs this; tests/prompt/test_qwen3.py is what is left of it without a network.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from oracle.qwen3_reference import Qwen3Reference
from orin_rerank.errors import TextError
from orin_rerank.prompt import tokenizer as tokenizer_module
from orin_rerank.prompt.content import ImagePart, RerankInput, TextPart
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.profile import PromptFamily
from orin_rerank.prompt.templates import SpecialToken
from orin_rerank.prompt.tokenizer import PromptTokenizer
from prompt.corpus import CODE, CORPUS, EMOJI, LANGUAGES, NORMALISED, SPECIAL, WHITE_SPACE, long_text
from prompt.pictures import picture
from prompt.reference import profile

FOLDER = Path(__file__).parents[2] / "build" / "qwen3-tokenizer"

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="make test-tokenizer fetches the tokenizer"),
]


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer.from_file(FOLDER / "tokenizer.json")


@pytest.fixture(scope="module")
def reference() -> Qwen3Reference:
    return Qwen3Reference(FOLDER)


@pytest.fixture(scope="module")
def vl(tokenizer) -> PromptEncoder:
    return PromptEncoder(profile(PromptFamily.VL), tokenizer)


@pytest.fixture(scope="module")
def text(tokenizer) -> PromptEncoder:
    return PromptEncoder(profile(PromptFamily.TEXT, 8192), tokenizer)


def pairs(encoder: PromptEncoder, query: str, documents) -> list[list[int]]:
    """The ids of each pair."""
    encoded = encoder.encode(RerankInput([TextPart(query)], [[TextPart(document)] for document in documents]))
    prefix = encoded.prefix.ids.tolist()
    return [prefix + document.ids.tolist() for document in encoded.documents]


def test_ids_are_found_by_string(tokenizer, reference):
    assert (tokenizer.yes_id, tokenizer.no_id) == (9693, 2152)
    assert reference.tokenizer.convert_tokens_to_ids(["yes", "no"]) == [9693, 2152]
    published = {
        "<|im_start|>": 151644,
        "<|im_end|>": 151645,
        "<|vision_start|>": 151652,
        "<|vision_end|>": 151653,
        "<|image_pad|>": 151655,
        "<|video_pad|>": 151656,
        "<think>": 151667,
        "</think>": 151668,
    }
    for name, number in published.items():
        assert tokenizer.special_id(SpecialToken(name)) == number
    for name, number in reference.tokenizer.get_added_vocab().items():
        assert tokenizer.special_id(SpecialToken(name)) == number


def test_every_text_of_the_corpus(tokenizer, reference):
    for string in CORPUS:
        assert tokenizer.encode(string) == reference.ids(string)


def test_every_pair_of_the_corpus(vl, text, reference):
    for query in CORPUS[::4]:
        for document, a, b in zip(CORPUS, pairs(vl, query, CORPUS), pairs(text, query, CORPUS), strict=True):
            assert a == reference.vl([query], [document])
            assert b == reference.text(query, document)


def test_random_text_of_all_of_unicode(vl, text, reference):
    chance = random.Random(5)

    def string() -> str:
        most = chance.choice((0x80, 0x250, 0x800, 0x3100, 0xFFFF, 0x10FFFF))
        points = (chance.randrange(most) for _ in range(chance.randrange(1, 80)))
        return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000) + "x"

    for _ in range(1500):
        query, document = string(), string()
        assert pairs(vl, query, [document]) == [reference.vl([query], [document])]
        assert pairs(text, query, [document]) == [reference.text(query, document)]


@pytest.mark.parametrize("seed", range(4))
def test_texts_of_ten_thousand_tokens_are_cut_where_the_reference_cuts_them(vl, text, reference, seed):
    query = long_text(seed, 300)
    documents = [long_text(seed + 100 * i, length) for i, length in enumerate((12_000, 17_000, 45_000, 200_000), 1)]
    lengths = [len(reference.ids(document)) for document in documents]
    assert lengths[0] < 10_000 < lengths[-2]
    for document, a, b in zip(documents, pairs(vl, query, documents), pairs(text, query, documents), strict=True):
        assert a == reference.vl([query], [document])
        assert b == reference.text(query, document)
    assert [len(ids) for ids in pairs(vl, query, documents)][-1] == 10_240 + 5
    assert [len(ids) for ids in pairs(text, query, documents)][-1] == 8192


@pytest.mark.parametrize("unit", [*LANGUAGES.values(), *EMOJI])
def test_a_long_text_in_one_language_is_cut_where_the_reference_cuts_it(vl, reference, unit):
    document = f"{unit} " * (40_000 // len(unit))
    (ids,) = pairs(vl, unit, [document])
    assert len(ids) == 10_240 + 5
    assert ids == reference.vl([unit], [document])


def test_every_length_limit_cuts_where_the_reference_cuts(tokenizer, reference):
    document = long_text(9, 900)
    for most in range(150, 600):
        encoder = PromptEncoder(profile(PromptFamily.VL, most), tokenizer)
        assert pairs(encoder, "a query", [document]) == [reference.vl(["a query"], [document], max_length=most)]
        encoder = PromptEncoder(profile(PromptFamily.TEXT, most), tokenizer)
        assert pairs(encoder, "a query", [document]) == [reference.text("a query", document, max_length=most)]


@pytest.mark.parametrize("most", [240, 400, 10_240])
def test_images_stay_where_text_is_cut(tokenizer, reference, most):
    image = ImagePart(picture(height=64, width=96))
    encoder = PromptEncoder(profile(PromptFamily.VL, most), tokenizer)
    for i, query in enumerate(CORPUS[::5]):
        document = long_text(i, 1500)
        request = RerankInput([image, TextPart(query[:40])], [[image, image, TextPart(document)]])
        encoded = encoder.encode(request)
        expected = reference.vl([6, query[:40]], [6, 6, document], max_length=most)
        assert [*encoded.prefix.ids.tolist(), *encoded.documents[0].ids.tolist()] == expected


def test_a_head_equals_the_head_of_the_whole_at_every_limit(tokenizer, reference):
    for seed in range(3):
        string = long_text(seed, 60_000)
        whole = reference.ids(string)
        for limit in [*range(1, 900, 7), *range(900, len(whole) + 100, 997)]:
            (bounded,) = tokenizer.encode_bounded([string], limit)
            assert bounded.ids == whole[:limit]


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "字",
        "abcdefgh",
        "它是一只猫坐在垫子上",
        "한국어",
        "👩‍👩‍👧‍👦",
        "e\u0301\u0323",
        " ",
        "\n",
        "=",
        "Zm9vYmFy+/",
    ],
)
def test_a_single_word_without_end_gives_the_same_head_as_the_whole(tokenizer, reference, unit):
    string = unit * (600_000 // len(unit))
    (bounded,) = tokenizer.encode_bounded([string], 10_240)
    assert bounded.ids == reference.ids(string)[:10_240]


def test_words_before_the_last_two_are_settled_wherever_a_text_is_cut(tokenizer, reference):
    """What `encode_bounded` rests on, for every cut through texts that make it hard."""
    for string in (*NORMALISED, *WHITE_SPACE, *CODE, *EMOJI, LANGUAGES["Thai"], LANGUAGES["Hebrew"], long_text(3, 900)):
        whole = reference.ids(string)
        for cut in range(len(string)):
            encoding = tokenizer._tokenizer.encode(string[:cut], add_special_tokens=False)
            settled = tokenizer_module._settled(encoding.word_ids)
            assert encoding.ids[:settled] == whole[:settled]


def test_tokens_that_a_caller_spells_stay_text(vl, text, reference):
    """Here ours differs from the reference on purpose: there, a document can close its own turn."""
    added = set(reference.tokenizer.get_added_vocab().values())
    for spelt in SPECIAL:
        assert added & set(reference.ids(spelt))
        for encoder, harmless in ((vl, reference.vl(["x"], ["x"])), (text, reference.text("x", "x"))):
            (ids,) = pairs(encoder, spelt, [spelt])
            assert ids != reference.vl([spelt], [spelt])
            assert [i for i in ids if i in added] == [i for i in harmless if i in added]
            assert spelt in reference.tokenizer.decode(ids)


def test_lone_surrogates_are_refused(vl):
    for string in ("\ud800", "a\udfffb", "x" * 100_000 + "\ud83d"):
        with pytest.raises(TextError, match=r"documents\[0\]\.content\[0\].*lone surrogate"):
            pairs(vl, "a query", [string])
