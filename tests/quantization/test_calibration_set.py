"""Calibration sets: what may be left out, and that whatever cannot be used is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.evaluation_sets import line, picture, write_set
from orin_rerank.errors import DatasetError
from orin_rerank.prompt.content import ImagePart, TextPart
from orin_rerank.quantization.calibration_set import dataset_digest, read_calibration_set

SHIPPED = Path(__file__).resolve().parents[2] / "calibration_data"


def bare(**changes: object) -> dict[str, object]:
    """A line with nothing but what must be there, and changes."""
    return {"query": [{"text": "red"}], "documents": [{"content": [{"text": "a fire engine"}]}], **changes}


def with_picture(key: str = "documents") -> dict[str, object]:
    parts = [{"text": "a"}, {"image": "images/a.png"}]
    return bare(**{key: parts if key == "query" else [{"content": [{"text": "b"}]}, {"content": parts}]})


def test_judgements_and_names_may_be_left_out(tmp_path: Path) -> None:
    write_set(tmp_path, [bare(), bare(instruction="Find it.", language="de")])
    first, second = read_calibration_set(tmp_path)
    assert first.query == (TextPart("red"),)
    assert first.documents == ((TextPart("a fire engine"),),)
    assert (first.instruction, first.language) == (None, "")
    assert (second.instruction, second.language) == ("Find it.", "de")
    assert second.where == f"{tmp_path / 'dataset.jsonl'}:2"
    assert second.request.query == second.query
    assert second.request.documents == second.documents
    assert second.request.instruction == "Find it."


def test_an_evaluation_set_is_a_calibration_set_too(tmp_path: Path) -> None:
    write_set(tmp_path, [line()])
    (request,) = read_calibration_set(tmp_path)
    assert len(request.documents) == 3


def test_pictures_come_as_bytes(tmp_path: Path) -> None:
    file = picture(tmp_path / "images" / "a.png")
    write_set(tmp_path, [with_picture()])
    (request,) = read_calibration_set(tmp_path)
    assert request.documents[1] == (TextPart("a"), ImagePart(file.read_bytes()))


def test_reading_is_streaming(tmp_path: Path) -> None:
    write_set(tmp_path, [bare(), bare(query=[])])
    requests = read_calibration_set(tmp_path)
    next(requests)
    with pytest.raises(DatasetError):
        next(requests)


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"documents": []}, ":1: documents", "at least one document"),
        ({"documents": [{"content": [{"text": "a"}], "relevance": "high"}]}, ":1: documents[0].relevance", "0 to 9"),
        ({"documents": [{"content": [{"text": "a"}], "relevant": 1}]}, ":1: documents[0]", "unknown key 'relevant'"),
        ({"langauge": "en"}, ":1", "unknown key 'langauge'"),
        ({"id": 7}, ":1: id", "not empty"),
        ({"query": [{"text": " \n"}]}, ":1: query", "neither text nor picture"),
        ({"documents": [{"content": [{"text": " "}]}]}, ":1: documents[0].content", "neither text nor picture"),
        ({"query": [{"image": "../x.png"}]}, ":1: query[0].image", "leads out"),
    ],
)
def test_what_is_malformed_is_named(tmp_path: Path, changes: dict[str, object], place: str, message: str) -> None:
    write_set(tmp_path, [bare(**changes)])
    with pytest.raises(DatasetError, match=message) as caught:
        list(read_calibration_set(tmp_path))
    assert caught.value.item == f"{tmp_path / 'dataset.jsonl'}{place}"


def test_a_picture_that_begins_well_and_ends_early_is_refused_with_its_place(tmp_path: Path) -> None:
    file = picture(tmp_path / "images" / "a.png", size=256)
    file.write_bytes(file.read_bytes()[:-40])
    for key, place in (("query", "query[1]"), ("documents", "documents[1].content[1]")):
        write_set(tmp_path, [bare(), with_picture(key)])
        with pytest.raises(DatasetError, match="damaged or cut short") as caught:
            list(read_calibration_set(tmp_path))
        assert caught.value.item == f"{tmp_path / 'dataset.jsonl'}:2: {place}.image"
        assert len(list(read_calibration_set(tmp_path, decode=False))) == 2


def test_a_set_of_nothing_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        list(read_calibration_set(tmp_path))
    write_set(tmp_path, [])
    with pytest.raises(DatasetError, match="holds no queries"):
        list(read_calibration_set(tmp_path))


def test_the_digest_is_of_lines_and_pictures(tmp_path: Path) -> None:
    root = write_set(tmp_path / "a", [with_picture()])
    picture(root / "images" / "a.png")
    digest = dataset_digest(root)
    copy = write_set(tmp_path / "b", [with_picture()])
    picture(copy / "images" / "a.png")
    assert dataset_digest(copy) == digest
    picture(copy / "images" / "not-named.png")
    assert dataset_digest(copy) == digest
    picture(copy / "images" / "a.png", (0, 0, 0))
    assert dataset_digest(copy) != digest
    write_set(root, [{**with_picture(), "language": "en"}])
    assert dataset_digest(root) != digest


def test_the_shipped_set_is_read_to_its_last_pixel() -> None:
    requests = list(read_calibration_set(SHIPPED / "calibration"))
    assert sum(len(request.documents) for request in requests) == 325
