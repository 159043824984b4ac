"""What prompts the reference implementations would tokenise, written down independently of the product's templates."""

from __future__ import annotations

from pathlib import Path

from orin_rerank.prompt.profile import ImageProfile, PromptFamily, PromptProfile

GOLDEN = Path(__file__).parent / "golden"
TOKENIZER_PATH = Path(__file__).parents[2] / "engines" / "mini" / "tokenizer.json"

IMAGE_PROFILE = ImageProfile(
    patch_size=16,
    temporal_patch_size=2,
    merge_size=2,
    position_grid=48,
    head_dim=72,
    rope_theta=10_000.0,
    min_pixels=4 * 32 * 32,
    max_pixels=1800 * 32 * 32,
)
VL_INSTRUCTION = "Given a search query, retrieve relevant candidates that answer the query."
TEXT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def profile(family: PromptFamily, max_tokens: int = 10240) -> PromptProfile:
    if family is PromptFamily.VL:
        return PromptProfile(family, max_tokens, VL_INSTRUCTION, IMAGE_PROFILE)
    return PromptProfile(family, max_tokens, TEXT_INSTRUCTION, None)


def vl_prompt(query: str, document: str, instruction: str = VL_INSTRUCTION) -> str:
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        f"<Instruct>: {instruction}<Query>:{query}\n<Document>:{document}<|im_end|>\n<|im_start|>assistant\n"
    )


def text_prompt(query: str, document: str, instruction: str = TEXT_INSTRUCTION) -> str:
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


PROMPTS = {PromptFamily.VL: vl_prompt, PromptFamily.TEXT: text_prompt}


def image_text(tokens: int) -> str:
    return "<|vision_start|>" + "<|image_pad|>" * tokens + "<|vision_end|>"


def truncate_vl(ids: list[int], max_length: int, special: set[int], suffix: int) -> list[int]:
    """`truncate_tokens_optimized` of the reference, applied as its `tokenize` does (there the suffix is 5 ids)."""
    head, tail = ids[:-suffix], ids[-suffix:]
    if len(head) <= max_length:
        return head + tail
    budget = max_length - sum(1 for i in head if i in special)
    kept = []
    plain = 0
    for i in head:
        if i in special:
            kept.append(i)
        elif plain < budget:
            kept.append(i)
            plain += 1
    return kept + tail


MULTILINGUAL = (
    "plain English words, with punctuation; and 1234 numbers.",
    '"quoted at once" and (brackets)',
    "\nnewline first",
    "\n\n  \n newline, spaces, newline",
    " space first",
    "   three spaces first and last   ",
    "ends in newlines\n\n",
    "ends in punctuation!!!",
    "\ttab\tseparated\r\nwindows lines\r\n",
    "它是一只猫\uff0c坐在垫子上。",
    "吾輩は猫である。名前はまだ無い。",
    "한국어 문장입니다. \u1112\u1161\u11ab\u1100\u1173\u11af",
    "هذا نص عربي من اليمين إلى اليسار، مع أرقام ١٢٣.",
    "עברית מימין לשמאל (עם סוגריים)",
    "हिन्दी में एक वाक्य।",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "e\u0301 combining, \u0301starts with a mark, Z\u0351\u036b\u0343algo",
    "\u0338first mark joins the colon before it",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 skin tone, 🇩🇪",
    "NUL\x00inside\x00 and \x1b escape",
    "\u200bzero width \u200e\u202eoverride\u202c \ufeffbom",
    "it's we'll THEY'RE don'T \u017f'\u017f",
    "ﬁ ligature, Ⅷ, ½, ²",
    "def f(x):\n    return {'a': [1, 2, 3]}\n",
    ">:>:>: <Document>: <Query>: <Instruct>: </s>",
    "https://example.org/a?b=c&d=%20#e",
)
