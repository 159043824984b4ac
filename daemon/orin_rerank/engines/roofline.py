"""How long a request must take at least: its matrix products and what moves through memory, against a chip's limits.

A pack takes as long as its products or its memory traffic, whichever is slower. Counted are the products with weights,
attention as it is computed (dense within a pack, known prefixes included), the weights once a pack, and the keys and
values of known prefixes. Norms, activations that a better kernel would keep on the chip, and whatever the host does are
not in it: they are what a share of the limits leaves room for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orin_rerank.graph.places import model_places, vision_places

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orin_rerank.graph.architecture import Architecture

__all__ = ["ChipLimits", "ModelCounts", "RequestShape", "Run", "image_operations", "request_runs", "seconds"]

_HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class ChipLimits:
    """What a chip can do in one power mode.

    Attributes:
        name: Of the mode.
        int8: Dense INT8 operations a second, a multiply-add being two.
        memory: Bytes a second of memory.
    """

    name: str
    int8: float
    memory: float

    @property
    def float16(self) -> float:
        """Dense float16 operations a second: half of INT8's, as tensor cores have it."""
        return self.int8 / 2


@dataclass(frozen=True, slots=True)
class RequestShape:
    """A request as it meets the engine.

    Attributes:
        name: For people.
        documents: How many.
        document_tokens: Of each, what the template adds included.
        prefix_tokens: Of everything before the documents.
        query_image_tokens: Of the query's picture, which are among the prefix's tokens; 0 without one.
        document_image_tokens: Of each document's picture, among its tokens; 0 without one.
    """

    name: str
    documents: int
    document_tokens: int
    prefix_tokens: int
    query_image_tokens: int = 0
    document_image_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the decoder computes: the prefix once."""
        return self.prefix_tokens + self.documents * self.document_tokens


@dataclass(frozen=True, slots=True)
class Run:
    """Equal runs of an engine.

    Attributes:
        count: How many.
        int8: INT8 operations of one.
        float16: Operations of one that are not INT8.
        memory: Bytes that move through memory in one.
    """

    count: float
    int8: float
    float16: float
    memory: float

    def seconds(self, chip: ChipLimits, share: float) -> float:
        """What all of them take at a share of a chip's limits."""
        products = self.int8 / chip.int8 + self.float16 / chip.float16
        return self.count * max(products, self.memory / chip.memory) / share


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """Multiply-adds of a model's matrices, which are as many as they have weights.

    Attributes:
        decoder: Of all decoder matrices.
        each_token: Of those that every token meets: all but what the last layer computes for last tokens alone.
        vision: Of all matrices of the vision encoder.
        embedding: Weights of the embedding, with which nothing is multiplied.
    """

    decoder: int
    each_token: int
    vision: int
    embedding: int

    @classmethod
    def of_model(cls, architecture: Architecture) -> ModelCounts:
        """Counts a model's."""
        places = model_places(architecture)
        return cls(
            decoder=sum(p.multiplications for p in places if not p.vision),
            each_token=sum(p.multiplications for p in places if not p.vision and not p.final),
            vision=sum(p.multiplications for p in places if p.vision),
            embedding=architecture.text.vocabulary * architecture.text.hidden,
        )


def request_runs(
    architecture: Architecture, shape: RequestShape, *, quantized: bool, pack_tokens: int, image_patches: int
) -> tuple[Run, ...]:
    """The runs that a request comes to: packs, and runs of the vision encoder, which computes in float16.

    Args:
        architecture: The model's.
        shape: The request.
        quantized: Whether the decoder's products with weights are INT8; else float16.
        pack_tokens: Tokens of a pack, which a request fills one after the other.
        image_patches: Patches of small pictures that the vision encoder takes in one run.
    """
    counts = ModelCounts.of_model(architecture)
    text = architecture.text
    packs = math.ceil(shape.tokens / pack_tokens)
    tokens = shape.tokens / packs
    last = shape.documents / packs * (counts.decoder - counts.each_token)
    products = 2.0 * (tokens * counts.each_token + last)
    weights = counts.decoder * (1 if quantized else _HALF_BYTES)
    known_row = text.layers * 2 * text.kv_heads * text.head_dim * _HALF_BYTES

    def pack(count: int, known: int) -> Run:
        # Scores and mixed values of every token with every one that lies in the pack or is known.
        attention = 2.0 * 2 * text.layers * text.heads * text.head_dim * tokens * (tokens + known)
        wide = attention if quantized else attention + products
        return Run(count, products if quantized else 0.0, wide, weights + known * known_row)

    runs = [pack(1, 0)]  # the first one computes the prefix
    if packs > 1:
        runs.append(pack(packs - 1, shape.prefix_tokens))
    for count, image_tokens in ((1, shape.query_image_tokens), (shape.documents, shape.document_image_tokens)):
        if image_tokens and architecture.vision is not None:
            patches = image_tokens * architecture.vision.merge_size**2
            together = max(1, image_patches // patches)
            images = together * image_operations(architecture, image_tokens)
            runs.append(Run(count / together, 0.0, images, counts.vision * _HALF_BYTES))
    return tuple(runs)


def image_operations(architecture: Architecture, tokens: int) -> float:
    """Operations of the vision encoder for one picture.

    Args:
        architecture: The model's.
        tokens: That the picture takes in the prompt.
    """
    vision = architecture.vision
    if vision is None or not tokens:
        return 0.0
    patches = tokens * vision.merge_size**2
    places = vision_places(vision)
    each_token = sum(p.multiplications for p in places if p.name.startswith(("merger", "deepstack")))
    each_patch = sum(p.multiplications for p in places) - each_token
    attention = 2 * vision.layers * patches * vision.hidden
    return 2.0 * (patches * (each_patch + attention) + tokens * each_token)


def seconds(runs: Iterable[Run], chip: ChipLimits, share: float = 1.0) -> float:
    """What runs take one after the other at a share of a chip's limits; at 1 it is the limit itself."""
    return sum(run.seconds(chip, share) for run in runs)
