"""What the demonstration asks: real rankings over the pictures in images/ and a few texts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RANKINGS", "Piece", "Ranking"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A query or document: a picture of images/ by its file name, a text, or both.

    Attributes:
        picture: File name, or None.
        text: Text, or an empty string.
        gloss: The text in English where it is not.
    """

    picture: str | None = None
    text: str = ""
    gloss: str = ""

    @property
    def name(self) -> str:
        """What a table calls it."""
        return " + ".join(part for part in (self.picture, self.text) if part)


@dataclass(frozen=True, slots=True)
class Ranking:
    """One question to the daemon.

    Attributes:
        title: What it shows.
        query: The query.
        documents: The documents; empty means every picture in images/ but the query's own.
        expected: Names of documents of which a person would put one first.
    """

    title: str
    query: Piece
    documents: tuple[Piece, ...]
    expected: tuple[str, ...]


RANKINGS: tuple[Ranking, ...] = (
    Ranking(
        title="text to picture, in English",
        query=Piece(text="fire engine"),
        documents=(),
        expected=("fire-engine.webp",),
    ),
    Ranking(
        title="text to picture, in Chinese",
        query=Piece(text="火山", gloss="volcano"),
        documents=(),
        expected=("volcano.webp",),
    ),
    Ranking(
        title="text to picture, in German",
        query=Piece(text="Erdbeere", gloss="strawberry"),
        documents=(),
        expected=("strawberry.webp",),
    ),
    Ranking(
        title="picture to text, in three languages",
        query=Piece(picture="microscope.webp"),
        documents=(
            Piece(text="microscope"),
            Piece(text="显微镜", gloss="microscope"),
            Piece(text="Mikroskop", gloss="microscope"),
            Piece(text="alarm clock"),
            Piece(text="鲸鱼", gloss="whale"),
            Piece(text="Kopfhörer", gloss="headphones"),
            Piece(text="hot air balloon"),
            Piece(text="volcano"),
        ),
        expected=("microscope", "显微镜", "Mikroskop"),
    ),
    Ranking(
        title="picture and text to pictures",
        query=Piece(picture="watermelon.webp", text="fruit"),
        documents=(),
        expected=("strawberry.webp", "lemon.webp"),
    ),
    Ranking(
        title="text to pictures, texts and both",
        query=Piece(text="whale"),
        documents=(
            Piece(picture="whale.webp", text="whale"),
            Piece(picture="whale.webp"),
            Piece(text="a whale in the sea"),
            Piece(picture="whale.webp", text="alarm clock"),
            Piece(picture="robot.webp", text="whale"),
            Piece(picture="robot.webp"),
            Piece(text="a clock that rings in the morning"),
            Piece(picture="alarm-clock.webp", text="alarm clock"),
        ),
        expected=("whale.webp + whale", "whale.webp", "a whale in the sea"),
    ),
)
