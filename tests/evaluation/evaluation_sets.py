"""Writes small evaluation sets for tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path


def picture(path: Path, colour: tuple[int, int, int] = (200, 30, 30), size: int = 32) -> Path:
    """Writes a picture of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), colour).save(path)
    return path


def line(**changes: object) -> dict[str, object]:
    """A well-formed line, with changes; a value of None takes the key away."""
    value: dict[str, object] = {
        "id": "q1",
        "split": "text-to-text/lexical",
        "language": "en",
        "query": [{"text": "red fire engine"}],
        "documents": [
            {"content": [{"text": "a fire engine, red"}], "relevance": 2},
            {"content": [{"text": "an engine"}], "relevance": 1},
            {"content": [{"text": "a green tree"}], "relevance": 0},
        ],
        **changes,
    }
    return {key: part for key, part in value.items() if part is not None}


def write_set(root: Path, lines: list[dict[str, object]]) -> Path:
    """Writes dataset.jsonl and returns its folder."""
    root.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in lines)
    (root / "dataset.jsonl").write_text(text, encoding="utf-8")
    return root
