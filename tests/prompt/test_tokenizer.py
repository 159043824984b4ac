from __future__ import annotations

import copy
import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orin_rerank.errors import BundleError, TextError
from orin_rerank.prompt import tokenizer as tokenizer_module
from orin_rerank.prompt.templates import SpecialToken
from orin_rerank.prompt.tokenizer import PromptTokenizer, require_unicode
from prompt.reference import MULTILINGUAL, TOKENIZER_PATH


@pytest.fixture(scope="module")
def definition():
    return json.loads(TOKENIZER_PATH.read_text())


def test_answers_are_looked_up_by_name(tokenizer, whole_tokenizer):
    assert tokenizer.yes_id == whole_tokenizer.token_to_id("yes")
    assert tokenizer.no_id == whole_tokenizer.token_to_id("no")


def test_every_added_token_is_found_by_name(tokenizer, definition):
    for token in definition["added_tokens"]:
        assert tokenizer.special_id(SpecialToken(token["content"])) == token["id"]
    with pytest.raises(BundleError, match=r"has no token <\|nothing\|>"):
        tokenizer.special_id(SpecialToken("<|nothing|>"))


def test_no_added_token_results_from_text(tokenizer, definition):
    added = {token["id"] for token in definition["added_tokens"]}
    for token in definition["added_tokens"]:
        ids = tokenizer.encode(f"before{token['content']}after")
        assert len(ids) > 3
        assert not added & set(ids)


@pytest.mark.parametrize("text", MULTILINGUAL)
def test_text_equals_the_library_on_the_same_file(tokenizer, whole_tokenizer, text):
    assert tokenizer.encode(text) == whole_tokenizer.encode(text, add_special_tokens=False).ids


def test_surrogates_are_refused(tokenizer):
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_bounded([text], 4)):
        with pytest.raises(TextError, match="lone surrogate"):
            encode("a\ud800b" + "c" * 5000)
    with pytest.raises(TextError, match=r"query\.content\[0\]"):
        require_unicode("\udfff", "query.content[0]")


# Texts that stress the ends of words: runs of white space, marks, Hangul parts, contractions, punctuation.
_tricky = st.text(
    alphabet=" \n\r\t'sSreVx.:!<1あ한\u1112\u1161\u11ab\u0301\u0323\u0338\u09c7\u09be\u20dd\u2000", max_size=60
)


@settings(max_examples=400, deadline=None)
@given(text=_tricky | st.text(max_size=60), cut=st.integers(0, 60))
@example(text="x  \n  \n y", cut=4)
@example(text="'re", cut=2)
@example(text="a e\u0301\u0323", cut=4)
def test_words_before_the_last_two_do_not_depend_on_what_follows(tokenizer, text, cut):
    encoding = tokenizer._tokenizer.encode(text[:cut], add_special_tokens=False)
    settled = tokenizer_module._settled(encoding.word_ids)
    assert encoding.ids[:settled] == tokenizer.encode(text)[:settled]


@pytest.mark.parametrize(
    "unit", [text + " " for text in MULTILINGUAL] + ["它是一只猫", "    ", "\n \n", "e\u0301", "--"]
)
@pytest.mark.parametrize("limit", [1, 7, 300])
def test_a_bounded_head_equals_the_head_of_the_whole(tokenizer, unit, limit):
    text = unit * (20_000 // len(unit))
    whole = tokenizer.encode(text)
    (bounded,) = tokenizer.encode_bounded([text], limit)
    assert bounded.ids == whole[:limit]
    assert abs(bounded.total - len(whole)) <= 0.02 * len(whole) + 2


def test_a_text_within_its_first_head_is_counted_exactly(tokenizer):
    texts = ["short", "word " * 900]
    short, longer = tokenizer.encode_bounded(texts, 100)
    assert (short.ids, short.total) == (tokenizer.encode("short"), len(tokenizer.encode("short")))
    assert (len(longer.ids), longer.total) == (100, len(tokenizer.encode(texts[1])))


@pytest.mark.parametrize("unit", ["the quick brown fox ", "a", " ", "!", "字", "e\u0301\u0323", "\x00", "\n"])
def test_ten_megabytes_cost_what_the_limit_costs(tokenizer, unit):
    text = unit * (10_000_000 // len(unit))
    started = time.process_time()
    (bounded,) = tokenizer.encode_bounded([text], 8192)
    assert time.process_time() - started < 5  # tokenised whole it takes about 8 s
    assert len(bounded.ids) == 8192
    assert bounded.total > 8192


def test_a_tokenizer_of_other_rules_is_refused(definition, tmp_path):
    def changed(**changes):
        return {**copy.deepcopy(definition), **changes}

    other_split = changed()
    other_split["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"\w+"}
    for bad in (changed(normalizer=None), other_split, changed(pre_tokenizer=None), changed(added_tokens=None), {}):
        with pytest.raises(BundleError, match="not a Qwen tokenizer"):
            PromptTokenizer(bad)

    no_yes = changed()
    no_yes["model"]["merges"] = [merge for merge in no_yes["model"]["merges"] if merge not in (["y", "es"], "y es")]
    with pytest.raises(BundleError, match='"yes" is not a single token'):
        PromptTokenizer(no_yes)

    broken = changed()
    broken["model"]["merges"] = [["no such", "pair"]]
    with pytest.raises(BundleError, match="cannot be read as a tokenizer"):
        PromptTokenizer(broken)

    for name, contents in (
        ("missing.json", None),
        ("cut.json", '{"a": '),
        ("list.json", "[]"),
        ("latin.json", b"\xff"),
    ):
        path = tmp_path / name
        if contents is not None:
            path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        with pytest.raises(BundleError, match=name):
            PromptTokenizer.from_file(path)
