"""A model of any size with random weights of a trained one's scale, written fast, and requests of random content.

Weights are drawn on the GPU where there is one: 17 GB in some ten seconds. transformers loads the same file.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fakes.checkpoint_config import checkpoint_config
from orin_rerank.engines.bundle import WEIGHTS_FILE
from orin_rerank.engines.graph_files import model_weights
from orin_rerank.graph.architecture import Architecture
from orin_rerank.graph.weights import WeightFile
from orin_rerank.lifecycle.export_profile import image_profile as vision_profile
from orin_rerank.prompt.encoded import EncodedImage, EncodedRequest, EncodedSegment
from orin_rerank.prompt.positions import Run, segment_positions
from orin_rerank.prompt.profile import ImageProfile

MAX_PIXELS = 1280 * 32 * 32
MIN_PIXELS = 4 * 32 * 32
_DTYPES = {"F16": torch.float16, "F32": torch.float32}


@dataclass(frozen=True)
class Tokens:
    """The ids that mean something."""

    image: int
    vision_start: int
    vision_end: int
    text: int
    """Ids below are text."""

    @classmethod
    def of(cls, architecture: Architecture) -> Tokens:
        """Of a vocabulary; the last ids of it."""
        end = architecture.text.vocabulary
        return cls(end - 1, end - 2, end - 3, end - 3)


def cut(architecture: Architecture, *, layers: int, vocabulary: int | None = None) -> Architecture:
    """The same widths with fewer decoder layers; the vision encoder as it is."""
    text = dataclasses.replace(
        architecture.text, layers=layers, vocabulary=vocabulary or architecture.text.vocabulary, tied=False
    )
    return Architecture(text, architecture.vision)


def image_profile(architecture: Architecture) -> ImageProfile:
    """How a model of an architecture takes images, with the published models' limits."""
    vision = architecture.vision
    assert vision is not None
    return vision_profile(vision, MIN_PIXELS, MAX_PIXELS)


def write_model(folder: Path, architecture: Architecture) -> WeightFile:
    """Writes a weight file and a configuration that transformers loads.

    Matrices are normal with a deviation of 0.02, gains of norms lie around 1, biases around 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = model_weights(architecture, "F16")
    header = layout.header
    size = max(layout.slice(spec.name).offset + spec.nbytes for spec in layout.specs)
    file = np.memmap(folder / WEIGHTS_FILE, np.uint8, "w+", shape=(size,))
    file[: len(header)] = np.frombuffer(header, np.uint8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for spec in layout.specs:
        generator = torch.Generator(device).manual_seed(zlib.crc32(spec.name.encode()))
        values = torch.empty(spec.shape, dtype=_DTYPES[spec.dtype], device=device)
        if spec.name.endswith(("norm.weight", "norm1.weight", "norm2.weight")):
            values.normal_(1.0, 0.1, generator=generator)
        else:
            values.normal_(0.0, 0.02, generator=generator)
        begin = layout.slice(spec.name).offset
        target = torch.from_numpy(np.asarray(file[begin : begin + spec.nbytes])).view(values.dtype)
        target.copy_(values.flatten())
    tokens = Tokens.of(architecture)
    config = checkpoint_config(architecture, image_pad=tokens.image, vision_start=tokens.vision_start)
    config |= {"vision_end_token_id": tokens.vision_end, "video_token_id": tokens.image - 10}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return layout


@dataclass(frozen=True)
class Workload:
    """A kind of request: how many tokens of text, and which pictures, its parts have.

    Attributes:
        name: For people.
        picture: Tokens down and across.
        in_query: Whether the query has a picture.
        in_documents: Whether documents are pictures, and no text but the template's.
        documents: How many.
        prefix: Tokens of the prefix without its picture.
        lengths: Fewest and most tokens of a document of text.
    """

    name: str
    picture: tuple[int, int] = (15, 20)
    in_query: bool = False
    in_documents: bool = False
    documents: int = 50
    prefix: int = 62
    lengths: tuple[int, int] = (40, 250)

    def requests(self, architecture: Architecture, count: int) -> Iterator[EncodedRequest]:
        """Requests with contents of their own, all of the same lengths."""
        lengths = np.random.default_rng(3).integers(self.lengths[0], self.lengths[1] + 1, self.documents)
        for seed in range(count):
            rng = np.random.default_rng(1000 + seed)
            prefix, start = self._segment(rng, architecture, self.prefix, picture=self.in_query, start=0)
            documents = []
            for length in lengths:
                text = 12 if self.in_documents else int(length)
                documents.append(self._segment(rng, architecture, text, picture=self.in_documents, start=start)[0])
            yield EncodedRequest(prefix, tuple(documents))

    def _segment(
        self, rng: np.random.Generator, architecture: Architecture, text: int, *, picture: bool, start: int
    ) -> tuple[EncodedSegment, int]:
        tokens = Tokens.of(architecture)
        ids = rng.integers(0, tokens.text, text, dtype=np.int32)
        if not picture:
            positions, end = segment_positions([text], start)
            return EncodedSegment(ids, positions, np.full(text, -1, np.int32), (), text, 0), end
        assert architecture.vision is not None
        down, across = self.picture
        merge, side = architecture.vision.merge_size, architecture.vision.patch_size
        pixels = rng.integers(0, 256, (down * merge * side, across * merge * side, 3), dtype=np.uint8)
        image = EncodedImage(rng.bytes(32), pixels, (down * merge, across * merge), down * across)
        half = text // 2
        ids[half - 1], ids[half] = tokens.vision_start, tokens.vision_end
        pads = np.full(image.tokens, tokens.image, np.int32)
        runs: list[Run] = [half, (down, across), text - half]
        positions, end = segment_positions(runs, start)
        index = np.full(text + image.tokens, -1, np.int32)
        index[half : half + image.tokens] = np.arange(image.tokens)
        joined = np.concatenate([ids[:half], pads, ids[half:]])
        return EncodedSegment(joined, positions, index, (image,), text, 0), end


WORKLOADS = (
    Workload("50 texts"),
    Workload("50 texts, picture in the query", in_query=True),
    Workload("50 pictures", in_documents=True),
)
