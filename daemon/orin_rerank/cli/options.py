"""Options that several commands have, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orin_rerank.engines.settings import DeviceChoice, PrecisionChoice

__all__ = [
    "AddressOption",
    "BundleOption",
    "ConfigOption",
    "DeviceOption",
    "JsonOption",
    "MaxTokensOption",
    "PrecisionOption",
    "SocketOption",
    "ThreadsOption",
]

BundleOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        envvar="ORIN_RERANK_BUNDLE",
        help="The model bundle; else the mini model of a source tree, or the one that is installed.",
        show_default=False,
    ),
]
PrecisionOption = Annotated[
    PrecisionChoice | None,
    typer.Option(
        help="What to compute in: full precision, INT8, or INT8 where an engine is installed that has passed its "
        "gate, which is the default.",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    DeviceChoice | None,
    typer.Option(
        help="What to compute on: the processor, an NVIDIA GPU (by TensorRT where plans are installed for it, else "
        "by ONNX Runtime), or the GPU where it can be used, which is the default.",
        show_default=False,
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Processor cores to compute on; else all. No matter for a GPU.", show_default=False
    ),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        min=256,
        help="Longest query with one document, for `build` and `serve` alike; else the model's own limit, or what "
        "memory holds.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="ORIN_RERANK_CONFIG",
        help="The settings file; else /etc/orin-rerank/config.toml, if it is there. Options go before what it says.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON instead of a table.")]
SocketOption = Annotated[
    Path | None, typer.Option(metavar="PATH", help="The daemon's Unix socket.", show_default=False)
]
AddressOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The daemon's address, where it listens on TCP.", show_default=False),
]
