"""JSON that vouches for itself."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.engines.sealed import seal, unseal

VALUES = st.dictionaries(
    st.text().filter(lambda name: name not in {"format", "sha256"}),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    ),
)


@given(VALUES)
def test_what_was_sealed_is_read_back(value: dict[str, object]) -> None:
    value = {"format": 3, **value}
    assert unseal(seal(value), 3) == value


def test_any_other_text_is_refused() -> None:
    text = seal({"format": 1, "bytes": 4096, "name": "Modell für Ähnliches"})
    for place in range(len(text)):
        for changed in (text[:place], text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]):
            if changed.strip() != text.strip():
                with pytest.raises(ValueError, match=r"malformed|format|SHA-256"):
                    unseal(changed, 1)


@pytest.mark.parametrize("text", ["", "[]", "1", '"format"', "{}", '{"format": 1}', "\0"])
def test_what_is_no_sealed_object_is_malformed(text: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        unseal(text, 1)


def test_another_format_is_named() -> None:
    with pytest.raises(ValueError, match="format 2; this version reads 1"):
        unseal(seal({"format": 2}), 1)


def test_a_value_that_was_swapped_is_found() -> None:
    value = json.loads(seal({"format": 1, "bytes": 4096}))
    with pytest.raises(ValueError, match="own SHA-256"):
        unseal(json.dumps({**value, "bytes": 4097}), 1)
