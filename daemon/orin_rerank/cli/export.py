"""`orin-rerank export`: a checkpoint to a bundle's graphs."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode

__all__ = ["export"]


def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Folder with config.json and safetensors.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder that the bundle is written to.")],
) -> int:
    """Write ONNX graphs from a Qwen3-VL-Reranker checkpoint.

    Weights are read and written one at a time, so that a large checkpoint needs little memory. Needs the `export`
    extra: pip install 'orin-rerank[export]'.

    For example:

        orin-rerank export Qwen3-VL-Reranker-2B bundles/qwen3-vl-reranker-2b
    """
    from orin_rerank.cli.output import console, progress_console
    from orin_rerank.graph.export import export_checkpoint

    with progress_console().status("reading the checkpoint") as spinner:
        export_checkpoint(checkpoint, out, report=spinner.update)
    console().print(f"wrote {out}", soft_wrap=True)
    return ExitCode.OK
