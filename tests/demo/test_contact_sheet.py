"""The contact sheet: what is drawn, where, and that no text ends as empty boxes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageFont

DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo"
sys.path.insert(0, str(DEMO))

import contact_sheet  # noqa: E402
from contact_sheet import Card, RankedCard, Row, draw_sheet  # noqa: E402
from rankings import RANKINGS, Piece  # noqa: E402

GREEN = (0x1A, 0x8F, 0x5A)
RED, BLUE = (250, 0, 0), (0, 0, 250)
SCALE = 2


def encoded(colour: tuple[int, ...], size: tuple[int, int] = (40, 20), mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, "PNG")
    return out.getvalue()


def a_row(*ranked: RankedCard) -> Row:
    return Row("title", Card("query.png", encoded(RED), "words"), ranked, 9)


def count(image: Image.Image, colour: tuple[int, int, int]) -> int:
    counts = image.getcolors(image.width * image.height)
    assert counts is not None
    return {found: number for number, found in counts}.get(colour, 0)


def test_pictures_are_drawn_in_their_shape() -> None:
    sheet = draw_sheet([a_row(RankedCard(Card("b.png", encoded(BLUE), ""), 0.5, expected=False))], "t", "s")
    # A card is 148 wide with 10 of padding: the 2:1 picture fills its width, at twice the nominal size.
    across, down = (148 - 20) * SCALE, (148 - 20) * SCALE // 2
    assert count(sheet, BLUE) == pytest.approx(across * down, rel=0.02)
    # The query's picture leaves room for its text.
    assert 0 < count(sheet, RED) < 2 * across * down


def test_transparent_pictures_show_the_panel() -> None:
    data = encoded((0, 0, 250, 0), mode="RGBA")
    sheet = draw_sheet([a_row(RankedCard(Card("b.png", data, ""), 0.5, expected=False))], "t", "s")
    assert count(sheet, BLUE) == 0
    assert count(sheet, (0, 0, 0)) == 0


def test_only_what_was_expected_is_green() -> None:
    card = Card("b.png", encoded(BLUE), "")
    plain = draw_sheet([a_row(RankedCard(card, 0.5, expected=False))], "t", "s")
    marked = draw_sheet([a_row(RankedCard(card, 0.5, expected=True))], "t", "s")
    assert count(plain, GREEN) == 0
    assert count(marked, GREEN) > 148 * 4 * 3 * SCALE


def test_the_bar_is_as_long_as_the_score() -> None:
    card = Card("b.png", encoded(BLUE), "")
    greens = [
        count(draw_sheet([a_row(RankedCard(card, score, expected=True))], "t", "s"), GREEN)
        for score in (0.0, 0.25, 0.5, 1.0)
    ]
    assert greens == sorted(greens)
    # 84 nominal pixels by 6 from nothing to full, give or take the digits' ink and round ends.
    assert greens[3] - greens[0] == pytest.approx(84 * 6 * SCALE**2, rel=0.15)


def test_the_sheet_grows_with_rows_and_columns() -> None:
    one = RankedCard(Card("a", None, "text"), 0.5, expected=False)
    small, wide, tall = draw_sheet([a_row(one)], "t", "s"), draw_sheet([a_row(one, one, one)], "t", "s"), None
    tall = draw_sheet([a_row(one), a_row(one)], "t", "s")
    assert wide.width - small.width == 2 * (148 + 16) * SCALE
    assert (tall.width, wide.height) == (small.width, small.height)
    assert tall.height > small.height


def test_long_texts_are_broken_within_the_width() -> None:
    canvas = contact_sheet._Canvas(10, 10)
    lines = canvas.wrapped("a fire engine with a very long ladder and Donaudampfschifffahrtsgesellschaft", 15, 100)
    assert "".join(lines).replace(" ", "") == "afireenginewithaverylongladderandDonaudampfschifffahrtsgesellschaft"
    assert all(canvas._length(line, 15) <= 100 for line in lines)
    assert canvas.wrapped("", 15, 100) == []
    assert canvas.fitted("short", 12, 100) == "short"
    fitted = canvas.fitted("a-very-long-file-name-of-a-picture.webp", 12, 100)
    assert fitted.endswith("…")
    assert canvas._length(fitted, 12) <= 100


@pytest.mark.parametrize("face", ["Regular", "Bold"])
def test_the_fonts_have_every_character_of_the_demonstration(face: str) -> None:
    font = ImageFont.truetype(DEMO / "fonts" / f"NotoSansSC-{face}.subset.ttf", 32)
    missing = bytes(font.getmask("\U0010ffff"))

    def texts(piece: Piece) -> str:
        return f"{piece.text}{piece.gloss}{piece.picture or ''}"

    shown = {
        character
        for ranking in RANKINGS
        for text in (ranking.title, texts(ranking.query), *map(texts, ranking.documents))
        for character in text
        if not character.isspace()
    }
    assert {"k", "火"} <= shown, "the demonstration is in more than one script"
    assert {character for character in shown | {"…"} if bytes(font.getmask(character)) == missing} == set()
