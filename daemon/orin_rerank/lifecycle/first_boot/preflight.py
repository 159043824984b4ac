"""Makes sure, before hours go into a step, that there is the disk and the memory to finish it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from orin_rerank.engines.bundle import TOKENIZER_FILE
from orin_rerank.engines.footprint import stored_bytes
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import NoSpaceError, StoreError
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.sizes import processor_plan
from orin_rerank.lifecycle.workbench import PACK_TOKENS
from orin_rerank.plain_files import nearest_folder
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.host_memory import HostMemory

__all__ = ["check_calibration", "check_disk", "engine_disk_bytes"]

_MORE: Final = 1.1
"""Graphs, tables of rotary positions and the compiler's measurements come on top of weights."""

_RESERVE: Final = 256 << 20
"""Left free for everything else on that disk."""


def engine_disk_bytes(bundle: Bundle, precision: Precision) -> int:
    """What an engine takes on disk, once made; it is moved into its place, not copied."""
    return round(_MORE * stored_bytes(bundle.manifest.architecture, precision))


def check_disk(folder: Path, needed: int, what: str) -> None:
    """Makes sure that something fits.

    Args:
        folder: Where it will be written; it, or a folder above it, is there.
        needed: In bytes.
        what: For people.

    Raises:
        NoSpaceError: If it does not; the message names the numbers.
        StoreError: If the disk cannot be asked.
    """
    there = nearest_folder(folder)
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        raise StoreError(f"cannot be asked how much is free: {error.strerror}", item=str(there)) from error
    if free < needed + _RESERVE:
        raise NoSpaceError(
            f"{what} takes {_mb(needed)}, {_mb(_RESERVE)} must stay free, and {_mb(free)} are free: remove something, "
            "or keep engines on another disk ([model] state in the settings)",
            item=str(folder),
        )


def check_calibration(bundle: Bundle, state: Path, host: HostMemory) -> None:
    """Makes sure that a bundle can be calibrated here: full precision has to run on the processor.

    Raises:
        MemoryShortError: If it does not fit, or not enough is free; the message names the numbers.
        NoSpaceError: If the disk is too full.
        StoreError: If the disk cannot be asked.
    """
    encoder = PromptEncoder(bundle.manifest.prompt, PromptTokenizer.from_file(bundle.folder / TOKENIZER_FILE))
    settings = EngineSettings(token_budget=PACK_TOKENS, prefix_cache_bytes=0)
    processor_plan(bundle, encoder, Precision.FP32, host, settings).check_free(host.available_bytes)
    check_disk(state, engine_disk_bytes(bundle, Precision.INT8), "an INT8 engine")


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
