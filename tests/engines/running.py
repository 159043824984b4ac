"""Runners over a bundle, and requests to put through them."""

from __future__ import annotations

import io
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from graph.on_processor import on_processor
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.onnxruntime_engine import OnnxRuntimeEngine
from orin_rerank.engines.pool import PackCapacity
from orin_rerank.engines.runner import Runner
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.packing.pack import Pack, PackBuilder
from orin_rerank.packing.rotary import RotaryTable
from orin_rerank.prompt.content import Content, ImagePart, RerankInput, TextPart
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orin_rerank.prompt.encoded import EncodedRequest, EncodedSegment

WORDS = ("red", "fire", "engine", "the", "ladder", "of", "猫", "maison", "perro", "赤い", "truck", "a", "1923", "?")

Pair = tuple["EncodedSegment", "EncodedSegment"]


def make_engine(
    bundle: Bundle, dialect: Dialect, precision: Precision = Precision.FP32, *, threads: int = 1, tokens: int = 2048
) -> OnnxRuntimeEngine:
    graph = bundle.graph(dialect, precision)
    text = bundle.folder / graph.text
    with tempfile.TemporaryDirectory() as folder:
        if (dialect, precision) == (Dialect.FUSED, Precision.FP16):
            text = on_processor(text, Path(folder))
        return _engine(bundle, text, graph.vision, precision, threads, tokens)


def _engine(
    bundle: Bundle, text: Path, vision: str | None, precision: Precision, threads: int, tokens: int
) -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(
        text,
        None if vision is None else bundle.folder / vision,
        bundle.manifest.prompt.image,
        PackCapacity.of_model(
            bundle.manifest.architecture,
            tokens=tokens,
            documents=64,
            product_dtype=np.float32 if precision is Precision.FP32 else np.float16,
        ),
        threads=threads,
        precision=precision.value,
        pool_timeout_s=5.0,
        weights=bundle.folder,
    )


def make_runner(
    bundle: Bundle, engine: OnnxRuntimeEngine, *, remember: bool = True, prefix_rows: int | None = None
) -> Runner:
    """A runner with empty caches; one that does not remember computes every prefix and image again."""
    text = bundle.manifest.architecture.text
    size = 1 << 26 if remember else 0
    return Runner(
        engine,
        RotaryTable(text.head_dim, text.rope_theta, text.mrope_section, 2048),
        feature_bytes=size,
        prefix_bytes=size,
        vision_patches=1024,
        prefix_rows=prefix_rows,
    )


def make_encoder(bundle: Bundle) -> PromptEncoder:
    return PromptEncoder(bundle.manifest.prompt, PromptTokenizer.from_file(bundle.folder / "tokenizer.json"))


def noise_picture(seed: int, height: int, width: int) -> ImagePart:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return ImagePart(buffer.getvalue())


def random_text(rng: random.Random, most: int = 12) -> TextPart:
    return TextPart(" ".join(rng.choices(WORDS, k=rng.randint(1, most))))


def random_content(rng: random.Random, pictures: Sequence[ImagePart]) -> Content:
    """Text, a picture, or both in any order, some pictures twice; text alone where there are no pictures."""
    if not pictures:
        return [random_text(rng)]
    kind = rng.choice(("text", "image", "image text", "text image", "image text image", "twice"))
    picture = rng.choice(pictures)
    if kind == "twice":
        return [picture, picture]
    return [random_text(rng) if part == "text" else rng.choice(pictures) for part in kind.split()]


def random_requests(
    encoder: PromptEncoder, rng: random.Random, count: int, documents: int, pictures: Sequence[ImagePart]
) -> list[EncodedRequest]:
    return [
        encoder.encode(
            RerankInput(
                random_content(rng, pictures),
                [random_content(rng, pictures) for _ in range(documents)],
                rng.choice((None, "Retrieve what fits")),
            )
        )
        for _ in range(count)
    ]


def pairs_of(requests: Iterable[EncodedRequest]) -> list[Pair]:
    return [(request.prefix, document) for request in requests for document in request.documents]


def pack_of(pairs: Iterable[Pair], tags: Iterable[int]) -> Pack:
    builder = PackBuilder(1 << 30)
    for (prefix, document), tag in zip(pairs, tags, strict=True):
        builder.add(prefix, document, tag)
    return builder.build()


def margins_of(runner: Runner, pairs: Sequence[Pair], packs: Iterable[Sequence[int]]) -> np.ndarray:
    """The margin of every pair, when the packs hold the pairs of these indices."""
    margins = np.full(len(pairs), np.nan, np.float32)
    for indices in packs:
        pack = pack_of([pairs[i] for i in indices], indices)
        margins[list(pack.tags)] = runner.run(pack).margins
    return margins


def random_split(rng: random.Random, count: int) -> list[list[int]]:
    """All indices in any order, cut anywhere."""
    order = rng.sample(range(count), count)
    packs = []
    while order:
        size = rng.randint(1, 9)
        packs.append(order[:size])
        order = order[size:]
    return packs


def open_bundle(folder: Path) -> Bundle:
    bundle = Bundle.open(folder)
    bundle.verify()
    return bundle
