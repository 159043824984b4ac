"""`orin-rerank build`: a bundle's graphs to TensorRT plans for the GPU of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.exit_codes import ExitCode
from orin_rerank.cli.options import BundleOption, JsonOption  # noqa: TC001 - typer reads annotations at run time
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice

if TYPE_CHECKING:
    from rich.console import Console

    from orin_rerank.lifecycle.compile import CompiledEngine

__all__ = ["build"]


def build(
    *,
    bundle: BundleOption = None,
    precision: Annotated[
        PrecisionChoice,
        typer.Option(
            help="What to compile: full precision, INT8, or full precision and INT8 where an engine is installed that "
            "has passed its gate."
        ),
    ] = PrecisionChoice.AUTO,
    token_budget: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", min=16, help="Tokens in one pack, if `serve` is given them too.", show_default=False
        ),
    ] = None,
    workspace: Annotated[
        int,
        typer.Option(
            metavar="MIB", min=64, help="Memory that one kernel may use beside its inputs; halved where it runs out."
        ),
    ] = 1024,
    level: Annotated[int, typer.Option(min=0, max=5, help="How hard to look for fast kernels.")] = 3,
    again: Annotated[bool, typer.Option("--again", help="Compile what is installed already, too.")] = False,
    json_output: JsonOption = False,
) -> int:
    """Compile a bundle for the GPU of this machine.

    Makes TensorRT plans of the bundle in FP16, and of its INT8 engine if one is installed, and installs them. They are
    for this GPU, this TensorRT and this system, and have to be made again after an update of any. Compiling takes from
    minutes to hours, and almost three times the memory of the weights; nothing else should need the memory meanwhile.

    Ctrl-C stops it within seconds. What is compiled is kept, and the same command goes on from there.

    For example:

        orin-rerank build
        orin-rerank build --precision int8 --workspace 512

    Where there is TensorRT-RTX and no TensorRT, plans are compiled for the nearest sibling of Orin's GPU: for tests,
    and not for this machine.

    --json writes {"bundle", "runtime", "gpu", "sibling", "warnings", "engines"}; each engine has {"precision",
    "bundle", "key", "folder", "bytes", "plans"}, and each plan {"name", "bytes", "sha256", "seconds", "compiled"};
    "compiled" is null for a plan that was there already.
    """
    from orin_rerank.cli.build_progress import ShownBuild
    from orin_rerank.cli.bundles import bundle_of
    from orin_rerank.cli.output import console, print_json
    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.plan_store import PlanStore
    from orin_rerank.engines.store import EngineStore, default_state_folder
    from orin_rerank.engines.tensorrt.builder import PlanBuilder
    from orin_rerank.lifecycle.compile import CompileOptions, compile_bundle
    from orin_rerank.lifecycle.compile_target import find_target

    options = CompileOptions(
        EngineSettings(precision=precision, token_budget=token_budget), workspace << 20, level, again
    )
    source = Bundle.open(bundle_of(bundle))
    target = find_target()
    state = default_state_folder()
    with ShownBuild() as shown:
        if target.sibling is not None:
            shown.on_warning(
                f"{target.runtime} compiles for {target.sibling}, the nearest sibling of Orin's GPU that it knows: "
                "these plans are for tests, not for this machine"
            )
        compiled = compile_bundle(source, options, target, EngineStore(state), PlanStore(state), PlanBuilder(), shown)
    if json_output:
        print_json(
            {
                "bundle": source.digest,
                "runtime": target.runtime,
                "gpu": target.device.name,
                "sibling": target.sibling,
                "warnings": shown.warnings,
                "engines": [_as_dict(engine) for engine in compiled],
            }
        )
    else:
        _show(compiled, console())
    return ExitCode.OK


def _as_dict(engine: CompiledEngine) -> dict[str, object]:
    """An engine as `--json` writes it."""
    import dataclasses

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
        "plans": plans,
    }


def _show(compiled: list[CompiledEngine], out: Console) -> None:
    """What is installed now, and where."""
    from orin_rerank.cli.output import counted

    for engine in compiled:
        how = "compiled" if engine.reports else "already there"
        key = engine.plans.manifest.key
        size = f"{engine.plans.bytes / 1e6:.1f} MB"
        plans = counted(len(engine.work.plans), "plan")
        line = f"{engine.work.precision}: {plans} {how}, {size}, key {key.digest[:12]}, {key.runtime}, {key.gpu}"
        out.print(line, markup=False, soft_wrap=True)
        out.print(f"  {engine.plans.folder}", markup=False, soft_wrap=True)
