"""The demonstration's questions agree with its pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo"
sys.path.insert(0, str(DEMO))

from rankings import RANKINGS, Ranking  # noqa: E402

PICTURES = {path.name for path in (DEMO / "images").glob("*.webp")}


@pytest.mark.parametrize("ranking", RANKINGS, ids=lambda ranking: ranking.title)
def test_every_picture_is_there_and_what_is_expected_is_ranked(ranking: Ranking) -> None:
    named = {piece.picture for piece in (ranking.query, *ranking.documents) if piece.picture}
    assert named <= PICTURES
    ranked = {piece.name for piece in ranking.documents} or PICTURES - {ranking.query.picture}
    assert set(ranking.expected) <= ranked
    assert set(ranking.expected) < ranked


def test_the_demonstration_shows_what_it_should() -> None:
    text_to_picture = [r for r in RANKINGS if r.query.picture is None and not r.documents]
    assert len({bool(r.query.gloss) for r in text_to_picture}) == 2, "two languages at least"
    assert any(r.query.picture and not r.query.text and r.documents for r in RANKINGS), "picture to text"
    assert any(r.query.picture and r.query.text for r in RANKINGS), "a query of both"
    assert any(any(d.picture and d.text for d in r.documents) for r in RANKINGS), "documents of both"
