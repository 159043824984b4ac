"""`orin-rerank export`: a checkpoint to a bundle."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.errors import SettingsError

__all__ = ["export"]


def export(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Folder with config.json, tokenizer.json and safetensors.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder that the bundle is written to.")],
    name: Annotated[
        str | None, typer.Option(help="The model's name; else the checkpoint folder's.", show_default=False)
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
        typer.Option(metavar="DIR", help="Folder with pairs.jsonl, for the self-test.", show_default=False),
    ] = None,
) -> int:
    """Write a model bundle from a Qwen3-VL-Reranker or Qwen3-Reranker checkpoint.

    Weights are read and written one at a time, so that a large checkpoint needs little memory. Needs the `export`
    extra: pip install 'orin-rerank[export]'.

    For example:

        orin-rerank export Qwen3-VL-Reranker-2B bundles/qwen3-vl-reranker-2b
    """
    from orin_rerank.cli.output import console, progress_console
    from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint

    options = ExportOptions(
        name=name,
        max_tokens=max_tokens,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        licence=licence,
        golden=golden,
    )
    with progress_console().status("reading the checkpoint") as spinner:
        report = export_checkpoint(checkpoint, out, options, spinner.update)
    for tensor, count in report.clipped.items():
        console().print(f"warning: {tensor}: {count} values exceed float16 and were clipped", soft_wrap=True)
    console().print(f"wrote {out}: {report.bundle.manifest.name}, {report.bundle.digest[:12]}", soft_wrap=True)
    return ExitCode.OK
