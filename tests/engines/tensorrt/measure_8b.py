"""Compiles the 8B at its full size, with random weights, for SM86: how long it takes and how much memory.

    make compile-8b
    python tests/engines/tensorrt/measure_8b.py [--precision fp16] [--level 3] [--tokens 1024]

Without a GPU the compiler cannot leave weights out of a plan. Memory holds them almost three times: 20 GiB in INT8.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engines.tensorrt.compiling import compile_graph, text_ladder, vision_ladder
from fakes.random_models import VL_8B, write_random_model
from orin_rerank.engines.tensorrt.job import BuilderSaid
from orin_rerank.graph.builder import Dialect, Precision

GIB = 1 << 30


def warn(event: object) -> None:
    if isinstance(event, BuilderSaid):
        print(f"    {event.severity}: {event.text[:200]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("fp16", "int8-fp16"), default="int8-fp16")
    parser.add_argument("--level", type=int, default=0, help="how hard the compiler looks for fast kernels, 0 to 5")
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest pack; one profile is compiled for it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compile-8b-") as name:
        folder = Path(name)
        begin = time.monotonic()
        entry = write_random_model(folder, VL_8B, Precision(options.precision), [Dialect.PRIMITIVE])[0]
        size = (folder / "model.safetensors").stat().st_size / GIB
        print(f"{size:.2f} GiB of weights written in {time.monotonic() - begin:.0f} s", flush=True)
        assert entry.vision is not None
        text = text_ladder(VL_8B, tokens=options.tokens, budget=options.tokens)[-1:]
        for graph, profiles in ((entry.vision, vision_ladder(VL_8B, 1_843_200)), (entry.text, text)):
            report = compile_graph(folder / graph, folder, profiles, level=options.level, watch=warn)
            done = report.done
            print(
                f"{graph}, {len(profiles)} profiles, level {options.level}: {done.layers} layers, {done.seconds:.0f} s,"
                f" {done.peak_bytes / GIB:.1f} GiB at most, a plan of {done.plan_bytes / GIB:.2f} GiB ({done.runtime})",
                flush=True,
            )
            (folder / f"{graph}.plan").unlink()


if __name__ == "__main__":
    main()
