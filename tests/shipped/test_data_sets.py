"""The evaluation and calibration sets: as large, as mixed and as far apart as they must be."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FOLDER = Path(__file__).parents[2] / "calibration_data"
HOLDOUT = Path(__file__).parents[2] / "engines" / "mini" / "recipe" / "holdout.tsv"


def _lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / name / "dataset.jsonl").read_text(encoding="utf-8").splitlines()]


def _parts(lines: list[dict]) -> list[dict]:
    return [
        part
        for line in lines
        for side in (line["query"], *(document["content"] for document in line["documents"]))
        for part in side
    ]


def _pictures(name: str) -> set[bytes]:
    """Pictures by what they show at a common size, so that neither a copy nor a resized one goes unnoticed."""
    found = set()
    for part in _parts(_lines(name)):
        if "image" in part:
            with Image.open(io.BytesIO((FOLDER / name / part["image"]).read_bytes())) as picture:
                grey = np.asarray(picture.convert("L").resize((16, 16), Image.Resampling.BOX)).astype(int)
            # By its own contrast: some clip art is almost white.
            small = (grey - grey.min()) * 7 // max(int(np.ptp(grey)), 1)
            found.add(hashlib.sha256(small.tobytes()).digest())
    return found


def test_the_evaluation_set_has_its_queries() -> None:
    lines = _lines("evaluation")
    assert len(lines) == 200
    assert {len(line["documents"]) for line in lines} == {20}
    assert Counter(line["split"].split("/")[0] for line in lines) == {
        "text-to-image": 100,
        "text-to-text": 50,
        "image-to-text": 20,
        "image-to-image": 15,
        "mixed": 15,
    }
    assert {grade for line in lines for grade in {d["relevance"] for d in line["documents"]}} >= {0, 1, 2}


def test_no_query_is_asked_twice_and_no_document_shown_twice() -> None:
    lines = _lines("evaluation")
    asked = Counter((line["split"].split("/")[0], json.dumps(line["query"])) for line in lines)
    # Text to image is drawn from emoji and from other pictures apart; the same word may be asked of both.
    assert max(asked.values()) <= 2
    for line in lines:
        shown = [json.dumps(document["content"]) for document in line["documents"]]
        assert len(set(shown)) == len(shown), line["id"]
        assert json.dumps(line["query"]) not in shown


def test_the_right_document_may_stand_anywhere() -> None:
    places = Counter(max(range(20), key=lambda i: line["documents"][i]["relevance"]) for line in _lines("evaluation"))
    assert len(places) >= 15
    assert max(places.values()) <= 30


def test_the_calibration_set_has_its_pairs() -> None:
    kinds: Counter[str] = Counter()
    for line in _lines("calibration"):
        kinds[line["split"]] += len(line["documents"])
    total = kinds.total()
    assert total >= 256
    shares = {kind: count / total for kind, count in kinds.items()}
    assert shares == pytest.approx({"text": 0.3, "mixed": 0.4, "image": 0.3}, abs=0.02)
    for line in _lines("calibration"):
        held = {key for part in _parts([line]) for key in part}
        assert held == {"text": {"text"}, "mixed": {"text", "image"}}.get(line["split"], held)
        assert "image" in held or line["split"] == "text"
    assert len({line["language"] for line in _lines("calibration")}) >= 5


def test_the_sets_share_nothing() -> None:
    shared = _pictures("evaluation") & _pictures("calibration")
    assert not shared, f"{len(shared)} pictures are in both sets"

    def documents(name: str) -> set[str]:
        return {
            part["text"]
            for line in _lines(name)
            for document in line["documents"]
            for part in document["content"]
            if "text" in part
        }

    assert not documents("evaluation") & documents("calibration")


def test_every_picture_is_used_and_every_used_one_is_there() -> None:
    for name in ("evaluation", "calibration"):
        used = {part["image"] for part in _parts(_lines(name)) if "image" in part}
        there = {f"images/{path.name}" for path in (FOLDER / name / "images").iterdir()}
        assert used == there


def test_the_sets_stay_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 5_000_000
    assert HOLDOUT.exists()
