"""Step 3: trains a byte-level BPE like the shipped tokenizer's.

    python -m recipe.vocabulary --work DIR --out tokenizer.json

The shipped ../tokenizer.json came from the first training run and stays authoritative: token ids are
part of a trained model, so a tokenizer trained anew fits a model trained anew. Both have the real
Qwen3 normaliser and pre-tokenizer and its 26 added tokens by the same names.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from . import wordnet
from .prompt import INSTRUCTIONS, Vocabulary, prompt
from .records import Work, load_concepts

SIZE = 12_288
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
ADDED = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
# Without the prompt in the corpus, often, "yes" and the words of the instruction fall to pieces.
_PROMPTS = 4000


def corpus(work: Work) -> Iterator[str]:
    """Every name, keyword, lemma and gloss, and the prompt again and again."""
    for concept in load_concepts(work.data / "concepts.jsonl"):
        for language, name in concept.names.items():
            words = concept.keywords.get(language, [])
            yield f"{name}: {', '.join(words)}" if words else name
    for synset in wordnet.load(work.data / "synsets.jsonl"):
        if synset.split == "train":
            yield f"{', '.join(synset.lemmas)}: {synset.gloss}"
    for n in range(_PROMPTS):
        yield prompt("yes", "no", INSTRUCTIONS[n % len(INSTRUCTIONS)])


def train(work: Work) -> Tokenizer:
    """Trains the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(work), trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in ADDED])
    return tokenizer


def main() -> None:
    """Runs the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = train(Work(arguments.work))
    vocabulary = Vocabulary.of(tokenizer)  # raises where yes or no is not one token
    print(f"{vocabulary.size} tokens, yes {vocabulary.yes}, no {vocabulary.no}")
    tokenizer.save(str(arguments.out))


if __name__ == "__main__":
    main()
