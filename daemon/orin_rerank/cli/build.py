"""`orin-rerank build`: a bundle's graphs to TensorRT plans for the GPU of this machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import (  # noqa: TC001 - typer reads annotations at run time
    BundleOption,
    ConfigOption,
    JsonOption,
    MaxTokensOption,
)
from orin_rerank.engines.settings import PrecisionChoice  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from rich.console import Console

    from orin_rerank.lifecycle.compile import CompiledEngine
    from orin_rerank.lifecycle.plan_cleaning import RemovedPlans
    from orin_rerank.quantization.gate import GateRecord

__all__ = ["build"]


def build(
    *,
    bundle: BundleOption = None,
    precision: Annotated[
        PrecisionChoice | None,
        typer.Option(
            help="What to compile: full precision, INT8, or full precision and INT8 where an engine is installed that "
            "has passed its gate, which is the default.",
            show_default=False,
        ),
    ] = None,
    token_budget: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", min=16, help="Tokens in one pack, if `serve` is given them too.", show_default=False
        ),
    ] = None,
    workspace: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=64,
            help="Scratch memory that a plan may ask for, halved where memory is short; else what there is room for.",
            show_default=False,
        ),
    ] = None,
    max_tokens: MaxTokensOption = None,
    level: Annotated[int, typer.Option(min=0, max=5, help="How hard to look for fast kernels.")] = 3,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The judged set that the INT8 engine was judged by; else the one that ships in a source tree.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Compile what is installed already, too.")] = False,
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> int:
    """Compile a bundle for the GPU of this machine.

    Makes TensorRT plans of the bundle in FP16, and of its INT8 engine if one is installed, and installs them. They are
    for this GPU, this TensorRT and this system, and have to be made again after an update of any. Compiling takes from
    minutes to hours, and almost three times the memory of the weights; nothing else should need the memory meanwhile.

    What a compiler makes of INT8 graphs may rank worse than they do, and differ from build to build. So INT8 plans
    score the judged set on the GPU, which takes minutes, and are held to the gate that the INT8 engine passed. The
    daemon serves only plans that passed; else it serves FP16, and `orin-rerank status` says why.

    Plans fit the limits that they are compiled for, so the settings file counts here as it does for the daemon: tokens
    of a pack and of a pair, and the memory that serving may take.

    Ctrl-C stops it within seconds. What is compiled is kept, and the same command goes on from there. Plans of INT8
    engines that have been replaced, and of a bundle where another lies now, are removed. As root it works as the owner
    of the state folder, which is the service's user.

    For example:

        orin-rerank build
        orin-rerank build --precision int8 --workspace 512

    Where there is TensorRT-RTX and no TensorRT, plans are compiled for the nearest sibling of Orin's GPU: for tests,
    and not for this machine.

    --json writes {"bundle", "runtime", "gpu", "sibling", "warnings", "removed", "engines"}; each engine has
    {"precision", "bundle", "key", "folder", "bytes", "gate", "plans"}, and each plan {"name", "bytes", "sha256",
    "seconds", "compiled"}; "compiled" is null for a plan that was there already, "gate" for plans that need none.
    """
    from orin_rerank.cli.build_progress import ShownBuild
    from orin_rerank.cli.bundles import bundle_of
    from orin_rerank.cli.configured import judged_set, settings_of, state_folder
    from orin_rerank.cli.output import console, print_json
    from orin_rerank.cli.owner import become_owner
    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.plan_store import PlanStore
    from orin_rerank.engines.store import EngineStore
    from orin_rerank.engines.tensorrt.builder import PlanBuilder
    from orin_rerank.lifecycle.accelerators import Accelerators
    from orin_rerank.lifecycle.compile import CompileOptions, compile_bundle
    from orin_rerank.lifecycle.compile_target import find_target
    from orin_rerank.lifecycle.plan_cleaning import remove_stale_plans
    from orin_rerank.lifecycle.plan_judging import PlanJudge

    settings = settings_of(
        config, engine={"precision": precision, "token_budget": token_budget, "max_tokens": max_tokens}
    )
    options = CompileOptions(
        settings.engine,
        None if workspace is None else workspace << 20,
        level,
        again,
    )
    state = state_folder(settings)
    become_owner(state)
    source = Bundle.open(bundle_of(bundle or settings.model.bundle))
    target = find_target()
    stores = EngineStore(state), PlanStore(state)
    judged = evaluation or judged_set(settings)
    with ShownBuild() as shown:
        if target.sibling is not None:
            shown.on_warning(
                f"{target.runtime} compiles for {target.sibling}, the nearest sibling of Orin's GPU that it knows: "
                "these plans are for tests, not for this machine"
            )
        compiled = compile_bundle(
            source,
            options,
            target,
            *stores,
            PlanBuilder(),
            shown,
            lambda int8: PlanJudge.open(int8, judged, options.settings, Accelerators()),
        )
    removed = remove_stale_plans(stores[1], stores[0], keep=[source.digest])
    if json_output:
        print_json(
            {
                "bundle": source.digest,
                "runtime": target.runtime,
                "gpu": target.device.name,
                "sibling": target.sibling,
                "warnings": shown.warnings,
                "removed": [dataclasses.asdict(one) for one in removed],
                "engines": [_as_dict(engine) for engine in compiled],
            }
        )
    else:
        _show(compiled, removed, console())
    return ExitCode.OK


def _as_dict(engine: CompiledEngine) -> dict[str, object]:
    """An engine as `--json` writes it."""
    manifest = engine.plans.manifest
    plans: list[dict[str, object]] = []
    for name, entry in sorted(manifest.plans.items()):
        report = engine.reports.get(name)
        plans.append(
            {
                "name": name,
                "bytes": entry.bytes,
                "sha256": entry.sha256,
                "seconds": entry.build_s,
                "compiled": None
                if report is None
                else {
                    "attempts": report.attempts,
                    "workspace_bytes": report.workspace_bytes,
                    "layers": report.done.layers,
                    "peak_bytes": report.done.peak_bytes,
                },
            }
        )
    return {
        "precision": manifest.key.precision,
        "bundle": manifest.key.bundle,
        "key": {"digest": manifest.key.digest, **dataclasses.asdict(manifest.key)},
        "folder": str(engine.plans.folder),
        "bytes": engine.plans.bytes,
        "gate": None if engine.gate is None else _gate_as_dict(engine.gate),
        "plans": plans,
    }


def _gate_as_dict(record: GateRecord) -> dict[str, object]:
    """What a gate saw, as `--json` writes it."""
    verdict = record.verdict
    return {"passed": verdict.passed, "reasons": list(verdict.reasons), "total": record.report.total.as_dict()}


def _show(compiled: list[CompiledEngine], removed: list[RemovedPlans], out: Console) -> None:
    """What is installed now, and where."""
    from orin_rerank.cli.build_progress import gate_summary
    from orin_rerank.cli.output import counted

    for engine in compiled:
        how = "compiled" if engine.reports else "already there"
        key = engine.plans.manifest.key
        size = f"{engine.plans.bytes / 1e6:.1f} MB"
        plans = counted(len(engine.work.plans), "plan")
        lines = [
            f"{engine.work.precision}: {plans} {how}, {size}",
            f"  for {key.gpu}, {key.runtime}, {key.platform}; key {key.digest[:12]}",
        ]
        for line in lines:
            out.print(line, markup=False, soft_wrap=True)
        if engine.gate is not None:
            style = "green" if engine.gate.verdict.passed else "yellow"
            out.print(f"  gate on this GPU: {gate_summary(engine.gate)}", style=style, markup=False, soft_wrap=True)
        out.print(f"  {engine.plans.folder}", markup=False, soft_wrap=True)
    for one in removed:
        out.print(str(one), markup=False, soft_wrap=True)
