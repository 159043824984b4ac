from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from orin_rerank.prompt.tokenizer import PromptTokenizer
from prompt.reference import TOKENIZER_PATH


@pytest.fixture(scope="session")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer.from_file(TOKENIZER_PATH)


@pytest.fixture(scope="session")
def whole_tokenizer() -> Tokenizer:
    """The library's own reading of the same file: special tokens in text are special, nothing is split."""
    return Tokenizer.from_file(str(TOKENIZER_PATH))
