"""Compiles the 8B at its full size, with random weights, for SM86: how long it takes and how much memory.

    make compile-8b
    python tests/engines/tensorrt/measure_8b.py [--precision fp16] [--level 3] [--largest 2]

Profiles are those that an AGX Orin with 64 GB serves with. Without a GPU the compiler cannot leave weights out of a
plan. Memory holds them almost three times: 20 GiB in INT8.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engines.tensorrt.compiling import compile_here, serving_plan, serving_profiles
from fakes.published import MODELS
from fakes.random_models import write_random_model
from orin_rerank.engines.tensorrt.api import RUNTIME
from orin_rerank.graph.builder import Dialect, Precision

GIB = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("fp16", "int8-fp16"), default="int8-fp16")
    parser.add_argument("--level", type=int, default=0, help="how hard the compiler looks for fast kernels, 0 to 5")
    parser.add_argument("--largest", type=int, default=0, help="compile so many of the largest profiles; 0 for all")
    options = parser.parse_args()
    with contextlib.suppress(OSError):  # rather this than anything else, where memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    model, precision = MODELS["vl-8b"], Precision(options.precision)
    plan = serving_plan(model, precision)
    text, vision = serving_profiles(plan)
    with tempfile.TemporaryDirectory(prefix="compile-8b-") as name:
        folder = Path(name)
        begin = time.monotonic()
        entry = write_random_model(folder, model.architecture, precision, [Dialect.PRIMITIVE])[0]
        size = (folder / "model.safetensors").stat().st_size / GIB
        print(f"{size:.2f} GiB of weights written in {time.monotonic() - begin:.0f} s; {RUNTIME}", flush=True)
        assert entry.vision is not None
        for graph, ladder in ((entry.vision, vision), (entry.text, text)):
            profiles = ladder[-options.largest :]
            done = compile_here(folder / graph, profiles, level=options.level)
            attention = sum("mha" in kernel for kernel in done.kernels)
            print(
                f"{graph}, {len(profiles)} profiles, level {options.level}: {done.layers} layers, {attention} fused"
                f" attentions, {done.seconds:.0f} s, {done.peak_bytes / GIB:.1f} GiB at most, a plan of"
                f" {done.plan_bytes / GIB:.2f} GiB",
                flush=True,
            )
            for profile, scratch in zip(profiles, done.scratch, strict=True):
                print(f"    {profile.name}: {scratch / 1e6:.0f} MB of scratch memory", flush=True)
        print(f"planned: {plan.needs.scratch / plan.slots / 1e6:.0f} MB for each of {plan.slots} slots")


if __name__ == "__main__":
    main()
