"""`orin-rerank export`: a checkpoint to a bundle."""

from __future__ import annotations

import enum
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.errors import SettingsError

if TYPE_CHECKING:
    from orin_rerank.lifecycle.export import ExportReport

__all__ = ["export"]

_MANY_VANISHED: Final = 0.01
"""Some weights in a million always do; a share like this means a tensor on a scale that float16 is not made for."""


class Precision(str, enum.Enum):
    """What graphs compute in: the names of `graph.builder.Precision`, which `--help` has no need to import."""

    FP32 = "fp32"
    FP16 = "fp16"


class Stored(str, enum.Enum):
    """How embedding and projections are stored."""

    FP32 = "fp32"
    FP16 = "fp16"


def export(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Folder with config.json, tokenizer.json and safetensors.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the bundle; made if missing.")],
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The model's name; else the checkpoint folder's.", show_default=False),
    ] = None,
    precision: Annotated[
        list[Precision] | None,
        typer.Option(help="Write graphs for this one only; else for all.", show_default=False),
    ] = None,
    weights: Annotated[
        Stored | None,
        typer.Option(
            help="How matrices are stored; else float32 stays that, and all else becomes float16.", show_default=False
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", min=128, help="Longest prompt; else the published limit.", show_default=False),
    ] = None,
    min_pixels: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS", min=1024, help="Smaller pictures are enlarged to this area.", show_default=False
        ),
    ] = None,
    max_pixels: Annotated[
        int | None,
        typer.Option(metavar="PIXELS", min=1024, help="Larger pictures are reduced to this area.", show_default=False),
    ] = None,
    licence: Annotated[str, typer.Option(metavar="SPDX", help="Licence of the weights.")] = "Apache-2.0",
    golden: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="pairs.jsonl and pictures, for the self-test at every start.", show_default=False
        ),
    ] = None,
    golden_licence: Annotated[
        str, typer.Option(metavar="SPDX", help="Licence of the golden pairs and their pictures.")
    ] = "Apache-2.0",
    include: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A further file to ship, such as a model card; repeatable.", show_default=False
        ),
    ] = None,
) -> int:
    """Make a bundle from a checkpoint of Qwen3-VL-Reranker or Qwen3-Reranker.

    Takes the published folders and fine-tuned ones, LoRA merged: config.json, tokenizer.json, and safetensors, in one
    file or in shards. Writes ONNX graphs, weights, tokenizer and a manifest with the SHA-256 of every file; the same
    checkpoint gives the same bytes. Needs some hundred MB of memory, whatever the model, and room on the disk for the
    weights in float16. A bundle that is in OUT is kept until the new one is whole, so that there has to be room for
    both. Stopped or killed at any point, the same command goes on from where it was. Needs the export extra:
    pip install 'orin-rerank[export]'.

    For example:

        orin-rerank export Qwen3-VL-Reranker-2B bundles/qwen3-vl-reranker-2b
        orin-rerank serve --bundle bundles/qwen3-vl-reranker-2b
    """
    from orin_rerank.cli.export_progress import ShownExport
    from orin_rerank.cli.output import console
    from orin_rerank.graph import builder
    from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint

    options = ExportOptions(
        name=name,
        max_tokens=max_tokens,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        licence=licence,
        precisions=tuple(builder.Precision(one.value) for one in precision or Precision),
        golden=golden,
        golden_licence=golden_licence,
        include=tuple(include or ()),
        matrices=None if weights is None else "F16" if weights is Stored.FP16 else "F32",
    )
    try:
        with ShownExport() as shown:
            report = export_checkpoint(checkpoint, out, options, shown)
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise SettingsError("needs transformers: pip install 'orin-rerank[export]'", item="export") from error
    _print_remarks(report)
    manifest = report.bundle.manifest
    size = sum(entry.bytes for entry in manifest.files.values())
    console().print(
        f"wrote {out}: {manifest.name}, {len(manifest.files)} files, {size / 1e6:.1f} MB, {report.bundle.digest[:12]}",
        markup=False,
        soft_wrap=True,
    )
    return ExitCode.OK


def _print_remarks(report: ExportReport) -> None:
    """Says what a person should know of a checkpoint that was taken all the same."""
    from orin_rerank.cli.output import progress_console

    remarks = [f'tensor names that begin with "{old}" were read as "{new}"' for old, new in report.renamed.items()]
    remarks += [f"warning: {name} is not used" for name in report.ignored]
    if report.resumed:
        remarks.append(f"went on from {report.resumed / 1e6:.1f} MB that were written before")
    for name, loss in report.losses.items():
        if loss.clipped:
            remarks.append(
                f"warning: {name}: {loss.clipped:,} of {loss.values:,} weights exceed FP16 (65504) and were clipped"
            )
        if loss.vanished > _MANY_VANISHED * loss.values:
            remarks.append(
                f"warning: {name}: {loss.vanished:,} of {loss.values:,} weights are too small for FP16 and became zero"
            )
    for remark in remarks:
        progress_console().print(remark, markup=False, soft_wrap=True)
