"""How the published scripts make token ids, on transformers' own class for Qwen's tokenizer.

Written from the descriptions of QwenLM/Qwen3-VL-Embedding (`Qwen3VLReranker.format_mm_instruction`, `tokenize`) and of
QwenLM/Qwen3-Embedding's README (`format_instruction`, `process_inputs`); nothing of the product is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import AutoTokenizer

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Qwen3Reference"]

VL_INSTRUCTION = "Given a search query, retrieve relevant candidates that answer the query."
TEXT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
TEXT_PREFIX = f"<|im_start|>system\n{JUDGE}<|im_end|>\n<|im_start|>user\n"
TEXT_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Qwen3Reference:
    """The reference's tokenization.

    Args:
        folder: Holds the tokenizer.json and tokenizer_config.json of a published Qwen3 model.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        assert type(self.tokenizer).__name__.startswith("Qwen2Tokenizer")  # 5.x builds its rules itself

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def vl(self, query: list[str | int], document: list[str | int], *, max_length: int = 10240) -> list[int]:
        """Ids of a pair in the VL family; a number in a content stands for an image of so many tokens."""
        user = [f"<Instruct>: {VL_INSTRUCTION}", "<Query>:", *query, "\n<Document>:", *document]
        ids = self.ids(_chat([("system", [JUDGE]), ("user", user)]))
        return self._truncated(ids[:-5], max_length) + ids[-5:]

    def text(self, query: str, document: str, *, max_length: int = 8192) -> list[int]:
        """Ids of a pair in the text family: three pieces tokenised apart, the middle one truncated by transformers."""
        prefix, suffix = self.ids(TEXT_PREFIX), self.ids(TEXT_SUFFIX)
        middle = self.tokenizer(
            f"<Instruct>: {TEXT_INSTRUCTION}\n<Query>: {query}\n<Document>: {document}",
            padding=False,
            truncation="longest_first",
            return_attention_mask=False,
            max_length=max_length - len(prefix) - len(suffix),
        )["input_ids"]
        return prefix + middle + suffix

    def _truncated(self, ids: list[int], max_length: int) -> list[int]:
        """Special ids stay, and of the others as many as still fit, first come."""
        if len(ids) <= max_length:
            return ids
        special = set(self.tokenizer.all_special_ids)
        left = max_length - sum(i in special for i in ids)
        kept = []
        for i in ids:
            if i in special or left > 0:
                kept.append(i)
                left -= i not in special
        return kept


def _chat(messages: list[tuple[str, list[str | int]]]) -> str:
    """What the chat template makes of messages whose contents are lists, with a generation prompt."""
    text = ""
    for role, contents in messages:
        text += f"<|im_start|>{role}\n"
        for content in contents:
            if isinstance(content, int):
                text += "<|vision_start|>" + "<|image_pad|>" * content + "<|vision_end|>"
            else:
                text += content
        text += "<|im_end|>\n"
    return text + "<|im_start|>assistant\n"
