"""Evaluation sets: what is read, and that each way to be malformed is named with its place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from evaluation.evaluation_sets import line, picture, write_set
from orin_rerank.errors import DatasetError
from orin_rerank.evaluation.dataset import read_dataset, text_of
from orin_rerank.prompt.content import ImagePart, TextPart

if TYPE_CHECKING:
    from pathlib import Path


def documents(*contents: object) -> list[dict[str, object]]:
    return [{"content": content, "relevance": place} for place, content in enumerate(contents)]


def test_a_set_is_read_as_written(tmp_path: Path) -> None:
    red = picture(tmp_path / "images" / "red.png")
    write_set(
        tmp_path,
        [
            line(
                query=[{"image": "images/red.png"}, {"text": "消防车"}],
                documents=documents([{"text": "truck"}], [{"text": "a"}, {"image": "images/red.png"}, {"text": "b"}]),
                instruction="Find it.",
            ),
            line(id="q2", language=None),
        ],
    )
    first, second = read_dataset(tmp_path)
    assert first.query == (ImagePart(red.read_bytes()), TextPart("消防车"))
    assert first.documents[1].content == (TextPart("a"), ImagePart(red.read_bytes()), TextPart("b"))
    assert text_of(first.documents[1].content) == "a\nb"
    assert text_of((ImagePart(b"x"),)) == ""
    assert first.grades == (0, 1)
    assert (first.instruction, first.language) == ("Find it.", "en")
    assert (second.id, second.split, second.language, second.instruction) == ("q2", "text-to-text/lexical", "", None)


def test_reading_is_streaming(tmp_path: Path) -> None:
    write_set(tmp_path, [line(), line(id="q2", query=[])])
    reader = read_dataset(tmp_path)
    assert next(reader).id == "q1"
    with pytest.raises(DatasetError):
        next(reader)


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"id": None}, ":1", "lacks the key 'id'"),
        ({"id": " "}, ":1: id", "not empty"),
        ({"split": 3}, ":1: split", "not empty"),
        ({"langauge": "en"}, ":1", "unknown key 'langauge'"),
        ({"instruction": ""}, ":1: instruction", "not empty"),
        ({"query": []}, ":1: query", "at least one part"),
        ({"query": "words"}, ":1: query", "at least one part"),
        ({"query": [{"text": ""}]}, ":1: query[0].text", "not empty"),
        ({"query": [{"text": "a", "image": "b"}]}, ":1: query[0]", "must be"),
        ({"query": [{"sound": "a"}]}, ":1: query[0]", "must be"),
        ({"documents": []}, ":1: documents", "at least two"),
        ({"documents": documents([{"text": "a"}])}, ":1: documents", "at least two"),
        ({"documents": [1, 2]}, ":1: documents[0]", "JSON object"),
        ({"documents": [{"content": [{"text": "a"}], "relevance": 1}] * 2}, ":1: documents", "nothing to order"),
        (
            {"documents": [{"content": [{"text": "a"}], "relevance": True}] * 2},
            ":1: documents[0].relevance",
            "whole number",
        ),
        (
            {"documents": [{"content": [{"text": "a"}], "relevance": -1}] * 2},
            ":1: documents[0].relevance",
            "whole number",
        ),
        ({"documents": [{"content": [{"text": "a"}]}] * 2}, ":1: documents[0]", "lacks the key 'relevance'"),
        (
            {"documents": documents([{"text": "a"}], [{"text": "b"}, {"image": "images/gone.png"}])},
            ":1: documents[1].content[1].image",
            "'images/gone.png' cannot be read: No such file or directory",
        ),
        ({"query": [{"image": "../outside.png"}]}, ":1: query[0].image", "leads out of the folder"),
        ({"query": [{"image": "/etc/hostname"}]}, ":1: query[0].image", "leads out of the folder"),
        ({"query": [{"image": "images/a\0.png"}]}, ":1: query[0].image", "cannot be read"),
        ({"query": [{"image": "images"}]}, ":1: query[0].image", "cannot be read: Is a directory"),
        ({"query": [{"image": "images/text.png"}]}, ":1: query[0].image", "not a picture"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, changes: dict[str, object], place: str, message: str) -> None:
    root = tmp_path / "set"
    picture(tmp_path / "outside.png")
    (root / "images").mkdir(parents=True)
    (root / "images" / "text.png").write_text("no picture")
    write_set(root, [line(**changes)])
    with pytest.raises(DatasetError) as caught:
        list(read_dataset(root))
    assert caught.value.item == f"{root / 'dataset.jsonl'}{place}"
    assert message in caught.value.message


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "outside.png")
    root = write_set(tmp_path / "set", [line(query=[{"image": "link.png"}])])
    (root / "link.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(DatasetError, match="leads out of the folder"):
        list(read_dataset(root))


def test_two_lines_with_one_id_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path, [line(), line()])
    with pytest.raises(DatasetError, match=r"dataset.jsonl:2: id: is also the id of line 1"):
        list(read_dataset(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"dataset.jsonl:1: is not JSON"),
        (b"[]\n", r"dataset.jsonl:1: must be a JSON object"),
        (b"\n\n", r"dataset.jsonl: holds no queries"),
        (b'"\xff"\n', r"dataset.jsonl:1: is not valid UTF-8"),
    ],
)
def test_a_file_that_is_no_set_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "dataset.jsonl").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        list(read_dataset(tmp_path))


def test_a_missing_set_and_blank_lines(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"dataset.jsonl: cannot be read: No such file"):
        list(read_dataset(tmp_path))
    (tmp_path / "dataset.jsonl").write_text("\n" + json.dumps(line()) + "\n\n")
    assert [query.id for query in read_dataset(tmp_path)] == ["q1"]
