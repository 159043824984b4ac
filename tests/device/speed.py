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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from speed_model import WORKLOADS, Workload, cut, image_profile, write_model
from transformers_gpu import TransformersOnGpu

from fakes.random_models import VL_8B
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.footprint import EngineKind
from orin_rerank.engines.graph_files import write_graph_pair
from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.engines.memory_plan import MemoryBudget, ModelSize
from orin_rerank.engines.memory_planner import plan_memory
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.graph.architecture import Architecture, TextArchitecture, VisionArchitecture
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.graph.weights import MARGIN_ROW, WeightFile
from orin_rerank.lifecycle.pack_timing import measure_budget
from orin_rerank.lifecycle.runners import runner_over
from orin_rerank.lifecycle.sizes import gpu_budget
from orin_rerank.packing.budget import TokenBudget
from orin_rerank.packing.pack import plan_packs
from orin_rerank.prompt.encoded import EncodedRequest

TINY = Architecture(
    TextArchitecture(64, 128, 2, 4, 2, 16, 512, 1e-6, 5e6, (4, 2, 2), tied=False),
    VisionArchitecture(32, 64, 2, 2, 64, 3, 16, 2, 2, 64, (0, 1), 1e4),
)
BATCHES = (4, 8, 16, 25)
WARM_UP = 4
"""Requests before any is counted."""
MAX_TOKENS, SUFFIX_TOKENS = 8192, 5
"""Most tokens of a prefix and a document, for which buffers are taken (the published models' limit is 10,240), and what
stands behind that."""
Figures = dict[str, Any]


class Product:
    """The product's engine as a daemon has it: the memory plan's buffers and caches, packs of a measured length."""

    def __init__(self, folder: Path, architecture: Architecture, layout: WeightFile, budget: int | None) -> None:
        cuda = CudaThread() if torch.cuda.is_available() else None
        precision = Precision.FP32 if cuda is None else Precision.FP16
        entry = write_graph_pair(folder, architecture, layout, Dialect.FUSED, precision)
        assert entry.vision is not None
        stored = {precision: (folder / layout.name).stat().st_size}
        model = ModelSize(architecture, image_profile(architecture), MAX_TOKENS, SUFFIX_TOKENS, stored)
        host, settings = read_host_memory(), EngineSettings()
        if cuda is None:
            kind, memory_budget = EngineKind.PROCESSOR, MemoryBudget.of_machine(host.total_bytes)
        else:
            kind, memory_budget = EngineKind.ONNXRUNTIME_CUDA, gpu_budget(cuda.info, host)
        self.memory = plan_memory(model, precision, kind, memory_budget, settings)
        started = time.perf_counter()
        self.engine = OnnxRuntimeEngine(
            folder / entry.text,
            folder / entry.vision,
            self.memory.image,
            self.memory.capacity,
            threads=self.memory.slots,
            precision=precision.value,
            pool_timeout_s=settings.pool_timeout_s,
            images=self.memory.images,
            cuda=cuda,
        )
        self.load_s = time.perf_counter() - started
        self.runner = runner_over(self.engine, self.memory)
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
    """Documents a second, a request at a time; the first requests, which fill caches and arenas, are not counted."""
    seconds, margins = [], []
    for request in requests:
        started = time.perf_counter()
        margins.append(product.score(request))
        seconds.append(time.perf_counter() - started)
    documents = len(requests[0].documents)
    counted = seconds[WARM_UP:]
    return {
        "documents_per_s": round(documents / statistics.median(counted), 1),
        "lowest": round(documents / max(counted), 1),
        "highest": round(documents / min(counted), 1),
    }, margins


def speed_of_transformers(
    model: TransformersOnGpu, request: EncodedRequest, rounds: int, *, by_length: bool
) -> tuple[Figures, np.ndarray]:
    """Documents a second at the best batch size, and margins; inputs lie on the GPU before the clock starts."""
    documents = len(request.documents)
    rates: dict[int, float] = {}
    for size in BATCHES:
        batches = model.batches(request, size, by_length=by_length)
        rates[size] = round(documents / timed(lambda batches=batches: model.score(batches), 2), 1)
    best = max(rates, key=rates.__getitem__)
    batches = model.batches(request, best, by_length=by_length)
    figures = {"documents_per_s": round(documents / timed(lambda: model.score(batches), rounds), 1)}
    return {**figures, "batch": best, "by_batch": rates}, model.score(batches)


