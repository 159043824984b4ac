"""`orin-rerank export`: a checkpoint to a bundle."""

from __future__ import annotations

import enum
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.errors import SettingsError

__all__ = ["export"]


class Precision(str, enum.Enum):
    """What graphs compute in: the names of `graph.builder.Precision`, which `--help` has no need to import."""

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

    Writes ONNX graphs, weights, tokenizer and a manifest with the SHA-256 of every file. Weights are read and written
    a tensor at a time, so that a large checkpoint needs little memory, and the manifest comes last: an export that
    was cut short leaves no bundle, and can be run again. Needs the export extra: pip install 'orin-rerank[export]'.

    For example:

        orin-rerank export Qwen3-VL-Reranker-2B bundles/qwen3-vl-reranker-2b
        orin-rerank serve --bundle bundles/qwen3-vl-reranker-2b
    """
    from orin_rerank.cli.output import console, progress_console
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
    )
    try:
        with progress_console().status("reading the checkpoint") as spinner:
            report = export_checkpoint(checkpoint, out, options, spinner.update)
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise SettingsError("needs transformers: pip install 'orin-rerank[export]'", item="export") from error
    for tensor, count in report.clipped.items():
        progress_console().print(f"warning: {tensor}: {count} weights exceed FP16 and were clipped", markup=False)
    manifest = report.bundle.manifest
    size = sum(entry.bytes for entry in manifest.files.values())
    console().print(
        f"wrote {out}: {manifest.name}, {len(manifest.files)} files, {size / 1e6:.1f} MB, {report.bundle.digest[:12]}",
        markup=False,
        soft_wrap=True,
    )
    return ExitCode.OK
