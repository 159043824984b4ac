from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from engines.running import make_encoder, make_engine, make_runner, margins_of, noise_picture, open_bundle, pairs_of
from graph.checkpoints import VL, write_checkpoint
from lifecycle.calibrated import made
from orin_rerank.graph.builder import Dialect
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.prompt.content import RerankInput, TextPart

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GOLDEN", "bundle_folder", "checkpoint", "made", "margins", "write_golden"]

GOLDEN = (("red fire engine", "a fire truck"), ("red fire engine", "picture.png"))


def write_golden(folder: Path, margins: list[object]) -> Path:
    """Golden pairs, one with a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "picture.png").write_bytes(noise_picture(0, 32, 32).data)
    lines = [
        {"query": [{"text": query}], "document": [{"image" if "." in text else "text": text}], "margin": margin}
        for (query, text), margin in zip(GOLDEN, margins, strict=True)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny-reranker", VL)


@pytest.fixture(scope="session")
def margins(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What the tiny model gives for the golden pairs, by the other dialect than the one that is served."""
    folder = tmp_path_factory.mktemp("margins")
    export_checkpoint(checkpoint, folder, ExportOptions(max_tokens=512, min_pixels=1))
    bundle = open_bundle(folder)
    query = [TextPart(GOLDEN[0][0])]
    request = make_encoder(bundle).encode(RerankInput(query, [[TextPart(GOLDEN[0][1])], [noise_picture(0, 32, 32)]]))
    runner = make_runner(bundle, make_engine(bundle, Dialect.PRIMITIVE))
    return margins_of(runner, pairs_of([request]), [[0, 1]]).tolist()


@pytest.fixture(scope="session")
def bundle_folder(checkpoint: Path, margins: list[float], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with golden pairs."""
    folder = tmp_path_factory.mktemp("bundle")
    golden = write_golden(folder / "golden-source", margins)
    options = ExportOptions(max_tokens=512, min_pixels=1, golden=golden)
    export_checkpoint(checkpoint, folder / "bundle", options)
    return folder / "bundle"
