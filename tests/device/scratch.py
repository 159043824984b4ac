"""What ONNX Runtime takes of a GPU beside weights and buffers, where the memory plan reckons with scratch memory."""

from __future__ import annotations

import math
import random
import tempfile
from pathlib import Path
from typing import Any

from speed_model import Workload, cut, image_profile, write_model

from fakes.random_models import VL_2B, VL_8B
from orin_rerank.engines.cuda import CudaThread
from orin_rerank.engines.footprint import EngineKind, scratch_bytes
from orin_rerank.engines.graph_files import write_graph_pair
from orin_rerank.engines.host_memory import read_host_memory
from orin_rerank.engines.memory_plan import ModelSize
from orin_rerank.engines.memory_planner import plan_memory
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.graph.architecture import Architecture
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.lifecycle.runners import runner_over
from orin_rerank.lifecycle.sizes import gpu_budget
from orin_rerank.packing.pack import Pack, PackGroup

__all__ = ["measure_scratch"]

LAYERS, VOCABULARY = 4, 4096
MAX_TOKENS, SUFFIX_TOKENS = 10240, 5
MAX_DOCUMENTS = 256
SIDE = 32
"""Tokens across and down of a picture."""
MODELS = {"VL-2B": VL_2B, "VL-8B": VL_8B}


def measure_scratch(name: str, *, pictures: bool) -> dict[str, Any]:
    """Memory that an engine of a model's widths, with few layers, takes while it runs.

    The longest pack that the plan allows comes first, so that what it takes is taken at once; then packs of many
    lengths in no order, as a daemon meets them, which is what an arena has to keep pieces for.

    Args:
        name: Of the model.
        pictures: Whether packs are of pictures, so that the vision encoder runs too.
    """
    architecture = cut(MODELS[name], layers=LAYERS, vocabulary=VOCABULARY)
    with tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder), architecture, pictures=pictures)


def _measure(folder: Path, architecture: Architecture, *, pictures: bool) -> dict[str, Any]:
    layout = write_model(folder, architecture)
    entry = write_graph_pair(folder, architecture, layout, Dialect.FUSED, Precision.FP16)
    assert entry.vision is not None
    cuda, kind = CudaThread(), EngineKind.ONNXRUNTIME_CUDA
    model = ModelSize(architecture, image_profile(architecture), MAX_TOKENS, SUFFIX_TOKENS, {})
    memory = plan_memory(model, Precision.FP16, kind, gpu_budget(cuda.info, read_host_memory()), EngineSettings())
    start = _free(cuda)
    engine = OnnxRuntimeEngine(
        folder / entry.text,
        folder / entry.vision,
        memory.image,
        memory.capacity,
        threads=1,
        precision="fp16",
        pool_timeout_s=60.0,
        images=memory.images,
        cuda=cuda,
    )
    runner = runner_over(engine, memory)
    loaded = _free(cuda)
    lengths = [memory.capacity.tokens, *random.Random(4).choices(range(72, memory.token_budget + 1), k=40)]
    used = []
    for tokens in lengths:
        runner.run(_pack(architecture, tokens, pictures=pictures))
        used.append(loaded - _free(cuda))
    runner.close()
    return {
        "longest_pack": memory.capacity.tokens,
        "layers": LAYERS,
        "weights_and_buffers": start - loaded,
        "longest_first": used[0],
        "then_many": used[-1],
        "reckoned": scratch_bytes(architecture, memory.capacity, memory.images, Precision.FP16, kind),
    }


def _pack(architecture: Architecture, tokens: int, *, pictures: bool) -> Pack:
    """One pack of nearly so many tokens: a prefix, and documents of text or of pictures."""
    prefix, picture = 62, 12 + SIDE * SIDE
    room = tokens - prefix
    if pictures and room >= picture:
        count, each = room // picture, picture
        workload = Workload("", picture=(SIDE, SIDE), in_documents=True, documents=count, prefix=prefix)
    else:
        each = min(room, max(120, math.ceil(room / MAX_DOCUMENTS)))
        count = room // each
        workload = Workload("", documents=count, prefix=prefix, lengths=(each, each))
    request = next(workload.requests(architecture, 1))
    return Pack((PackGroup(request.prefix, request.documents),), tuple(range(count)), prefix + each * count)


def _free(cuda: CudaThread) -> int:
    return cuda.call(lambda driver: driver.free_bytes())
