from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engines.running import open_bundle
from graph.checkpoints import write_checkpoint
from graph.golden_requests import CONFIGS
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint

if TYPE_CHECKING:
    from orin_rerank.engines.bundle import Bundle


@pytest.fixture(scope="session", params=CONFIGS)
def golden_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Bundle]:
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = write_checkpoint(folder / "checkpoint", CONFIGS[request.param])
    export_checkpoint(checkpoint, folder / "bundle", ExportOptions(max_tokens=1024, min_pixels=1))
    return request.param, open_bundle(folder / "bundle")
