"""With the real bindings: TensorRT-RTX still has the calls, though it measures nothing and calls them outdated."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from engines.tensorrt.compiling import needs_compiler

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX")]


@pytest.fixture
def config() -> Any:
    api = importlib.import_module("orin_rerank.engines.tensorrt.api")
    network = importlib.import_module("orin_rerank.engines.tensorrt.network")
    builder = api.trt.Builder(network.BuildLogger(lambda _severity, _text: None))
    made = builder.create_builder_config()
    yield made
    del made, builder


@pytest.fixture
def cache() -> Any:
    return importlib.import_module("orin_rerank.engines.tensorrt.timing_cache")


def test_a_cache_is_kept_and_taken_over(config: Any, cache: Any, tmp_path: Path) -> None:
    path = tmp_path / "made" / "kernels.cache"
    assert not cache.attach_timing_cache(config, path)
    cache.keep_timing_cache(config, path)
    assert path.stat().st_size > 0
    assert cache.attach_timing_cache(config, path)


def test_a_damaged_cache_becomes_an_empty_one(config: Any, cache: Any, tmp_path: Path) -> None:
    path = tmp_path / "kernels.cache"
    path.write_bytes(b"no cache at all")
    cache.attach_timing_cache(config, path)
    cache.keep_timing_cache(config, path)
    assert path.read_bytes() != b"no cache at all"


def test_a_cache_that_cannot_be_written_is_no_failure(config: Any, cache: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache.attach_timing_cache(config, tmp_path / "file" / "kernels.cache")
    cache.keep_timing_cache(config, tmp_path / "file" / "kernels.cache")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
