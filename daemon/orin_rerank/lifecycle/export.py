"""From a checkpoint in Hugging Face layout to a bundle."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from tokenizers import Tokenizer

from orin_rerank.engines.bundle import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    Bundle,
    FileEntry,
    Manifest,
    hash_file,
    write_manifest,
)
from orin_rerank.engines.graph_files import model_weights, write_graph_pair
from orin_rerank.errors import CheckpointError
from orin_rerank.graph.architecture import Architecture, read_architecture
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.text import embedding_name
from orin_rerank.graph.weights import MARGIN_ROW, CheckpointTensors, WeightFile
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.profile import ImageProfile, PromptFamily, PromptProfile
from orin_rerank.prompt.templates import template_for
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from orin_rerank.prompt.encoded import Float32Array

__all__ = ["ExportOptions", "ExportReport", "export_checkpoint"]

_HEAD: Final = "lm_head.weight"
_MAX_TOKENS: Final = {PromptFamily.VL: 10240, PromptFamily.TEXT: 8192}
_PIXELS: Final = (4096, 1_843_200)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What a checkpoint does not say itself.

    Attributes:
        name: The model's name; None takes the checkpoint folder's.
        max_tokens: Longest prompt; None is the family's published limit.
        min_pixels: Smallest image area; None is the reference's.
        max_pixels: Largest image area; None is the reference's.
        licence: SPDX identifier of weights and tokenizer.
        precisions: What to write graphs for.
        golden: Folder with `pairs.jsonl` and pictures to ship for the self-test.
        golden_licence: SPDX expression for these.
        include: Further files to ship, such as licences and a model card.
    """

    name: str | None = None
    max_tokens: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    licence: str = "Apache-2.0"
    precisions: tuple[Precision, ...] = (Precision.FP32, Precision.FP16)
    golden: Path | None = None
    golden_licence: str = "Apache-2.0"
    include: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What came of an export.

    Attributes:
        bundle: The bundle.
        clipped: How many weights of which tensor exceeded what they are stored in; empty as a rule.
    """

    bundle: Bundle
    clipped: dict[str, int]


def export_checkpoint(
    checkpoint: Path, out: Path, options: ExportOptions, report: Callable[[str], None] = lambda _: None
) -> ExportReport:
    """Writes a bundle.

    Weights are read and written in pieces. The manifest is written last, so an export that was cut short leaves no
    bundle; run again, it starts over. Matrices of a checkpoint in float32 stay that; in any other they become float16.

    Args:
        checkpoint: Folder with config.json, tokenizer.json and safetensors.
        out: Folder for the bundle, made if missing.
        options: What the checkpoint does not say.
        report: Told what is being done.

    Raises:
        CheckpointError: If the checkpoint cannot become a bundle; the item names the key or file.
        BundleError: If the tokenizer lacks a token that the prompts need.
    """
    report("reading the checkpoint")
    architecture = read_architecture(checkpoint)
    tensors = Checkpoint.open(checkpoint)
    tokenizer_file = checkpoint / TOKENIZER_FILE
    if not tokenizer_file.exists():
        raise CheckpointError("the checkpoint lacks this file", item=str(tokenizer_file))
    tokenizer = PromptTokenizer.from_file(tokenizer_file)
    profile = _profile(checkpoint, architecture, options)
    PromptEncoder(profile, tokenizer)  # has every token that the prompts need
    size = Tokenizer.from_file(str(tokenizer_file)).get_vocab_size()
    if size > architecture.text.vocabulary:
        raise CheckpointError(
            f"the tokenizer has {size} tokens, the embedding {architecture.text.vocabulary}", item="vocab_size"
        )
    weights = _weight_file(tensors, architecture)
    margin_row = _margin_row(tensors, architecture, tokenizer.yes_id, tokenizer.no_id)
    if out.exists() and out.samefile(checkpoint):
        raise CheckpointError("a bundle cannot be written into its checkpoint", item=str(out))

    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST_FILE).unlink(missing_ok=True)
    clipped = weights.write(
        out,
        CheckpointTensors(tensors, margin_row),
        lambda done, total: report(f"writing weights: {done >> 20} of {total >> 20} MiB"),
    )
    shutil.copyfile(checkpoint / "config.json", out / "config.json")
    shutil.copyfile(tokenizer_file, out / TOKENIZER_FILE)
    report("writing graphs")
    graphs = [
        write_graph_pair(out, architecture, weights, dialect, precision)
        for precision in options.precisions
        for dialect in Dialect
    ]
    names = [WEIGHTS_FILE, "config.json", TOKENIZER_FILE]
    names += [name for graph in graphs for name in (graph.text, graph.vision) if name is not None]
    names += [_copy_into(file, out) for file in options.include]
    golden = _copy_golden(options.golden, out)
    report("hashing")
    files = {name: _settle(out / name, options.licence) for name in names}
    files |= {name: _settle(out / name, options.golden_licence) for name in golden}
    name = options.name or checkpoint.resolve().name
    write_manifest(out, Manifest(name, profile, architecture, tuple(graphs), files))
    return ExportReport(Bundle.open(out), clipped)


def _settle(path: Path, licence: str) -> FileEntry:
    """Sees to it that a file is on disk before a manifest vouches for it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return FileEntry(hash_file(path), path.stat().st_size, licence)


