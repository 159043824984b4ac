"""From a checkpoint in Hugging Face layout to a bundle."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.durable import sync_tree
from orin_rerank.engines.bundle import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    Bundle,
    FileEntry,
    Manifest,
    hash_file,
)
from orin_rerank.engines.graph_files import write_graph_pair
from orin_rerank.errors import CheckpointError
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.config_file import CONFIG_FILE
from orin_rerank.lifecycle.export_profile import read_profile
from orin_rerank.lifecycle.export_source import read_source
from orin_rerank.lifecycle.export_weights import WeightProgress, WeightWriting
from orin_rerank.lifecycle.staging import Staging
from orin_rerank.prompt.encoder import PromptEncoder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from orin_rerank.engines.bundle import GraphEntry
    from orin_rerank.graph.narrowing import Narrowing
    from orin_rerank.lifecycle.export_source import ExportSource
    from orin_rerank.prompt.profile import PromptProfile

__all__ = ["ExportOptions", "ExportReport", "ExportSpectator", "export_checkpoint"]

_GRAPH_BYTES: Final = 2 << 20
"""More than any graph of the published models takes; weights lie outside."""
_GOLDEN: Final = f"{Path(GOLDEN_FILE).parent.as_posix()}/"


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
        matrices: How to store embedding and projections; None keeps float32 and makes float16 of all else.
        mark_bytes: How much may be written between two points that an export which is killed can go on from.
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
    matrices: Literal["F16", "F32"] | None = None
    mark_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What came of an export.

    Attributes:
        bundle: The bundle.
        losses: What storing a tensor in a narrower type lost, for each that lost anything.
        resumed: Bytes of weights that an earlier export, which was cut short, had written.
        renamed: Prefixes of tensor names that were replaced, each with what replaced it.
        ignored: Tensors of the checkpoint that the model does not use, and an adapter that lies beside them.
    """

    bundle: Bundle
    losses: Mapping[str, Narrowing]
    resumed: int
    renamed: Mapping[str, str]
    ignored: tuple[str, ...]

    @property
    def clipped(self) -> dict[str, int]:
        """How many weights of which tensor exceeded what they are stored in; empty as a rule."""
        return {name: loss.clipped for name, loss in self.losses.items() if loss.clipped}


class ExportSpectator(WeightProgress):
    """Told what an export does; does nothing with it."""

    def on_stage(self, stage: str) -> None:
        """What is done from now on."""

    def on_checked(self, done: int, total: int) -> None:
        """Bytes of weights that were there already and have been read again, of how many."""

    def on_written(self, done: int, total: int) -> None:
        """Bytes of weights that are written, of how many."""


def export_checkpoint(
    checkpoint: Path, out: Path, options: ExportOptions, spectator: ExportSpectator | None = None
) -> ExportReport:
    """Writes a bundle.

    Weights are read, converted and written in pieces. Everything is written beside the bundle that is in the folder,
    and takes its place when it is whole and on disk, so that needs room for both. An export that was cut short by
    whatever leaves what was there; run again, it goes on from where it was, as long as checkpoint and version are the
    same. The result does not depend on any of this: it is the same, byte for byte, for the same checkpoint.

    Args:
        checkpoint: Folder with config.json, tokenizer.json and safetensors.
        out: Folder for the bundle, made if missing.
        options: What the checkpoint does not say.
        spectator: Told what is being done.

    Raises:
        CheckpointError: If the checkpoint cannot become a bundle; the item names the key or file.
        BundleError: If the tokenizer lacks a token that the prompts need.
        ExportError: If the bundle cannot be written: no room, no permission, another export is at it, or the folder
            holds files of something else.
    """
    watch = spectator or ExportSpectator()
    watch.on_stage("reading the checkpoint")
    source = read_source(checkpoint, options.matrices)
    profile = read_profile(
        checkpoint,
        source.architecture,
        max_tokens=options.max_tokens,
        min_pixels=options.min_pixels,
        max_pixels=options.max_pixels,
    )
    PromptEncoder(profile, source.tokenizer)  # has every token that the prompts need
    copied = _copied(checkpoint, options)
    if out.exists() and out.samefile(checkpoint):
        raise CheckpointError("a bundle cannot be written into its checkpoint", item=str(out))
    staging = Staging(out)
    with staging.open():
        staging.refuse_strangers((WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE))
        staging.take_back(WEIGHTS_FILE)
        writing = WeightWriting(source.weights, staging.folder, source.identity, options.mark_bytes)
        graphs = len(options.precisions) * len(Dialect) * 2 * _GRAPH_BYTES
        staging.require_space(writing.remaining + graphs + sum(path.stat().st_size for path in copied.values()))
        written = writing.write(source.tensors, watch)
        watch.on_stage("writing graphs")
        size = source.weights.nbytes
        files = {WEIGHTS_FILE: FileEntry(written.sha256, size, options.licence)}
        manifest = _write_rest(staging.folder, source, profile, copied, options, files)
        watch.on_stage("putting the bundle in its place")
        sync_tree(staging.folder)
        bundle = staging.commit(manifest)
    return ExportReport(bundle, written.losses, written.resumed, source.renamed, source.ignored)


def _write_rest(
    folder: Path,
    source: ExportSource,
    profile: PromptProfile,
    copied: Mapping[str, Path],
    options: ExportOptions,
    files: Mapping[str, FileEntry],
) -> Manifest:
    """Writes everything but the weights, and describes the whole."""
    graphs = _write_graphs(folder, source, options)
    for name, path in copied.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    written = [name for graph in graphs for name in (graph.text, graph.vision) if name is not None]
    golden = {name for name in copied if name.startswith(_GOLDEN)}
    entries = {
        name: FileEntry(
            hash_file(folder / name),
            (folder / name).stat().st_size,
            options.golden_licence if name in golden else options.licence,
        )
        for name in (*written, *copied)
    }
    name = options.name or source.folder.resolve().name
    return Manifest(name, profile, source.architecture, graphs, {**files, **entries})


def _write_graphs(folder: Path, source: ExportSource, options: ExportOptions) -> tuple[GraphEntry, ...]:
    return tuple(
        write_graph_pair(folder, source.architecture, source.weights, dialect, precision)
        for precision in options.precisions
        for dialect in Dialect
    )


def _copied(checkpoint: Path, options: ExportOptions) -> dict[str, Path]:
    """The files that go into the bundle as they are, by their path in it.

    Raises:
        CheckpointError: If one is missing.
    """
    files = {name: checkpoint / name for name in (CONFIG_FILE, TOKENIZER_FILE)}
    for file in options.include:
        if not file.is_file():
            raise CheckpointError("there is no such file to include", item=str(file))
        if file.name in (*files, WEIGHTS_FILE, MANIFEST_FILE):
            raise CheckpointError("a bundle has another file of this name", item=str(file))
        files[file.name] = file
    if options.golden is None:
        return files
    if not (options.golden / Path(GOLDEN_FILE).name).is_file():
        raise CheckpointError("there are no golden pairs here", item=str(options.golden))
    golden = sorted(path for path in options.golden.rglob("*") if path.is_file())
    return files | {f"{_GOLDEN}{path.relative_to(options.golden).as_posix()}": path for path in golden}
