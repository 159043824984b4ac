"""Optimisation profiles: for which sizes of its dynamic dimensions a graph is compiled.

TensorRT chooses kernels and reserves memory per profile, so a model gets a short ladder of them, and a pack runs in the
lowest rung that holds it.

Memory is reserved for the largest product that a profile allows, dimension by dimension. The vision encoder's attention
is `[images, heads, patches, patches]` with images = all patches / patches of each, so a profile that takes images from
tiny to large would reserve room for as many large ones as there could be tiny ones. For 16 to 7,200 patches the mini's
encoder asks for 7.5 GB, where a picture of 7,200 patches needs 74 MB. So each rung begins where the one below ends: for
3,140 to 7,200 patches it asks for 80 MB (`tests/engines/tensorrt/measure_profiles.py`, TensorRT-RTX 1.7, SM86).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.errors import InternalError
from orin_rerank.prompt.resize import most_patches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orin_rerank.engines.pool import PackCapacity
    from orin_rerank.prompt.profile import ImageProfile

__all__ = [
    "Extent",
    "ShapeProfile",
    "profiles_digest",
    "text_profiles",
    "token_ladder",
    "vision_profiles",
]

_FIRST_RUNG: Final = 64
_FIRST_SIDE: Final = 112
"""Side in pixels of the square picture that ends the first rung of the vision ladder; then sides double.

The first rung begins with the smallest picture, of which a run may have hundreds, and each gets room for the largest of
the rung. Were that 224 pixels wide, the 8B's encoder would ask for 732 MB; a picture of 7,200 patches takes 292.
"""
_PREFIX_ROWS: Final = 128
"""A usual number of prefix rows, known or to keep."""
_DOCUMENT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Extent:
    """How long a dynamic dimension may be, and at which length it shall be fastest."""

    least: int
    usual: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.usual <= self.most:
            raise InternalError(f"{self.least}, {self.usual}, {self.most} do not ascend from 1")

    @classmethod
    def up_to(cls, most: int, usual: int | None = None) -> Extent:
        """From 1 to `most`, fastest at `usual` or, where that is None or more than `most`, at `most`."""
        return cls(1, most if usual is None else max(1, min(usual, most)), most)


@dataclass(frozen=True, slots=True)
class ShapeProfile:
    """One optimisation profile.

    Attributes:
        name: For people and logs, such as `256 tokens`.
        extents: By the name that the graph gives the dimension, such as `tokens`.
    """

    name: str
    extents: Mapping[str, Extent]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether every dimension, given by name, is within its extent; one without an extent is not held."""
        return all(
            name in self.extents and self.extents[name].least <= size <= self.extents[name].most
            for name, size in sizes.items()
        )

    def shapes(self, declared: Sequence[int | str]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The least, usual and largest shape of an input.

        Args:
            declared: Its dimensions: a length, or the name of a dynamic one.

        Raises:
            InternalError: If the profile says nothing of a dimension.
        """
        missing = [d for d in declared if isinstance(d, str) and d not in self.extents]
        if missing:
            raise InternalError(f"profile {self.name!r} says nothing of this dimension", item=str(missing[0]))
        extents = [Extent(d, d, d) if isinstance(d, int) else self.extents[d] for d in declared]
        return (
            tuple(extent.least for extent in extents),
            tuple(extent.usual for extent in extents),
            tuple(extent.most for extent in extents),
        )

    def to_value(self) -> dict[str, Any]:
        """As JSON has it."""
        extents = {name: [e.least, e.usual, e.most] for name, e in sorted(self.extents.items())}
        return {"name": self.name, "extents": extents}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> ShapeProfile:
        """From what `to_value` gave."""
        return cls(value["name"], {name: Extent(*extent) for name, extent in value["extents"].items()})


def profiles_digest(profiles: Iterable[ShapeProfile]) -> str:
    """SHA-256 of profiles in their order, in hexadecimal: plans of other profiles are other plans."""
    text = json.dumps([profile.to_value() for profile in profiles], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def token_ladder(budget: int, longest: int) -> tuple[int, ...]:
    """Lengths of packs that get a profile: 64, 128, 256 and so on to the budget, and the longest pack of all.

    Args:
        budget: Tokens of a pack as a rule.
        longest: Tokens of a pack at most; only a very long document makes one longer than the budget.
    """
    budget = min(budget, longest)
    rungs = [_FIRST_RUNG << i for i in range(budget.bit_length()) if _FIRST_RUNG << i < budget]
    return tuple(sorted({*rungs, budget, longest}))


def text_profiles(capacity: PackCapacity, budget: int) -> tuple[ShapeProfile, ...]:
    """Profiles of the decoder, ascending.

    A pack has no more documents, rows to keep or image tokens than it has tokens, so these end with the rung; rows of
    known prefixes come on top of a pack, and any pack may have as many as the buffers hold.

    Args:
        capacity: Of a buffer: no pack is larger.
        budget: Tokens of a pack as a rule.
    """
    profiles = []
    for rung in token_ladder(budget, capacity.tokens):
        extents = {
            "tokens": Extent.up_to(rung),
            "documents": Extent.up_to(min(rung, capacity.documents), rung // _DOCUMENT_TOKENS),
            "known": Extent.up_to(max(1, capacity.known_rows), _PREFIX_ROWS),
            "keep": Extent.up_to(max(1, min(rung, capacity.keep_rows)), _PREFIX_ROWS),
        }
        if capacity.visual_rows:
            extents["visual"] = Extent.up_to(min(rung + 1, capacity.visual_rows))
        profiles.append(ShapeProfile(f"{rung} tokens", extents))
    return tuple(profiles)


def vision_profiles(image: ImageProfile, batch_patches: int) -> tuple[ShapeProfile, ...]:
    """Profiles of the vision encoder, ascending; every grid is in exactly one of them.

    Args:
        image: How the model takes images.
        batch_patches: Most patches of one run, unless a single image has more.
    """
    block = image.merge_size**2  # patches come in such blocks, and TensorRT wants ends that a graph can compute with
    cap, least = most_patches(image), block
    sides = (_FIRST_SIDE << i for i in itertools.count())
    squares = ((side // image.patch_size) ** 2 // block * block for side in sides)
    rungs = [*itertools.takewhile(lambda square: square < cap, squares), cap]
    profiles = []
    for rung in rungs:
        extents = {
            "grid": Extent(least, rung, rung),
            "patches": Extent(least, rung, rung * math.ceil(max(rung, batch_patches) / rung)),
        }
        profiles.append(ShapeProfile(f"{least} to {rung} patches", extents))
        least = rung + block
    return tuple(profiles)
