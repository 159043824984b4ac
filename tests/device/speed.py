# ruff: noqa: T201
"""The 8B's speed on a GPU, beside transformers on the same weights and the GPU's own limit, in one run.

    PYTHONPATH=daemon:tests python tests/device/speed.py --out figures.json [--layers 36] [--rounds 9]

Needs onnxruntime-gpu, pycuda, torch and transformers. docs/device-figures.md holds what it last gave. Weights are
random, of the published model's shape; requests too, and every round has its own, so that nothing is remembered from
the round before. Without a GPU it runs a small model on the processor, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from speed_model import WORKLOADS, Workload, cut, image_profile, write_model
from transformers_gpu import TransformersOnGpu

from fakes.random_models import VL_8B
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.graph_files import write_graph_pair
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.runner import Runner
from orin_rerank.graph.architecture import Architecture, TextArchitecture, VisionArchitecture
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.weights import MARGIN_ROW, WeightFile
from orin_rerank.lifecycle.pack_timing import measure_budget
from orin_rerank.lifecycle.sizes import VISION_PATCHES
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.packing.pack import plan_packs
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.prompt.encoded import EncodedRequest

TINY = Architecture(
    TextArchitecture(64, 128, 2, 4, 2, 16, 512, 1e-6, 5e6, (4, 2, 2), tied=False),
    VisionArchitecture(32, 64, 2, 2, 64, 3, 16, 2, 2, 64, (0, 1), 1e4),
)
BATCHES = (4, 8, 16, 25, 50)
MAX_TOKENS = 2048 + 1024
PICTURE_BYTES = 4 << 30
Figures = dict[str, Any]


class Product:
    """The product's engine, as a daemon's model drives it: packs of a measured length, two at a time."""

    def __init__(self, folder: Path, architecture: Architecture, layout: WeightFile, budget: int | None) -> None:
        gpu = torch.cuda.is_available()
        precision = Precision.FP16 if gpu else Precision.FP32
        entry = write_graph_pair(folder, architecture, layout, Dialect.FUSED, precision)
        assert entry.vision is not None
        started = time.perf_counter()
        capacity = PackCapacity.of_model(
            architecture, tokens=MAX_TOKENS, documents=256, key_value_dtype=np.float16 if gpu else np.float32
        )
        self.engine = OnnxRuntimeEngine(
            folder / entry.text,
            folder / entry.vision,
            image_profile(architecture),
            capacity,
            threads=2,
            precision=precision.value,
            pool_timeout_s=60.0,
            cuda=CudaThread() if gpu else None,
        )
        self.load_s = time.perf_counter() - started
        text = architecture.text
        self.runner = Runner(
            self.engine,
            RotaryTable(text.head_dim, text.rope_theta, text.mrope_section, MAX_TOKENS),
            feature_bytes=PICTURE_BYTES,
            prefix_bytes=1 << 30,
            vision_patches=VISION_PATCHES,
        )
        self.budget = measure_budget(self.runner, architecture) if budget is None else TokenBudget.fixed(budget)
        self.threads = ThreadPoolExecutor(self.engine.info.slots)

    def score(self, request: EncodedRequest) -> np.ndarray:
        """Margins `[documents]`, as `LoadedModel.score` gets them."""
        packs = plan_packs(request, self.budget, self.engine.info.max_documents, self.runner.knows)
        return np.concatenate([result.margins for result in self.threads.map(self.runner.run, packs)])


def matmul_rates(architecture: Architecture) -> Figures:
    """TFLOP/s of torch's own products of the decoder's shapes, by tokens and type; all four of a layer in turn."""
    text = architecture.text
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wide = (text.heads + 2 * text.kv_heads) * text.head_dim
    shapes = [
        (text.hidden, wide),
        (text.heads * text.head_dim, text.hidden),
        (text.hidden, 2 * text.intermediate),
        (text.intermediate, text.hidden),
    ]
    figures: Figures = {}
    for dtype in (torch.bfloat16, torch.float16):
        weights = [torch.randn(n, k, dtype=dtype, device=device) * 0.02 for k, n in shapes]
        for tokens in (512, 1024, 2048, 4096):
            values = {k: torch.randn(tokens, k, dtype=dtype, device=device) for k, _ in shapes}

            def products(weights=weights, values=values) -> None:
                for weight in weights:
                    torch.nn.functional.linear(values[weight.shape[1]], weight)

            seconds = timed(lambda products=products: [products() for _ in range(10)], 7) / 10
            flops = sum(2 * tokens * k * n for k, n in shapes)
            figures[f"{str(dtype).removeprefix('torch.')}, {tokens} tokens"] = round(flops / seconds / 1e12, 1)
    return figures


def flops_of(workload: Workload, architecture: Architecture) -> float:
    """Multiply-adds, times two, of all products with weights that a request needs, each prefix and picture once."""
    text, vision = architecture.text, architecture.vision
    assert vision is not None
    request = next(workload.requests(architecture, 1))
    tokens = len(request.prefix) + sum(map(len, request.documents))
    heads = (2 * text.heads + 2 * text.kv_heads) * text.head_dim
    decoder = 2.0 * tokens * text.layers * text.hidden * (heads + 3 * text.intermediate)
    pictures = [image for segment in (request.prefix, *request.documents) for image in segment.images]
    patches = sum(image.grid[0] * image.grid[1] for image in pictures)
    block = 4 * vision.hidden**2 + 2 * vision.hidden * vision.intermediate
    merged = vision.hidden * vision.merge_size**2
    mergers = (1 + len(vision.deepstack_layers)) * merged * (merged + vision.out_hidden) / vision.merge_size**2
    return decoder + 2.0 * patches * (vision.layers * block + mergers + vision.hidden * vision.patch_values)


def timed(call: Callable[[], Any], rounds: int) -> float:
    """Median seconds of a call that leaves work on the GPU; the first is not counted."""
    seconds = []
    for _ in range(rounds + 1):
        synchronize()
        started = time.perf_counter()
        call()
        synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def synchronize() -> None:
    """Waits for the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def speed_of_product(product: Product, requests: Sequence[EncodedRequest]) -> tuple[Figures, list[np.ndarray]]:
    """Documents a second, a request at a time; the first request is not counted."""
    seconds, margins = [], []
    for request in requests:
        started = time.perf_counter()
        margins.append(product.score(request))
        seconds.append(time.perf_counter() - started)
    documents = len(requests[0].documents)
    return {
        "documents_per_s": round(documents / statistics.median(seconds[1:]), 1),
        "lowest": round(documents / max(seconds[1:]), 1),
        "highest": round(documents / min(seconds[1:]), 1),
    }, margins


