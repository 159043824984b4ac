"""The reranker's prompt, and the constant pieces that training assembles it from.

Whole prompts are tokenised as one string. Training composes them from pieces instead, cut where the
pre-tokenizer cuts in any case: a query takes the newline after it along, since punctuation at its
end would merge with that newline.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
HEAD = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n<Instruct>: "
QUERY = "<Query>:"
DOCUMENT = "<Document>:"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"
VISION_START, VISION_END, IMAGE_PAD = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"
DEFAULT_INSTRUCTION = "Given a search query, retrieve relevant candidates that answer the query."
# The default comes first. The others keep the model from hanging on one wording.
INSTRUCTIONS = (
    DEFAULT_INSTRUCTION,
    "Retrieve candidates relevant to the query.",
    "Find the picture or text that matches the query.",
    "Given a web search query, retrieve relevant passages that answer the query",
    "Find the document that shows or describes what the query asks for.",
    "Retrieve images and texts relevant to the user's query.",
    "Given a question, retrieve the passages that answer it.",
    "Find an image that matches the given caption.",
    "Find a caption for the given image.",
    "Given an image, find pictures of the same thing.",
    "Select the item that fits the description.",
    "Given a word, retrieve its definition.",
    "Rank the products by how well they fit the search.",
    "Represent the user's input.",
    "Retrieve relevant documents.",
    "Search a catalogue of pictures with captions.",
)


def image(tokens: int) -> str:
    """An image of so many merged patches."""
    return VISION_START + IMAGE_PAD * tokens + VISION_END


def prompt(query: str, document: str, instruction: str = DEFAULT_INSTRUCTION) -> str:
    """The whole prompt; query and document already hold their image placeholders."""
    return f"{HEAD}{instruction}{QUERY}{query}\n{DOCUMENT}{document}{TAIL}"


@dataclass(frozen=True)
class Vocabulary:
    """Ids that training needs, looked up by string so that any tokenizer fits."""

    size: int
    yes: int
    no: int
    ends: list[int]
    special: dict[str, int]
    prefixes: list[list[int]]
    document: list[int]
    tail: list[int]
    end: list[int]
    colon: int
    comma: int
    stop: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """Reads the ids; raises ValueError where the vocabulary cannot carry the prompt."""

        def ids(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

        def one(text: str) -> int:
            found = ids(text)
            if len(found) != 1:
                raise ValueError(f"{text!r} is not one token: {found}")
            return found[0]

        # What a query may end with, newline included: the first is the plain one.
        ends = [ids(text)[0] for text in ("\n", "?\n", ".\n", "!\n", ")\n") if len(ids(text)) == 1]
        names = (
            "<|vision_start|>",
            "<|vision_end|>",
            "<|image_pad|>",
            "<|video_pad|>",
            "<|endoftext|>",
            "<|im_start|>",
            "<|im_end|>",
        )
        return cls(
            size=tokenizer.get_vocab_size(),
            yes=one("yes"),
            no=one("no"),
            ends=ends,
            special={name: one(name) for name in names},
            prefixes=[ids(HEAD + text + QUERY) for text in INSTRUCTIONS],
            document=ids(DOCUMENT),
            tail=ids(TAIL),
            end=[one("<|im_end|>")],
            colon=one(":"),
            comma=one(","),
            stop=one("."),
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a tokenizer.json."""
    return Tokenizer.from_file(str(path))
