"""What the checks on a GPU share: a model on an engine, and pairs to score."""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fakes.random_models import VL_2B, write_random_model
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.memory import CopiedBlock, MappedBlock
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.runner import Runner
from orin_rerank.evaluation.dataset import read_dataset
from orin_rerank.graph.architecture import Architecture
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.packing.pack import Pack, PackBuilder, PackGroup
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.prompt.content import RerankInput
from orin_rerank.prompt.encoded import EncodedSegment
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orin_rerank.engines.cuda import CudaThread

    Pair = tuple[EncodedSegment, EncodedSegment]

BLOCKS = {"mapped": MappedBlock, "copied": CopiedBlock}
MAX_TOKENS = 4096


@dataclass
class Served:
    """A bundle on an engine."""

    bundle: Bundle
    engine: OnnxRuntimeEngine
    runner: Runner

    @classmethod
    def on_gpu(
        cls,
        folder: Path,
        cuda: CudaThread,
        *,
        kind: str = "copied",
        slots: int = 1,
        precision: Precision = Precision.FP16,
        dialect: Dialect = Dialect.FUSED,
        remember: bool = True,
    ) -> Served:
        """On the GPU, with buffers of one kind."""
        bundle = Bundle.open(folder)
        engine = _engine(
            bundle, precision, dialect, slots, cuda=cuda, allocate=lambda nbytes: BLOCKS[kind](nbytes, cuda)
        )
        return cls(bundle, engine, _runner(bundle.manifest.architecture, engine, remember=remember))

    @classmethod
    def on_processor(cls, folder: Path, threads: int) -> Served:
        """On the processor, in float32: what the GPU is compared with."""
        bundle = Bundle.open(folder)
        engine = _engine(bundle, Precision.FP32, Dialect.FUSED, threads)
        return cls(bundle, engine, _runner(bundle.manifest.architecture, engine, remember=True))

    def margins(self, pairs: Sequence[Pair], tokens: int = 1024, *, seed: int | None = None, threads: int = 1):
        """float32 `[pairs]`: each pair's margin, in packs of up to `tokens` tokens, shuffled where there is a seed."""
        order = list(range(len(pairs)))
        if seed is not None:
            random.Random(seed).shuffle(order)
        packs = packs_of(pairs, order, tokens)
        if threads == 1:
            results = [self.runner.run(pack) for pack in packs]
        else:
            with ThreadPoolExecutor(threads) as pool:
                results = list(pool.map(self.runner.run, packs))
        margins = np.full(len(pairs), np.nan, np.float32)
        for pack, result in zip(packs, results, strict=True):
            margins[list(pack.tags)] = result.margins
        return margins


@dataclass
class RandomDecoder:
    """A decoder of the published 2B model's widths with random weights, text only: work as large as a real model's."""

    engine: OnnxRuntimeEngine
    runner: Runner

    @classmethod
    def on_gpu(cls, folder: Path, cuda: CudaThread, slots: int, dialect: Dialect) -> RandomDecoder:
        """Of what `write` wrote."""
        architecture = cls.architecture()
        engine = OnnxRuntimeEngine(
            folder / f"text.{dialect.value}.fp16.onnx",
            None,
            None,
            PackCapacity.of_model(architecture, tokens=MAX_TOKENS, documents=256, product_dtype=np.float16),
            threads=slots,
            precision="fp16",
            pool_timeout_s=60.0,
            cuda=cuda,
        )
        return cls(engine, _runner(architecture, engine, remember=False))

    @staticmethod
    def architecture() -> Architecture:
        """Twelve layers of it."""
        return Architecture(dataclasses.replace(VL_2B.text, layers=12), None)

    @classmethod
    def write(cls, folder: Path, dialect: Dialect) -> None:
        """Writes weights and graph."""
        write_random_model(folder, cls.architecture(), Precision.FP16, [dialect])

    @classmethod
    def packs(cls, count: int, tokens: int) -> list[Pack]:
        """Packs of random text: a prefix of 64 tokens, and documents of 120."""
        rng = np.random.default_rng(5)

        def segment(length: int, start: int) -> EncodedSegment:
            ids = rng.integers(0, cls.architecture().text.vocabulary, length, dtype=np.int32)
            positions = np.tile(np.arange(start, start + length, dtype=np.int32), (3, 1))
            return EncodedSegment(ids, positions, np.full(length, -1, np.int32), (), length, 0)

        packs = []
        for _ in range(count):
            documents = tuple(segment(120, 64) for _ in range((tokens - 64) // 120))
            packs.append(Pack((PackGroup(segment(64, 0), documents),), tuple(range(len(documents))), tokens))
        return packs


def packs_of(pairs: Sequence[Pair], order: Sequence[int], tokens: int) -> list[Pack]:
    """Packs of pairs in an order; each pair's tag is its index."""
    packs: list[Pack] = []
    builder = PackBuilder(256)
    for index in order:
        if not builder.fits(*pairs[index], tokens):
            packs.append(builder.build())
            builder = PackBuilder(256)
        builder.add(*pairs[index], index)
    return [*packs, builder.build()]


def pairs_of_bundle(model: Served, dataset: Path, queries: int) -> list[Pair]:
    """Every document of a set's first queries, beside its query: text and pictures of many sizes."""
    manifest = model.bundle.manifest
    tokenizer = PromptTokenizer.from_file(model.bundle.folder / "tokenizer.json")
    encoder = PromptEncoder(manifest.prompt, tokenizer)
    pairs = []
    for _, query in zip(range(queries), read_dataset(dataset), strict=False):
        request = RerankInput(query.query, [d.content for d in query.documents], query.instruction)
        encoded = encoder.encode(request)
        pairs += [(encoded.prefix, document) for document in encoded.documents]
    return pairs


def _engine(bundle: Bundle, precision: Precision, dialect: Dialect, slots: int, **where) -> OnnxRuntimeEngine:
    graph = bundle.graph(dialect, precision)
    return OnnxRuntimeEngine(
        bundle.folder / graph.text,
        None if graph.vision is None else bundle.folder / graph.vision,
        bundle.manifest.prompt.image,
        PackCapacity.of_model(
            bundle.manifest.architecture,
            tokens=MAX_TOKENS,
            documents=256,
            product_dtype=np.float16 if precision is Precision.FP16 else np.float32,
        ),
        threads=slots,
        precision=precision.value,
        pool_timeout_s=60.0,
        **where,
    )


def _runner(architecture: Architecture, engine: OnnxRuntimeEngine, *, remember: bool) -> Runner:
    text = architecture.text
    size = 1 << 28 if remember else 0
    return Runner(
        engine,
        RotaryTable(text.head_dim, text.rope_theta, text.mrope_section, MAX_TOKENS),
        feature_bytes=1 << 28,
        prefix_bytes=size,
        vision_patches=1024,
    )