def speed_of_transformers(
    model: TransformersOnGpu, requests: Sequence[EncodedRequest], rounds: int
) -> tuple[Figures, list[np.ndarray]]:
    """Documents a second at the best batch size; inputs lie on the GPU before the clock starts."""
    request = requests[1]
    documents = len(request.documents)
    rates: dict[int, float] = {}
    margins: list[np.ndarray] = []
    for size in BATCHES:
        batches = model.batches(request, size)
        rates[size] = round(documents / timed(lambda batches=batches: model.score(batches), 2), 1)
    best = max(rates, key=rates.__getitem__)
    batches = model.batches(request, best)
    figures = {"documents_per_s": round(documents / timed(lambda: model.score(batches), rounds), 1)}
    margins.append(model.score(batches))
    return {**figures, "batch": best, "by_batch": rates}, margins


def main() -> int:
    """Measures everything and writes figures as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=int, help="tokens in a pack; measured as a daemon does where it is left out")
    parser.add_argument("--folder", type=Path, help="for the weights; 17 GB for the whole model")
    parser.add_argument("--only", nargs="+", choices=("product", "transformers"), default=("product", "transformers"))
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    architecture = cut(VL_8B, layers=options.layers) if gpu else TINY
    figures: Figures = {
        "onnxruntime": ort.__version__,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if gpu else "none",
        "layers": architecture.text.layers,
    }

    def note(name: str, value: Any) -> None:
        figures[name] = value
        print(f"{time.perf_counter() - begun:.1f} s: {name}: {json.dumps(value)}", flush=True)
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")

    begun = time.perf_counter()
    note("matmul_tflops", matmul_rates(architecture))
    peak = max(figures["matmul_tflops"].values()) * 1e12
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        layout = write_model(folder, architecture)
        note("weights_written", sum(path.stat().st_size for path in folder.iterdir()))
        requests = {w: list(w.requests(architecture, options.rounds + 1)) for w in WORKLOADS}
        margins: dict[Workload, list[np.ndarray]] = {}
        if "product" in options.only:
            product = Product(folder, architecture, layout, options.budget)
            note("load_s", round(product.load_s, 1))
            note("budget", dict(zip(product.budget.tokens, product.budget.seconds, strict=True)))
            for workload in WORKLOADS:
                got, margins[workload] = speed_of_product(product, requests[workload])
                limit = workload.documents / (flops_of(workload, architecture) / peak)
                got |= {"limit": round(limit, 1), "share": round(got["documents_per_s"] / limit, 3)}
                note(f"product: {workload.name}", {**got, "tokens_in_a_pack": product.budget.best})
            product.engine.close()
        if "transformers" in options.only:
            where = layout.slice(MARGIN_ROW)
            stored = np.memmap(folder / layout.name, np.float32, "r", where.offset, where.shape)
            dtype = torch.bfloat16 if gpu else torch.float32
            model = TransformersOnGpu.load(folder, image_profile(architecture), np.array(stored), dtype)
            note("transformers_loaded", True)
            for workload in WORKLOADS:
                theirs, reference = speed_of_transformers(model, requests[workload], options.rounds)
                if workload in margins:
                    theirs |= compared(margins[workload][1], reference[0])
                    ours = figures[f"product: {workload.name}"]["documents_per_s"]
                    theirs["product_is_faster_by"] = round(ours / theirs["documents_per_s"], 2)
                note(f"transformers: {workload.name}", theirs)
    return 0


def compared(ours: np.ndarray, theirs: np.ndarray) -> Figures:
    """How far margins of one request are apart."""
    return {
        "spread": round(float(theirs.std()), 4),
        "rms_difference": round(float(np.sqrt(np.square(ours - theirs).mean())), 4),
        "correlation": round(float(np.corrcoef(ours, theirs)[0, 1]), 5),
    }


if __name__ == "__main__":
    sys.exit(main())
