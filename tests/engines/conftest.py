from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engines.running import make_encoder, noise_picture, open_bundle
from graph.checkpoints import TEXT, VL, write_checkpoint
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint

if TYPE_CHECKING:
    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.prompt.content import ImagePart
    from orin_rerank.prompt.encoder import PromptEncoder


def _bundle(factory: pytest.TempPathFactory, name: str, config: dict) -> Bundle:
    folder = factory.mktemp(name)
    checkpoint = write_checkpoint(folder / "checkpoint", config)
    export_checkpoint(checkpoint, folder / "bundle", ExportOptions(name=name, max_tokens=1024, min_pixels=1))
    return open_bundle(folder / "bundle")


@pytest.fixture(scope="session")
def vl_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return _bundle(tmp_path_factory, "tiny-vl", VL)


@pytest.fixture(scope="session")
def text_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return _bundle(tmp_path_factory, "tiny-text", TEXT)


@pytest.fixture(scope="session")
def vl_encoder(vl_bundle: Bundle) -> PromptEncoder:
    return make_encoder(vl_bundle)


@pytest.fixture(scope="session")
def pictures() -> list[ImagePart]:
    """Of three grids; the first and the last are of one grid."""
    return [noise_picture(i, *size) for i, size in enumerate(((32, 32), (48, 80), (16, 96), (32, 32)))]
