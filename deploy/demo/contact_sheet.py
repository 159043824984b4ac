"""Draws rankings as one picture: a row each, the query on the left and the ranked documents after it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Card", "RankedCard", "Row", "draw_sheet"]

FONTS = Path(__file__).resolve().parent / "fonts"

_SCALE = 2
"""Everything is drawn at twice its nominal size, so that text is sharp on any screen."""

_MARGIN, _GAP, _CARD, _QUERY = 32, 16, 148, 232
_ROW_HEAD, _CAPTION = 34, 62
_INK, _QUIET, _PAPER, _PANEL, _LINE = "#1c2430", "#6b7686", "#f4f6f9", "#ffffff", "#d9dfe7"
_GOOD, _TRACK, _ACCENT = "#1a8f5a", "#e6eaf0", "#3b62c4"


@dataclass(frozen=True, slots=True)
class Card:
    """A query or document to draw.

    Attributes:
        name: What stands below it.
        picture: An encoded picture, or None.
        text: Its text, or an empty string.
        gloss: The text in English where it is not, in quieter ink.
    """

    name: str
    picture: bytes | None
    text: str
    gloss: str = ""


@dataclass(frozen=True, slots=True)
class RankedCard:
    """A document at its rank.

    Attributes:
        card: The document.
        score: From 0 to 1.
        expected: Whether it is one that should come first.
    """

    card: Card
    score: float
    expected: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One ranking.

    Attributes:
        title: Such as `text to picture, in German`.
        query: The query.
        ranked: The best documents, best first.
        documents: How many were ranked.
    """

    title: str
    query: Card
    ranked: Sequence[RankedCard]
    documents: int


def draw_sheet(rows: Sequence[Row], title: str, subtitle: str) -> Image.Image:
    """Draws all rows below a title.

    Returns:
        An RGB picture, as wide as its longest row.
    """
    columns = max(len(row.ranked) for row in rows)
    width = 2 * _MARGIN + _QUERY + _GAP + columns * (_CARD + _GAP)
    row_height = _ROW_HEAD + _CARD + _CAPTION
    top = _MARGIN + 78
    sheet = _Canvas(width, top + len(rows) * (row_height + _GAP) + _MARGIN - _GAP)
    sheet.text((_MARGIN, _MARGIN - 6), title, 26, bold=True)
    sheet.text((_MARGIN, _MARGIN + 32), subtitle, 14, colour=_QUIET)
    for place, row in enumerate(rows):
        _draw_row(sheet, top + place * (row_height + _GAP), row)
    return sheet.image


def _draw_row(sheet: _Canvas, y: int, row: Row) -> None:
    sheet.line((_MARGIN, y - 8), (sheet.width - _MARGIN, y - 8))
    sheet.text((_MARGIN, y), row.title, 15, bold=True)
    best = f"best {len(row.ranked)} of {row.documents}"
    x = _MARGIN + _QUERY + _GAP
    sheet.text((x + _GAP, y + 1), best, 13, colour=_QUIET)
    y += _ROW_HEAD
    sheet.panel((_MARGIN, y, _MARGIN + _QUERY, y + _CARD), outline=_ACCENT, width=2)
    _draw_content(sheet, (_MARGIN, y, _MARGIN + _QUERY, y + _CARD), row.query, size=20)
    sheet.text((_MARGIN, y + _CARD + 5), "query", 13, colour=_ACCENT, bold=True)
    sheet.text((_MARGIN, y + _CARD + 25), row.query.name, 12, colour=_QUIET)
    for rank, ranked in enumerate(row.ranked, start=1):
        left = x + _GAP + (rank - 1) * (_CARD + _GAP)
        _draw_ranked(sheet, left, y, rank, ranked)


def _draw_ranked(sheet: _Canvas, x: int, y: int, rank: int, ranked: RankedCard) -> None:
    box = (x, y, x + _CARD, y + _CARD)
    sheet.panel(box, outline=_GOOD if ranked.expected else _LINE, width=3 if ranked.expected else 1)
    _draw_content(sheet, box, ranked.card, size=15)
    colour = _GOOD if ranked.expected else _INK
    sheet.text((x, y + _CARD + 5), f"{rank}", 13, colour=colour, bold=True)
    sheet.text((x + _CARD, y + _CARD + 5), f"{ranked.score:.3f}", 13, colour=colour, bold=True, anchor="ra")
    sheet.bar((x + 18, y + _CARD + 11, x + _CARD - 46, y + _CARD + 17), ranked.score, colour)
    sheet.text((x, y + _CARD + 25), sheet.fitted(ranked.card.name, 12, _CARD), 12, colour=_QUIET)


