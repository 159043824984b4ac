"""How large buffers must be: for packs, and for runs of the vision encoder; and what such buffers come to in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from orin_rerank.engines.memory import ALIGNMENT
from orin_rerank.prompt.patches import patch_width
from orin_rerank.prompt.resize import most_patches

if TYPE_CHECKING:
    import numpy.typing as npt

    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.packing.arrays import PackLayout
    from orin_rerank.prompt.profile import ImageProfile

__all__ = [
    "VISION_PATCHES",
    "ImageCapacity",
    "PackCapacity",
    "Regions",
    "image_regions",
    "pack_regions",
    "region_bytes",
    "slot_bytes",
]

Regions: TypeAlias = "dict[str, tuple[npt.DTypeLike, int]]"
"""Element type and most elements of each array of a slot, in the order in which they lie there."""

VISION_PATCHES: Final = 1024
"""Most patches of one run of the vision encoder, unless a single image has more."""


@dataclass(frozen=True, slots=True)
class PackCapacity:
    """How large the arrays of a pack can become, and the model's dimensions that their shapes need.

    Keys, values and image features are handed on in `product_dtype`, what the graphs compute matrix products in.
    """

    tokens: int
    documents: int
    visual_rows: int
    known_rows: int
    keep_rows: int
    hidden: int
    half_head: int
    layers: int
    kv_heads: int
    taps: int
    product_dtype: npt.DTypeLike = np.float32

    @classmethod
    def of_model(
        cls,
        architecture: Architecture,
        *,
        tokens: int,
        documents: int,
        prefix_rows: int | None = None,
        product_dtype: npt.DTypeLike = np.float32,
    ) -> PackCapacity:
        """Room for packs of `tokens` tokens, whatever share of them is images or none.

        Args:
            architecture: The model's.
            tokens: Of a pack, the rows of known prefixes not counted.
            documents: In a pack.
            prefix_rows: Rows of known prefixes that come on top of the tokens, and of new ones that are kept; None
                means as many as tokens.
            product_dtype: What the graphs compute matrix products in.
        """
        text, vision = architecture.text, architecture.vision
        rows = tokens if prefix_rows is None else prefix_rows
        return cls(
            tokens=tokens,
            documents=documents,
            visual_rows=0 if vision is None else tokens + 1,
            known_rows=rows,
            keep_rows=rows,
            hidden=text.hidden,
            half_head=text.head_dim // 2,
            layers=text.layers,
            kv_heads=text.kv_heads,
            taps=0 if vision is None else len(vision.deepstack_layers),
            product_dtype=product_dtype,
        )

    @property
    def prefix_row_bytes(self) -> int:
        """What one token of a prefix takes when it is remembered: its key and value in every layer."""
        return self.layers * 2 * self.kv_heads * 2 * self.half_head * np.dtype(self.product_dtype).itemsize

    def holds(self, layout: PackLayout) -> bool:
        """Whether a pack laid out so fits."""
        return (
            layout.tokens <= self.tokens
            and layout.pack.documents <= self.documents
            and layout.visual_rows <= max(self.visual_rows, 1)
            and layout.known_rows <= self.known_rows
            and layout.keep_rows <= self.keep_rows
        )


@dataclass(frozen=True, slots=True)
class ImageCapacity:
    """How large the arrays of one run of the vision encoder can become.

    Attributes:
        patches: Of all images together, P.
        patch_width: Values in a patch.
        half_head: Half the width of a vision attention head.
        merge: Patches that become one token.
        outputs: Features of a token: one for its embedding, one for each tap.
        hidden: Width of a feature.
        feature_dtype: What features are handed on in: that of matrix products.
    """

    patches: int
    patch_width: int
    half_head: int
    merge: int
    outputs: int
    hidden: int
    feature_dtype: npt.DTypeLike = np.float32

    @classmethod
    def of_model(cls, profile: ImageProfile, pack: PackCapacity, patches: int = VISION_PATCHES) -> ImageCapacity:
        """Room for the largest image that the prompt path lets through, or some small ones.

        Args:
            profile: How the model takes images.
            pack: Room for the packs that the features are for.
            patches: Of small images in one run.
        """
        return cls(
            patches=max(most_patches(profile), patches),
            patch_width=patch_width(profile),
            half_head=profile.head_dim // 2,
            merge=profile.merge_size**2,
            outputs=pack.taps + 1,
            hidden=pack.hidden,
            feature_dtype=pack.product_dtype,
        )

    @property
    def feature_bytes(self) -> int:
        """What the features of one run take at most."""
        return self.patches // self.merge * self.outputs * self.hidden * np.dtype(self.feature_dtype).itemsize


def pack_regions(c: PackCapacity) -> Regions:
    """Of a slot that holds a pack; the names are those of `PackArrays`."""
    width = 2 * c.half_head * c.kv_heads * 2 * c.layers
    visual = c.visual_rows * c.hidden
    return {
        "ids": (np.int32, c.tokens),
        "cos": (np.float32, c.tokens * c.half_head),
        "sin": (np.float32, c.tokens * c.half_head),
        "prefix_id": (np.int32, c.tokens),
        "document_id": (np.int32, c.tokens),
        "visual_index": (np.int32, c.tokens),
        "last": (np.int32, c.documents),
        "visual": (c.product_dtype, visual),
        **{f"deepstack_{tap}": (c.product_dtype, visual) for tap in range(c.taps)},
        "known": (c.product_dtype, c.known_rows * width),
        "known_id": (np.int32, c.known_rows),
        "keep": (np.int32, c.keep_rows),
        "margin": (np.float32, c.documents),
        "kept": (c.product_dtype, c.keep_rows * width),
    }


def image_regions(c: ImageCapacity) -> Regions:
    """Of a slot that holds a run of the vision encoder; the names are those of `ImageArrays`."""
    return {
        "patches": (np.float32, c.patches * c.patch_width),
        "position_index": (np.int32, c.patches * 4),
        "position_weight": (np.float32, c.patches * 4),
        "cos": (np.float32, c.patches * c.half_head),
        "sin": (np.float32, c.patches * c.half_head),
        "features": (c.feature_dtype, c.patches // c.merge * c.outputs * c.hidden),
    }


def region_bytes(dtype: npt.DTypeLike, count: int) -> int:
    """Of a region, whose end is a multiple of `ALIGNMENT` so that the next one's begin is."""
    size = np.dtype(dtype).itemsize * count
    return size + -size % ALIGNMENT


def slot_bytes(capacity: PackCapacity, images: ImageCapacity | None) -> int:
    """What one slot takes: it holds a pack, or a run of the vision encoder in its place."""
    kinds = [pack_regions(capacity)] if images is None else [pack_regions(capacity), image_regions(images)]
    return max(sum(region_bytes(dtype, count) for dtype, count in regions.values()) for regions in kinds)
