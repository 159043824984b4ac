"""Variants of the engine, each with one lever set otherwise than it is shipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from orin_rerank.engines.bundle import Bundle, FileEntry, hash_file, write_manifest
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.text import text_graph, text_weights
from orin_rerank.graph.vision import vision_weights
from orin_rerank.graph.weights import WeightFile
from orin_rerank.lifecycle.export import WEIGHTS_FILE
from orin_rerank.lifecycle.model import LoadedModel
from orin_rerank.lifecycle.startup import load_model

__all__ = ["lever_variants"]


def lever_variants(bundle: Path, scratch: Path, threads: int) -> list[tuple[str, Callable[[], LoadedModel]]]:
    """Names of variants with what loads them."""

    def load(folder: Path = bundle, settings: EngineSettings | None = None) -> Callable[[], LoadedModel]:
        return lambda: load_model(folder, settings or EngineSettings(precision=PrecisionChoice.FULL, threads=threads))

    merged = _with_merged_projections(bundle, scratch / "merged")
    plain = EngineSettings(precision=PrecisionChoice.FULL, threads=threads)
    rows = [
        ("as shipped (again: the noise)", load()),
        ("primitive operators", load(settings=replace(plain, dialect=Dialect.PRIMITIVE))),
        ("merged projections", load(merged)),
        ("prefix computed in every pack", load(settings=replace(plain, prefix_cache_bytes=0))),
        ("one core", load(settings=replace(plain, threads=1))),
    ]
    budgets = (64, 128, 256, 512, 1024)
    rows += [(f"packs of {tokens} tokens", load(settings=replace(plain, token_budget=tokens))) for tokens in budgets]
    return rows


def _with_merged_projections(bundle: Path, out: Path) -> Path:
    """The bundle with query, key and value, and gate and up, as one product each."""
    source = Bundle.open(bundle)
    arch = source.manifest.architecture
    assert arch.vision is not None
    for name in source.manifest.files:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle / name, out / name)
    weights = WeightFile(WEIGHTS_FILE, [*text_weights(arch.text, vl=True), *vision_weights(arch.vision)])
    graph = source.graph(Dialect.FUSED, Precision.FP32)
    model = text_graph(
        arch.text,
        weights,
        vl=True,
        taps=len(arch.vision.deepstack_layers),
        dialect=Dialect.FUSED,
        precision=Precision.FP32,
        merged=True,
    )
    (out / graph.text).write_bytes(model.SerializeToString(deterministic=True))
    files = dict(source.manifest.files)
    files[graph.text] = FileEntry(hash_file(out / graph.text), (out / graph.text).stat().st_size, "Apache-2.0")
    write_manifest(out, replace(source.manifest, files=files))
    return out
