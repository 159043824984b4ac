"""This machine, and a bundle that is here, as `lifecycle.board_plan` plans them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orin_rerank.board.module import identify_board
from orin_rerank.engines.bundle import TOKENIZER_FILE, Bundle
from orin_rerank.engines.footprint import EngineKind
from orin_rerank.lifecycle.board_plan import Candidate, Target
from orin_rerank.lifecycle.published import BOARDS
from orin_rerank.lifecycle.sizes import model_size
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.board.paths import BoardPaths

__all__ = ["bundle_candidate", "this_target"]


def this_target(paths: BoardPaths) -> Target:
    """The machine: a Jetson with its GPU and the modes that its firmware has, any other with its processor."""
    here = identify_board(paths)
    if here.kind is None:
        return Target(f"{here.model}, on its processor", EngineKind.PROCESSOR, here.memory_bytes, ())
    modes = BOARDS[here.kind.key].modes
    if not here.super_mode:
        modes = tuple(mode for mode in modes if not mode.name.endswith("_SUPER"))
    return Target(here.kind.name, EngineKind.TENSORRT, here.memory_bytes, modes)


def bundle_candidate(folder: Path, target: Target) -> Candidate:
    """A bundle, by the true size of its weights.

    Raises:
        BundleError: If it is missing or damaged.
    """
    bundle = Bundle.open(folder)
    manifest = bundle.manifest
    encoder = PromptEncoder(manifest.prompt, PromptTokenizer.from_file(folder / TOKENIZER_FILE))
    precision = target.precisions[1 if manifest.source is None else 0]
    return Candidate(str(folder), manifest.name, manifest.prompt.family, model_size(bundle, encoder, precision))
