"""`orin-rerank plan`: what fits on a board, how fast it can be, and which model to take."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import ConfigOption, JsonOption  # noqa: TC001 - typer reads annotations at run time
from orin_rerank.errors import SettingsError

if TYPE_CHECKING:
    from orin_rerank.engines.settings import EngineSettings
    from orin_rerank.lifecycle.board_plan import Candidate, Target

__all__ = ["plan"]


class BoardName(str, enum.Enum):
    """The boards of `lifecycle.published`, which `--help` has no need to import, and the machine itself."""

    THIS = "this"
    AGX_ORIN_64 = "agx-orin-64"
    AGX_ORIN_32 = "agx-orin-32"
    ORIN_NX_16 = "orin-nx-16"
    ORIN_NX_8 = "orin-nx-8"
    ORIN_NANO_8 = "orin-nano-8"
    ORIN_NANO_4 = "orin-nano-4"


def plan(
    *,
    board: Annotated[
        BoardName,
        typer.Option(
            metavar="BOARD",
            help="agx-orin-64, agx-orin-32, orin-nx-16, orin-nx-8, orin-nano-8, orin-nano-4, or `this`: the machine "
            "that this runs on.",
        ),
    ] = BoardName.THIS,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="vl-2b, vl-8b, 0.6b, 4b, 8b, or a bundle's folder; else all that are published, and the bundle that "
            "the settings name.",
            show_default=False,
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(metavar="SHARE", min=0.01, max=1.0, help="How much of the chip's limits is counted on, 0 to 1."),
    ] = 0.5,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", min=256, help="Longest query with a document.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> int:
    """Tell what fits on a board, and how fast it can be, before anything is downloaded or built.

    Memory is what serving and compiling take, reckoned as a start reckons it: weights, buffers, scratch memory of the
    engines, caches. There are three ways to serve: with INT8 and full precision both in memory, which no start does
    yet; with one at a time (swapped), as a start does it; or with INT8 alone, where full precision does not fit. Where
    a model does not fit as it is, pairs are cut shorter and fewer packs are in flight; what does not fit then is
    refused with the numbers.

    Times are those of a top-50 request: what the chip's limits allow, and what is expected at a share of them. They are
    reckoned, not measured.

    This machine is planned by its settings file, as `build` and `serve` go by it: device, memory, tokens, caches and
    bundle. Another board is not, unless --config names a file.

    For example:

        orin-rerank plan --board orin-nx-16
        orin-rerank plan --board agx-orin-64 --model vl-8b
        orin-rerank plan --model engines/mini --json | jq '.models[0].best'

    --json writes {"board", "share", "models", "recommended", "problem"}. Each model has {"key", "name", "best",
    "policies", "build_bytes", "build_swap_bytes", "download_bytes", "disk_bytes", "objections", "times"}, each
    policy {"policy", "fits", "needed_bytes", "usable_bytes", "max_tokens", "slots", "weights", "buffers",
    "scratch", "caches", "overhead", "process", "problem"}, and each time {"request", "mode", "precision",
    "limit_s", "expected_s"}.
    """
    from orin_rerank.cli.configured import settings_of, with_options
    from orin_rerank.cli.output import console, print_json
    from orin_rerank.cli.plan_tables import as_dict, show
    from orin_rerank.config.sections import Settings
    from orin_rerank.errors import BundleError
    from orin_rerank.lifecycle.board_plan import plan_board
    from orin_rerank.lifecycle.this_machine import bundle_candidate

    by_file = board is BoardName.THIS or config is not None
    settings = with_options(settings_of(config) if by_file else Settings(), engine={"max_tokens": max_tokens})
    target = _target(board, settings.engine)
    candidates = _candidates(model, target)
    problem = None
    if model is None and settings.model.bundle is not None:
        try:
            candidates.append(bundle_candidate(settings.model.bundle, target))
        except BundleError as error:  # it may still be on its way; what fits is asked before that, too
            problem = f"the bundle of the settings is left out: {error}"
    made = plan_board(target, candidates, share, settings.engine)
    if json_output:
        print_json({**as_dict(made), "problem": problem})
    else:
        show(made, console(), detailed=model is not None)
        if problem is not None:
            console().print(problem, style="yellow", markup=False)
    return ExitCode.OK


def _target(board: BoardName, settings: EngineSettings) -> Target:
    """What is planned for: a board as the table has it, or this machine; and what the settings leave of it."""
    import dataclasses

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.engines.footprint import EngineKind
    from orin_rerank.engines.settings import DeviceChoice
    from orin_rerank.lifecycle.board_plan import Target
    from orin_rerank.lifecycle.published import BOARDS
    from orin_rerank.lifecycle.this_machine import this_target

    if board is BoardName.THIS:
        target = this_target(BoardPaths.from_environment())
    else:
        spec = BOARDS[board.value]
        target = Target(spec.kind.name, EngineKind.TENSORRT, spec.memory_bytes, spec.modes)
    if settings.device is DeviceChoice.CPU:
        target = target.on_processor
    return dataclasses.replace(target, serving_bytes=settings.memory_bytes)


def _candidates(model: str | None, target: Target) -> list[Candidate]:
    """The model that is named, published or a bundle; else all that are published."""
    from orin_rerank.lifecycle.board_plan import Candidate
    from orin_rerank.lifecycle.published import MODELS
    from orin_rerank.lifecycle.this_machine import bundle_candidate

    published = [
        Candidate(one.key, one.name, one.family, one.size, one.download_bytes, one.quality) for one in MODELS.values()
    ]
    if model is None:
        return published
    for one in published:
        if model.lower() in (one.key, one.name.lower()):
            return [one]
    if not Path(model).is_dir():
        known = ", ".join(MODELS)
        raise SettingsError(f"is neither a published model ({known}) nor a bundle's folder", item=f"--model {model}")
    return [bundle_candidate(Path(model), target)]
