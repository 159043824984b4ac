"""Text to token ids, with the Rust `tokenizers` library and a checkpoint's own `tokenizer.json`.

Three things are added to the library:

* **Text is untrusted.** No added token (`<|im_end|>`, `<|image_pad|>`, `<think>`, ...) ever results from text: a
  caller who writes one gets the ordinary tokens of its characters. The added tokens are kept apart and are reached
  by name only, so nothing needs to be escaped. (The reference lets a document close its own turn.)
* **Cost follows the limit, not the input.** `encode_bounded` reads only as much of a long text as its limit needs.
* **The pre-tokenizer is checked**, since both the split of the prompt and `encode_bounded` rest on its rules.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tokenizers import Tokenizer

from orin_rerank.errors import BundleError, TextError
from orin_rerank.prompt.templates import Piece, SpecialToken

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BoundedIds", "PromptTokenizer", "require_unicode"]

QWEN_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_HEAD_CHARACTERS_PER_TOKEN: Final = 8
_HEAD_CHARACTERS: Final = 4096
_HEAD_GROWTH: Final = 4
_UNSETTLED_WORDS: Final = 2
_NOT_UNICODE: Final = "the text is not valid Unicode: it holds a lone surrogate"


@dataclass(frozen=True, slots=True)
class BoundedIds:
    """The head of a text as token ids.

    Attributes:
        ids: The first ids of the whole text, `limit` at most.
        total: How many ids the whole text has; extrapolated where the text is much longer than its limit.
    """

    ids: list[int]
    total: int


class PromptTokenizer:
    """A Qwen tokenizer that reads untrusted text. Safe to use from several threads.

    Args:
        definition: The contents of a `tokenizer.json`.
        source: Its name, for errors.

    Raises:
        BundleError: If it is not a Qwen tokenizer, or lacks a single token for "yes" or "no".

    Attributes:
        yes_id: The token whose logit speaks for relevance.
        no_id: The one against.
    """

    def __init__(self, definition: dict[str, Any], *, source: str = "tokenizer.json") -> None:
        self._source = source
        _check_rules(definition, source)
        self._added = {token["content"]: int(token["id"]) for token in definition["added_tokens"]}
        plain = {**definition, "added_tokens": [], "truncation": None, "padding": None, "post_processor": None}
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(plain))
        except Exception as error:  # the library raises bare Exception
            raise BundleError(f"cannot be read as a tokenizer: {error}", item=source) from error
        self.yes_id = self._word("yes")
        self.no_id = self._word("no")

    @classmethod
    def from_file(cls, path: Path | str) -> PromptTokenizer:
        """Reads a `tokenizer.json`.

        Raises:
            BundleError: If the file cannot be read, or see the class.
        """
        name = Path(path).name
        try:
            definition = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BundleError(f"cannot be read: {error}", item=name) from error
        if not isinstance(definition, dict):
            raise BundleError("holds no JSON object", item=name)
        return cls(definition, source=name)

    def special_id(self, token: SpecialToken) -> int:
        """The id of an added token.

        Raises:
            BundleError: If the tokenizer has none of that name.
        """
        try:
            return self._added[token.name]
        except KeyError:
            raise BundleError(f"has no token {token.name}", item=self._source) from None

    @property
    def largest_id(self) -> int:
        """The largest id of any token, added or not: an embedding needs a row for it."""
        return max(*self._tokenizer.get_vocab().values(), *self._added.values())

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """Ids of template pieces, one after another."""
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, SpecialToken):
                ids.append(self.special_id(piece))
            else:
                ids.extend(self.encode(piece))
        return ids

    def encode(self, text: str) -> list[int]:
        """All ids of a text.

        Raises:
            TextError: If it is not valid Unicode (a lone surrogate).
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """All ids of each text, on several cores where there are.

        Raises:
            TextError: See `encode`.
        """
        try:
            # The fast variant leaves out offsets, which nobody needs here.
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:  # the library's word for a string that has no UTF-8 form
            raise TextError(_NOT_UNICODE) from None
        return [encoding.ids for encoding in encodings]

    def encode_bounded(self, texts: Sequence[str], limit: int) -> list[BoundedIds]:
        """The first `limit` ids of each text, reading no more of it than that takes.

        Why a head is enough: the pre-tokenizer cuts a text into words from left to right, and tokens never cross
        words. Where a word ends depends on the characters up to the first that is not part of it or, for white space,
        up to the end of the run of white space, which makes two words at most (up to its last newline, and the
        rest). NFC looks no further than combining marks reach: the word of the base letter and the word of the marks.
        So when the text is cut anywhere, all words of the head but its last two are words of the whole text.

        A head is `8 * limit + 4096` characters, then four times as many for as long as that is not enough. One thing
        ends this early: a single word (a run of letters without a break, say) that still goes on after the second
        head is taken as if it ended there. No language has such words, and they would cost without bound.

        `total` is exact where the text fits into its first head. Of a longer text the unread rest is counted at the
        rate of the head: tokenising 10 MB exactly would take about 5 s, only to say how much was cut.

        Raises:
            TextError: If what is read of a text is not valid Unicode; `require_unicode` checks all of it.
        """
        size = _HEAD_CHARACTERS_PER_TOKEN * limit + _HEAD_CHARACTERS
        short = iter(self.encode_batch([text for text in texts if len(text) <= size]))
        return [
            _bounded(next(short), limit) if len(text) <= size else self._encode_long(text, limit, size)
            for text in texts
        ]

    def _encode_long(self, text: str, limit: int, size: int) -> BoundedIds:
        patience = size * _HEAD_GROWTH
        while size < len(text):
            try:
                encoding = self._tokenizer.encode(text[:size], add_special_tokens=False)
            except TypeError:
                raise TextError(_NOT_UNICODE) from None
            ids = encoding.ids
            endless_word = size >= patience and len(ids) > limit
            if endless_word or _settled(encoding.word_ids) >= limit:
                return BoundedIds(ids[:limit], max(len(ids), round(len(ids) * (len(text) / size))))
            size *= _HEAD_GROWTH
        return _bounded(self.encode(text), limit)

    def _word(self, word: str) -> int:
        ids = self.encode(word)
        if len(ids) != 1:
            raise BundleError(f'"{word}" is not a single token', item=self._source)
        return ids[0]


