"""What an argument means: never a guess in silence."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from evaluation.evaluation_sets import picture
from orin_rerank.cli.inputs import Item, item_of, items_of_lines, to_proto
from orin_rerank.errors import DatasetError, OrinRerankError, SettingsError
from orin_rerank.prompt.content import ImagePart, TextPart
from prompt.pictures import png_of_declared_size


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "red.png")
    (tmp_path / "photo").write_bytes((tmp_path / "red.png").read_bytes())
    (tmp_path / "notes.txt").write_text("\ufefffire engine\n", encoding="utf-8")
    (tmp_path / "fake.webp").write_text("no picture")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text(" \n")
    return tmp_path


@pytest.mark.parametrize(
    ("argument", "item"),
    [
        ("fire engine", Item("fire engine", (TextPart("fire engine"),))),
        ("text:red.png", Item("red.png", (TextPart("red.png"),))),
        ("text:@notes.txt", Item("@notes.txt", (TextPart("@notes.txt"),))),
        ("how to open a .png", Item("how to open a .png", (TextPart("how to open a .png"),))),
        ("e.g. this", Item("e.g. this", (TextPart("e.g. this"),))),
        (".", Item(".", (TextPart("."),))),
        ("消防车" * 200, Item("消防车" * 200, (TextPart("消防车" * 200),))),
        ("@notes.txt", Item("notes.txt", (TextPart("fire engine\n"),))),
    ],
)
def test_texts(folder: Path, argument: str, item: Item) -> None:
    assert item_of(argument, "DOCUMENT 3") == item


@pytest.mark.parametrize("argument", ["red.png", "@red.png", "@photo", "./red.png"])
def test_pictures(folder: Path, argument: str) -> None:
    item = item_of(argument, "DOCUMENT 3")
    assert item.parts == (ImagePart((folder / "red.png").read_bytes()),)
    assert item.name in {"red.png", "photo"}


@pytest.mark.parametrize("side", [10_000, 60_000])
def test_a_picture_that_is_too_large_is_for_the_daemon_to_refuse(folder: Path, side: int) -> None:
    # Pillow warns about the first and raises at the second; the daemon says what is wrong with either.
    data = png_of_declared_size(side, side)
    (folder / "huge.png").write_bytes(data)
    assert item_of("huge.png", "DOCUMENT 1").parts == (ImagePart(data),)


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ("gone.png", DatasetError, "gone.png: cannot be read: No such file"),
        ("GONE.JPEG", DatasetError, "GONE.JPEG: cannot be read"),
        ("@gone.txt", DatasetError, "gone.txt: cannot be read"),
        ("fake.webp", DatasetError, "fake.webp: is not a picture"),
        ("@binary", DatasetError, "binary: is neither a picture nor UTF-8 text"),
        ("@empty", DatasetError, "empty: is empty"),
        ("notes.txt", SettingsError, "@notes.txt for what it holds, text:notes.txt for the words"),
        ("", SettingsError, "DOCUMENT 3: an empty text"),
        ("text: ", SettingsError, "DOCUMENT 3: an empty text"),
        ("@a\0b", DatasetError, "cannot be read"),
    ],
)
def test_what_cannot_be_read_or_could_mean_two_things(
    folder: Path, argument: str, error: type[OrinRerankError], message: str
) -> None:
    with pytest.raises(error) as caught:
        item_of(argument, "DOCUMENT 3")
    assert message in str(caught.value)


def test_lines_of_documents(folder: Path) -> None:
    (folder / "sub").mkdir()
    picture(folder / "sub" / "blue.png", (0, 0, 200))
    lines = [
        "a text",
        [{"text": "one"}, {"image": "blue.png"}, {"text": "two"}],
        {"name": "page 3", "content": [{"image": "../red.png"}]},
        {"content": [{"image": "blue.png"}]},
    ]
    (folder / "sub" / "d.jsonl").write_text("\n".join(["", *map(json.dumps, lines)]) + "\n")
    items = list(items_of_lines(folder / "sub" / "d.jsonl"))
    blue = ImagePart((folder / "sub" / "blue.png").read_bytes())
    assert [item.name for item in items] == ["a text", "blue.png + one\ntwo", "page 3", "blue.png"]
    assert items[1].parts == (TextPart("one"), blue, TextPart("two"))
    assert items[2].parts == (ImagePart((folder / "red.png").read_bytes()),)


def test_lines_from_standard_input_start_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('[{"image": "red.png"}]\n'))
    (item,) = items_of_lines(Path("-"))
    assert item.name == "red.png"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "d.jsonl:2: is not JSON"),
        ('{"text": "a"}', 'd.jsonl:2: must be {"content"'),
        ('{"content": "a"}', "d.jsonl:2: must be a list"),
        ('{"content": [{"text": "a"}], "name": 3}', "d.jsonl:2: must be {"),
        ("3", "d.jsonl:2: must be a list"),
        ('""', "d.jsonl:2[0].text: must be a string that is not empty"),
        ('[{"image": "gone.png"}]', "d.jsonl:2[0].image: 'gone.png' cannot be read"),
    ],
)
def test_a_malformed_line_is_named(folder: Path, line: str, message: str) -> None:
    (folder / "d.jsonl").write_text(f'"fine"\n{line}\n')
    with pytest.raises(DatasetError) as caught:
        list(items_of_lines(folder / "d.jsonl"))
    assert message in str(caught.value)


def test_the_protocol_keeps_the_order_of_parts() -> None:
    content = to_proto((TextPart("a"), ImagePart(b"x"), TextPart("b")))
    assert [(part.WhichOneof("part"), part.text, part.image) for part in content.parts] == [
        ("text", "a", b""),
        ("image", "", b"x"),
        ("text", "b", b""),
    ]