class Report:
    """Figures, printed and written as they come."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.figures: Figures = {}
        self._begun = time.perf_counter()

    def note(self, name: str, value: Any) -> None:
        """Adds a figure."""
        self.figures[name] = value
        print(f"{time.perf_counter() - self._begun:.1f} s: {name}: {json.dumps(value)}", flush=True)
        self.out.write_text(json.dumps(self.figures, indent=1) + "\n", encoding="utf-8")


def measure_product(
    report: Report, folder: Path, architecture: Architecture, layout: WeightFile, options: argparse.Namespace
) -> dict[str, np.ndarray]:
    """The product's speed on every workload, and its margins of each one's second request."""
    peak = max(report.figures["matmul_tflops"].values()) * 1e12
    product = Product(folder, architecture, layout, options.budget)
    report.note("load_s", round(product.load_s, 1))
    report.note("memory_gib", {name: round(size / 2**30, 2) for name, size in asdict(product.memory.needs).items()})
    report.note("budget", dict(zip(product.budget.tokens, product.budget.seconds, strict=True)))
    margins = {}
    for workload in WORKLOADS:
        got, each = speed_of_product(product, list(workload.requests(architecture, options.rounds + WARM_UP)))
        margins[workload.name] = each[1]
        limit = workload.documents / (flops_of(workload, architecture) / peak)
        got |= {"limit": round(limit, 1), "share": round(got["documents_per_s"] / limit, 3)}
        report.note(f"product: {workload.name}", {**got, "tokens_in_a_pack": product.budget.best})
    for tokens in options.also:
        product.budget = TokenBudget.fixed(tokens)
        for workload in WORKLOADS[:2]:
            got, _ = speed_of_product(product, list(workload.requests(architecture, options.rounds + WARM_UP)))
            report.note(f"product, {tokens} tokens in a pack: {workload.name}", got)
    product.engine.close()
    return margins


def measure_transformers(
    report: Report,
    folder: Path,
    architecture: Architecture,
    layout: WeightFile,
    margins: dict[str, np.ndarray],
    options: argparse.Namespace,
) -> None:
    """The speed of transformers on every workload, and how far its margins are from the product's."""
    where = layout.slice(MARGIN_ROW)
    row = np.array(np.memmap(folder / layout.name, np.float32, "r", where.offset, where.shape))
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    model = TransformersOnGpu.load(folder, image_profile(architecture), row, dtype)
    report.note("transformers_loaded", value=True)
    for workload in WORKLOADS:
        requests = list(workload.requests(architecture, 2))
        for order in ("in order", "by length") if workload is WORKLOADS[0] else ("in order",):
            theirs, reference = speed_of_transformers(
                model, requests[1], options.rounds, by_length=order == "by length"
            )
            if workload.name in margins:
                theirs |= compared(margins[workload.name], reference)
                ours = report.figures[f"product: {workload.name}"]["documents_per_s"]
                theirs["product_is_faster_by"] = round(ours / theirs["documents_per_s"], 2)
            report.note(f"transformers, {order}: {workload.name}", theirs)


def main() -> int:
    """Measures everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=int, help="tokens in a pack; measured as a daemon does where it is left out")
    parser.add_argument("--also", type=int, nargs="*", default=[], help="other lengths of packs to try, in tokens")
    parser.add_argument("--folder", type=Path, help="for the weights; 17 GB for the whole model")
    parser.add_argument("--only", nargs="+", choices=("product", "transformers"), default=("product", "transformers"))
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    architecture = cut(VL_8B, layers=options.layers) if gpu else TINY
    report = Report(options.out)
    report.note("onnxruntime", ort.__version__)
    report.note("torch", torch.__version__)
    report.note("gpu", torch.cuda.get_device_name() if gpu else "none")
    report.note("layers", architecture.text.layers)
    report.note("matmul_tflops", matmul_rates(architecture))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        layout = write_model(folder, architecture)
        report.note("weights_written", sum(path.stat().st_size for path in folder.iterdir()))
        margins: dict[str, np.ndarray] = {}
        if "product" in options.only:
            margins = measure_product(report, folder, architecture, layout, options)
        if "transformers" in options.only:
            measure_transformers(report, folder, architecture, layout, margins, options)
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