def _draw_content(sheet: _Canvas, box: tuple[int, int, int, int], card: Card, *, size: int) -> None:
    """A picture, a text, or a picture with its text below, within a box."""
    left, top, right, bottom = (box[0] + 10, box[1] + 10, box[2] - 10, box[3] - 10)
    lines = sheet.wrapped(card.text, size, right - left)
    gloss = sheet.wrapped(card.gloss, 13, right - left)
    text_height = len(lines) * (size + 6) + len(gloss) * 18
    if card.picture is not None:
        room = bottom - top - (text_height + 4 if lines else 0)
        sheet.picture(card.picture, ((left + right) // 2, top + room // 2), min(room, right - left))
        y = bottom - text_height
    else:
        y = (top + bottom - text_height) // 2
    centre = (left + right) // 2
    for line in lines:
        sheet.text((centre, y), line, size, anchor="ma", bold=size > 16)
        y += size + 6
    for line in gloss:
        sheet.text((centre, y + 2), line, 13, colour=_QUIET, anchor="ma")
        y += 18


class _Canvas:
    """A drawing surface in nominal pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.image = Image.new("RGB", (width * _SCALE, height * _SCALE), _PAPER)
        self._draw = ImageDraw.Draw(self.image)
        self._fonts: dict[tuple[int, bool], ImageFont.FreeTypeFont] = {}

    def text(
        self,
        place: tuple[int, int],
        text: str,
        size: int,
        *,
        colour: str = _INK,
        bold: bool = False,
        anchor: str = "la",
    ) -> None:
        self._draw.text(_scaled(place), text, fill=colour, font=self._font(size, bold=bold), anchor=anchor)

    def line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        self._draw.line([_scaled(start), _scaled(end)], fill=_LINE, width=_SCALE)

    def panel(self, box: tuple[int, int, int, int], *, outline: str, width: int) -> None:
        self._draw.rounded_rectangle(
            [_scaled(box[:2]), _scaled(box[2:])], 10 * _SCALE, fill=_PANEL, outline=outline, width=width * _SCALE
        )

    def bar(self, box: tuple[int, int, int, int], share: float, colour: str) -> None:
        left, top, right, bottom = (side * _SCALE for side in box)
        radius = (bottom - top) // 2
        self._draw.rounded_rectangle([left, top, right, bottom], radius, fill=_TRACK)
        end = left + round((right - left) * min(max(share, 0.0), 1.0))
        if end - left > 2 * radius:
            self._draw.rounded_rectangle([left, top, end, bottom], radius, fill=colour)

    def picture(self, data: bytes, centre: tuple[int, int], side: int) -> None:
        """Pastes an encoded picture within a square of that side, on the panel's white where it is transparent."""
        with Image.open(io.BytesIO(data)) as opened:
            picture = opened.convert("RGBA")
        scale = side * _SCALE / max(picture.size)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
        x, y = _scaled(centre)
        self.image.paste(picture, (x - picture.width // 2, y - picture.height // 2), picture)

    def wrapped(self, text: str, size: int, width: int) -> list[str]:
        """Breaks a text into lines at blanks, and within a word only where it is too long for a line."""
        lines: list[str] = []
        for word in text.split():
            joined = f"{lines[-1]} {word}" if lines else word
            if lines and self._length(joined, size) <= width:
                lines[-1] = joined
                continue
            rest = word
            while self._length(rest, size) > width and len(rest) > 1:
                cut = next(n for n in range(len(rest) - 1, 0, -1) if n == 1 or self._length(rest[:n], size) <= width)
                lines.append(rest[:cut])
                rest = rest[cut:]
            lines.append(rest)
        return lines

    def fitted(self, text: str, size: int, width: int) -> str:
        """The text, with its end cut off where it is too long for the width."""
        if self._length(text, size) <= width:
            return text
        kept = text
        while kept and self._length(f"{kept}…", size) > width:
            kept = kept[:-1]
        return f"{kept.rstrip()}…"

    def _length(self, text: str, size: int) -> float:
        return self._font(size, bold=size > 16).getlength(text) / _SCALE

    def _font(self, size: int, *, bold: bool) -> ImageFont.FreeTypeFont:
        if (size, bold) not in self._fonts:
            name = "NotoSansSC-Bold.subset.ttf" if bold else "NotoSansSC-Regular.subset.ttf"
            self._fonts[size, bold] = ImageFont.truetype(FONTS / name, size * _SCALE)
        return self._fonts[size, bold]


def _scaled(place: tuple[int, ...]) -> tuple[int, int]:
    return place[0] * _SCALE, place[1] * _SCALE
