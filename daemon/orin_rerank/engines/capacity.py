"""How large buffers must be: for packs, and for runs of the vision encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from orin_rerank.prompt.patches import patch_width
from orin_rerank.prompt.resize import most_patches

if TYPE_CHECKING:
    import numpy.typing as npt

    from orin_rerank.graph.architecture import Architecture
    from orin_rerank.packing.arrays import PackLayout
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["ImageCapacity", "PackCapacity"]

_IMAGE_PATCHES: Final = 1024
"""Patches of small images that one run of the vision encoder takes together, where a single image needs fewer."""


@dataclass(frozen=True, slots=True)
class PackCapacity:
    """How large the arrays of a pack can become, and the model's dimensions that their shapes need."""

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
    key_value_dtype: npt.DTypeLike = np.float32

    @classmethod
    def of_model(
        cls, architecture: Architecture, *, tokens: int, documents: int, key_value_dtype: npt.DTypeLike = np.float32
    ) -> PackCapacity:
        """Room for packs of `tokens` tokens, whatever share of them is images, prefixes or neither.

        As many rows of known prefixes come on top.
        """
        text, vision = architecture.text, architecture.vision
        return cls(
            tokens=tokens,
            documents=documents,
            visual_rows=0 if vision is None else tokens + 1,
            known_rows=tokens,
            keep_rows=tokens,
            hidden=text.hidden,
            half_head=text.head_dim // 2,
            layers=text.layers,
            kv_heads=text.kv_heads,
            taps=0 if vision is None else len(vision.deepstack_layers),
            key_value_dtype=key_value_dtype,
        )

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
    """

    patches: int
    patch_width: int
    half_head: int
    merge: int
    outputs: int
    hidden: int

    @classmethod
    def of_model(cls, profile: ImageProfile, *, taps: int, hidden: int) -> ImageCapacity:
        """Room for the largest image that the prompt path lets through, or some small ones."""
        return cls(
            patches=max(most_patches(profile), _IMAGE_PATCHES),
            patch_width=patch_width(profile),
            half_head=profile.head_dim // 2,
            merge=profile.merge_size**2,
            outputs=taps + 1,
            hidden=hidden,
        )