def _weight_file(tensors: Checkpoint, architecture: Architecture) -> WeightFile:
    """The layout of the weights, once the checkpoint is known to hold each of them."""
    vl = architecture.vision is not None
    entry = tensors.entry(embedding_name(vl=vl))
    matrices = "F32" if entry.dtype in ("F32", "F64") else "F16"
    weights = model_weights(architecture, matrices)
    for spec in weights.specs:
        if spec.name != MARGIN_ROW:
            tensors.entry(spec.name, spec.shape)
    return weights


def _margin_row(tensors: Checkpoint, architecture: Architecture, yes: int, no: int) -> Float32Array:
    """The head reduced to what a score needs: the row of "yes" minus the row of "no", in float32."""
    text = architecture.text
    embedding = embedding_name(vl=architecture.vision is not None)
    name = embedding if text.tied else _HEAD
    if not text.tied and _HEAD not in tensors:
        raise CheckpointError(
            "config.json says the head is not tied to the embedding, but there is no head", item=_HEAD
        )
    tensors.entry(name, (text.vocabulary, text.hidden))
    rows = [tensors.read(name, token, token + 1)[0].astype(np.float32) for token in (yes, no)]
    return cast("Float32Array", rows[0] - rows[1])


def _copy_into(file: Path, out: Path) -> str:
    target = out / file.name
    if not file.is_file():
        raise CheckpointError("there is no such file to include", item=str(file))
    if not (target.exists() and target.samefile(file)):
        shutil.copyfile(file, target)
    return file.name


def _copy_golden(golden: Path | None, out: Path) -> list[str]:
    if golden is None:
        return []
    if not (golden / Path(GOLDEN_FILE).name).is_file():
        raise CheckpointError("there are no golden pairs here", item=str(golden))
    target = (out / GOLDEN_FILE).parent
    if golden.resolve() != target.resolve():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(golden, target)
    return [path.relative_to(out).as_posix() for path in target.rglob("*") if path.is_file()]


def _profile(checkpoint: Path, architecture: Architecture, options: ExportOptions) -> PromptProfile:
    vision = architecture.vision
    family = PromptFamily.TEXT if vision is None else PromptFamily.VL
    image = None
    if vision is not None:
        low, high = _pixel_limits(checkpoint)
        image = ImageProfile(
            patch_size=vision.patch_size,
            temporal_patch_size=vision.temporal_patch_size,
            merge_size=vision.merge_size,
            position_grid=vision.position_grid,
            head_dim=vision.head_dim,
            rope_theta=vision.rope_theta,
            min_pixels=options.min_pixels or low,
            max_pixels=options.max_pixels or high,
        )
    instruction = template_for(family).default_instruction
    return PromptProfile(family, options.max_tokens or _MAX_TOKENS[family], instruction, image)


def _pixel_limits(checkpoint: Path) -> tuple[int, int]:
    """The checkpoint's own limits, no wider than what the reference script allows."""
    path = checkpoint / "preprocessor_config.json"
    if not path.exists():
        return _PIXELS
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        size = config.get("size") or {}
        low = int(config.get("min_pixels") or size.get("shortest_edge") or _PIXELS[0])
        high = int(config.get("max_pixels") or size.get("longest_edge") or _PIXELS[1])
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"cannot be read: {error}", item=str(path)) from None
    return max(low, _PIXELS[0]), min(high, _PIXELS[1])
