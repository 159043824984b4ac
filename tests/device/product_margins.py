# ruff: noqa: PERF203
"""A process that scores the pairs of `scale_pairs` with the product's engine; run by `numerics.py`.

It has a process of its own so that what it needs of the host's memory is the product's alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from parts import packs_of
from scale_pairs import prompt_profile, scale_requests
from scale_shapes import MODELS

from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.cuda_driver import Driver
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.runner import Runner
from orin_rerank.errors import NonFiniteScoreError
from orin_rerank.graph.architecture import Architecture
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.prompt.tokenizer import PromptTokenizer

PACK_TOKENS = 2048
ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "engines" / "mini" / "tokenizer.json"
DATASET = ROOT / "calibration_data" / "evaluation"


def memory_figures() -> dict[str, float]:
    """Gigabytes of this process in RAM: now and at most, and how much of it is no file's."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    names = {"VmRSS": "resident_gb", "VmHWM": "peak_gb", "RssAnon": "anonymous_gb"}
    return {name: round(int(fields[key].split()[0]) / 1e6, 2) for key, name in names.items() if key in fields}


def free_on_device(driver: Driver) -> int:
    """Bytes that are free on the GPU."""
    return driver.free_bytes()


def make_engine(options: argparse.Namespace, architecture: Architecture, tokens: int) -> OnnxRuntimeEngine:
    """The engine, on a GPU or on the processor."""
    half = options.precision != "fp32"
    vision = options.folder / f"vision.{options.graphs}.onnx"
    return OnnxRuntimeEngine(
        options.folder / f"text.{options.graphs}.onnx",
        vision if architecture.vision is not None else None,
        prompt_profile(architecture).image,
        PackCapacity.of_model(
            architecture, tokens=tokens, documents=256, product_dtype=np.float16 if half else np.float32
        ),
        threads=1,
        precision=options.precision,
        pool_timeout_s=600.0,
        cuda=CudaThread() if options.device == "cuda" else None,
    )


def score(options: argparse.Namespace) -> dict[str, Any]:
    """Loads the engine, scores all pairs twice in different packs, and says what it took."""
    architecture = MODELS[options.model]
    requests = scale_requests(
        prompt_profile(architecture),
        PromptTokenizer.from_file(TOKENIZER),
        DATASET,
        requests=options.requests,
        documents=options.documents,
        sides=tuple(options.sides),
    )
    pairs = [(request.prefix, document) for request in requests for document in request.documents]
    tokens = max(PACK_TOKENS, *(len(prefix) + len(document) for prefix, document in pairs))
    before, free = memory_figures(), 0
    if options.device == "cuda":
        probe = CudaThread()
        free = probe.call(free_on_device)
        probe.close()
    started = time.perf_counter()
    engine = make_engine(options, architecture, tokens)
    figures: dict[str, Any] = {"load_s": round(time.perf_counter() - started, 1), "memory_before": before}
    figures["memory_loaded"] = memory_figures()
    text = architecture.text
    runner = Runner(
        engine,
        RotaryTable(text.head_dim, text.rope_theta, text.mrope_section, tokens),
        feature_bytes=1 << 30,
        prefix_bytes=1 << 30,
        vision_patches=1024,
    )
    for name, seed in (("margins", None), ("margins_again", 3)):
        order = list(range(len(pairs)))
        if seed is not None:
            random.Random(seed).shuffle(order)
        margins = np.full(len(pairs), np.nan)
        started = time.perf_counter()
        for pack in packs_of(pairs, order, PACK_TOKENS):
            try:
                margins[list(pack.tags)] = runner.run(pack).margins
            except NonFiniteScoreError as error:
                figures["refused"] = str(error)
        figures[f"{name}_s"] = round(time.perf_counter() - started, 2)
        figures[name] = margins.tolist()
    figures["memory_run"] = memory_figures()
    if engine._cuda is not None:
        figures["device_gb"] = round((free - engine._cuda.call(free_on_device)) / 1e9, 2)
    engine.close()
    return figures


def main() -> int:
    """Writes what `score` gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("graphs", help="what stands between `text.` and `.onnx` in their names")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--sides", type=int, nargs=2, required=True)
    options = parser.parse_args()
    options.out.write_text(json.dumps(score(options)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
