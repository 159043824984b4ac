from __future__ import annotations

import pytest

from orin_rerank.prompt.profile import PromptFamily
from orin_rerank.prompt.templates import SpecialToken, template_for
from prompt.reference import PROMPTS, TEXT_INSTRUCTION, VL_INSTRUCTION


@pytest.mark.parametrize("family", PromptFamily)
def test_a_template_put_together_is_the_published_prompt(family):
    template = template_for(family)
    pieces = [
        *template.system,
        template.before_instruction + template.default_instruction + template.before_query + "QUERY",
        template.after_query,
        template.before_document + "DOCUMENT",
        *template.suffix,
    ]
    prompt = "".join(piece.name if isinstance(piece, SpecialToken) else piece for piece in pieces)
    assert prompt == PROMPTS[family]("QUERY", "DOCUMENT")


def test_the_published_instructions():
    assert template_for(PromptFamily.VL).default_instruction == VL_INSTRUCTION
    assert template_for(PromptFamily.TEXT).default_instruction == TEXT_INSTRUCTION


@pytest.mark.parametrize("family", PromptFamily)
def test_text_next_to_the_callers_is_never_cut_off_from_it(family):
    """Pieces around the caller's text are joined with it, so the ones next to those must be special tokens."""
    template = template_for(family)
    assert isinstance(template.system[-1], SpecialToken)
    assert isinstance(template.suffix[0], SpecialToken)
