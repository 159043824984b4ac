"""The file of kernels that were measured in earlier builds.

It saves most of a build's time, and it is never trusted: TensorRT takes it over only if its header says that it is of
the same version and GPU, and what it cannot read becomes an empty cache. The same cache may lead to another choice of
kernels in a later build, so the plan's results are checked after every build, with a cache or without.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from orin_rerank.durable import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.engines.tensorrt.api import trt

__all__ = ["attach_timing_cache", "keep_timing_cache"]


def attach_timing_cache(config: trt.IBuilderConfig, path: Path) -> bool:
    """Gives a build the cache of a file, or an empty one to fill.

    Returns:
        Whether the file's contents were taken.
    """
    contents = b""
    with contextlib.suppress(OSError):
        contents = path.read_bytes()
    if contents:
        cache = config.create_timing_cache(contents)
        # False where its header names another device or version
        if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
            return True
    config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
    return False


def keep_timing_cache(config: trt.IBuilderConfig, path: Path) -> None:
    """Writes what a build has measured; where that fails, the next build takes longer and no more."""
    cache = config.get_timing_cache()
    if cache is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, bytes(cache.serialize()))
