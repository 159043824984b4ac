"""Runs a bundle of any kind once, on the processor, to see whether it scores its golden pairs as it should.

A daemon's start does that too, but only for what it serves: of an INT8 bundle, for one that is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orin_rerank.engines.bundle import TOKENIZER_FILE
from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.lifecycle.int8_check import trusted
from orin_rerank.lifecycle.model import LoadedModel
from orin_rerank.lifecycle.runners import build_runner
from orin_rerank.lifecycle.self_test import TOLERANCE, self_test
from orin_rerank.lifecycle.sizes import LADDER, GraphFiles, limited_prompt, processor_plan
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.lifecycle.self_test import GoldenPair

__all__ = ["NoTrialError", "run_golden_pairs"]


class NoTrialError(Exception):
    """A bundle has no graphs that a processor computes."""


def run_golden_pairs(bundle: Bundle, pairs: Sequence[GoldenPair]) -> str:
    """Scores golden pairs.

    Args:
        bundle: The bundle; its files are what the manifest names.
        pairs: Its pairs.

    Returns:
        What came of it, for people.

    Raises:
        NoTrialError: If the bundle has no graphs for processors.
        MemoryShortError: If this machine has too little memory for it.
        SelfTestError: If a margin is not the recorded one.
        RefusedPrecisionError: If it is an INT8 bundle whose gate does not tell how far its margins may be.
        EngineError: If the engine fails.
    """
    full = bundle.manifest.source is None
    precision = Precision.FP32 if full else Precision.INT8
    if (Dialect.FUSED, precision) not in {(graph.dialect, graph.precision) for graph in bundle.manifest.graphs}:
        raise NoTrialError(f"there are no graphs in {precision.value}, in which a processor computes")
    tolerance = TOLERANCE if full else trusted(bundle).tolerance
    model = _load(bundle, precision)
    try:
        worst = self_test(model, iter(pairs), tolerance)
    finally:
        model.close()
    return f"{len(pairs)} pairs in {precision.value}, off by {worst:.2g} at most; {tolerance:.2g} is allowed"


def _load(bundle: Bundle, precision: Precision) -> LoadedModel:
    """The model with one thread and short packs, if there is the memory for it."""
    manifest = bundle.manifest
    tokenizer = PromptTokenizer.from_file(bundle.folder / TOKENIZER_FILE)
    settings, host = EngineSettings(threads=1, token_budget=LADDER[0]), read_host_memory()
    memory = processor_plan(bundle, PromptEncoder(manifest.prompt, tokenizer), precision, host, settings)
    memory.check_free(host.available_bytes)
    runner = build_runner(GraphFiles.of_bundle(bundle, Dialect.FUSED, precision), memory, settings)
    prompt = limited_prompt(manifest.prompt, memory)
    encoder, budget = PromptEncoder(prompt, tokenizer), TokenBudget.fixed(LADDER[0])
    return LoadedModel(manifest.name, bundle.digest, prompt, encoder, runner, budget, "for a check")
