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
        documents: The documents; empty means every picture in images/.
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
        query=Piece(text="大象", gloss="elephant"),
        documents=(),
        expected=("elephant.webp",),
    ),
    Ranking(
        title="text to picture, in German",
        query=Piece(text="Erdbeere", gloss="strawberry"),
        documents=(),
        expected=("strawberry.webp",),
    ),
    Ranking(
        title="picture to text, in three languages",
        query=Piece(picture="guitar.webp"),
        documents=(
            Piece(text="guitar"),
            Piece(text="吉他", gloss="guitar"),
            Piece(text="Gitarre", gloss="guitar"),
            Piece(text="bicycle"),
            Piece(text="企鹅", gloss="penguin"),
            Piece(text="Schlüssel", gloss="key"),
            Piece(text="hot air balloon"),
            Piece(text="pizza"),
        ),
        expected=("guitar", "吉他", "Gitarre"),
    ),
    Ranking(
        title="picture and text to pictures",
        query=Piece(picture="penguin.webp", text="snow"),
        documents=(),
        expected=("penguin.webp", "snowman.webp"),
    ),
    Ranking(
        title="text to pictures, texts and both",
        query=Piece(text="sailboat"),
        documents=(
            Piece(picture="sailboat.webp", text="sailboat"),
            Piece(picture="sailboat.webp"),
            Piece(text="a boat with sails"),
            Piece(picture="sailboat.webp", text="pizza"),
            Piece(picture="rocket.webp", text="sailboat"),
            Piece(picture="rocket.webp"),
            Piece(text="a key for a door"),
            Piece(picture="bicycle.webp", text="bicycle"),
        ),
        expected=("sailboat.webp + sailboat", "sailboat.webp", "a boat with sails"),
    ),
)