def _bounded(ids: list[int], limit: int) -> BoundedIds:
    return BoundedIds(ids[:limit], len(ids))


def _settled(words: Sequence[int | None]) -> int:
    """How many tokens come before the last two words."""
    last = words[-1] if words else None
    if last is None:
        return 0
    return next(i for i, word in enumerate(words) if word is not None and word > last - _UNSETTLED_WORDS)


def require_unicode(text: str, item: str) -> None:
    """Refuses a text that has no UTF-8 form.

    Raises:
        TextError: If it holds a lone surrogate; names `item`.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise TextError(_NOT_UNICODE, item=item) from None


def _check_rules(definition: dict[str, Any], source: str) -> None:
    """Refuses a tokenizer whose rules are not those that the prompt path was proven for."""
    try:
        splits = definition["pre_tokenizer"]["pretokenizers"]
        known = (
            definition["model"]["type"] == "BPE"
            and definition["normalizer"] == {"type": "NFC"}
            and [split["type"] for split in splits] == ["Split", "ByteLevel"]
            and splits[0]["pattern"] == {"Regex": QWEN_SPLIT}
            and splits[0]["behavior"] == "Isolated"
            and not splits[0]["invert"]
            and not splits[1]["add_prefix_space"]
            and not splits[1]["use_regex"]
            and isinstance(definition["added_tokens"], list)
        )
    except (KeyError, TypeError, IndexError):
        known = False
    if not known:
        raise BundleError("is not a Qwen tokenizer: normaliser or pre-tokenizer differ", item=source)
