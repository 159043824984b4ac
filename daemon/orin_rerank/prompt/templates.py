r"""The two published prompts, hard-coded.

A template is never taken from a checkpoint or from a caller: templates that differ a little from the one a model was
trained with are the most reported cause of wrong scores.

A prompt is described as it is split for packing::

    PromptFamily.VL     <|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n
                        <Instruct>: {instruction}<Query>:{query}\n<Document    | prefix, shared by all documents
                        >:{document}<|im_end|>\n<|im_start|>assistant\n       | one document

    PromptFamily.TEXT   the same system turn, then
                        <Instruct>: {instruction}\n<Query>: {query}\n<Document
                        >: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n

The split lies inside `<Document>:` because the tokenizer works on the whole prompt: `>:` merges with punctuation or a
newline that starts the document (`>:"`, `>:\n`), while `<Document` always stands alone, whatever precedes it.

Sources: QwenLM/Qwen3-VL-Embedding `src/models/qwen3_vl_reranker.py`; QwenLM/Qwen3-Embedding `README.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from orin_rerank.prompt.profile import PromptFamily

__all__ = ["IMAGE_PAD", "VISION_END", "VISION_START", "Piece", "PromptTemplate", "SpecialToken", "template_for"]


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that stands in the vocabulary by name and never results from text."""

    name: str


Piece: TypeAlias = str | SpecialToken
"""Literal text, or one special token. What stands between two special tokens is tokenised on its own, as ever."""

IM_START = SpecialToken("<|im_start|>")
IM_END = SpecialToken("<|im_end|>")
THINK_START = SpecialToken("<think>")
THINK_END = SpecialToken("</think>")
VISION_START = SpecialToken("<|vision_start|>")
VISION_END = SpecialToken("<|vision_end|>")
IMAGE_PAD = SpecialToken("<|image_pad|>")

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """One family's prompt, cut where the caller's text goes.

    Attributes:
        default_instruction: What the family was published with.
        system: Pieces before the user's turn; the last one is special.
        before_instruction: Text from the start of the user's turn.
        before_query: Text between instruction and query.
        after_query: Text between the query and the end of the prefix.
        before_document: Text at a document's start.
        suffix: Pieces behind the document; the first one is special.
        suffix_is_extra: Whether the reference's `max_length` leaves the suffix out of account.
    """

    default_instruction: str
    system: tuple[Piece, ...]
    before_instruction: str
    before_query: str
    after_query: str
    before_document: str
    suffix: tuple[Piece, ...]
    suffix_is_extra: bool


_SYSTEM_TURN: tuple[Piece, ...] = (IM_START, "system\n" + SYSTEM, IM_END, "\n", IM_START)
_ASSISTANT_TURN: tuple[Piece, ...] = (IM_END, "\n", IM_START, "assistant\n")

_TEMPLATES = {
    PromptFamily.VL: PromptTemplate(
        default_instruction="Given a search query, retrieve relevant candidates that answer the query.",
        system=_SYSTEM_TURN,
        before_instruction="user\n<Instruct>: ",
        before_query="<Query>:",
        after_query="\n<Document",
        before_document=">:",
        suffix=_ASSISTANT_TURN,
        suffix_is_extra=True,
    ),
    PromptFamily.TEXT: PromptTemplate(
        default_instruction="Given a web search query, retrieve relevant passages that answer the query",
        system=_SYSTEM_TURN,
        before_instruction="user\n<Instruct>: ",
        before_query="\n<Query>: ",
        after_query="\n<Document",
        before_document=">: ",
        suffix=(*_ASSISTANT_TURN, THINK_START, "\n\n", THINK_END, "\n\n"),
        suffix_is_extra=False,
    ),
}


def template_for(family: PromptFamily) -> PromptTemplate:
    """The prompt of a family."""
    return _TEMPLATES[family]
