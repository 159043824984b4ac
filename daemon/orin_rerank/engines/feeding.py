"""Packs and images by the names that the graphs give their inputs; what every engine does before and after a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from orin_rerank.errors import EngineError, InternalError
from orin_rerank.prompt.patches import write_patches
from orin_rerank.prompt.vision import VisionGeometry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TypeAlias

    from orin_rerank.engines.host_work import HostWork
    from orin_rerank.engines.pool import ImageArrays, ImageCapacity
    from orin_rerank.engines.port import Probe
    from orin_rerank.packing.arrays import Features, PackArrays
    from orin_rerank.prompt.encoded import EncodedImage
    from orin_rerank.prompt.profile import ImageProfile

    NamedArrays: TypeAlias = dict[str, npt.NDArray[Any]]

__all__ = [
    "image_batches",
    "image_features",
    "image_inputs",
    "images_per_run",
    "mark_unwritten",
    "pack_inputs",
    "pack_outputs",
]

_TEXT: Final = ("ids", "cos", "sin", "last", "known", "keep")
_MASK: Final = ("prefix_id", "document_id", "known_id")
_VISUAL: Final = ("visual_index", "visual")
_GEOMETRY: Final = ("position_index", "position_weight", "cos", "sin")


def pack_inputs(arrays: PackArrays, *, visual: bool, masked: bool = True) -> NamedArrays:
    """The decoder's inputs.

    Args:
        arrays: The pack.
        visual: Whether the decoder takes visual features.
        masked: Whether it takes what says who sees whom, rather than pages (`packing.pages`).
    """
    names = (*_TEXT, *(_MASK if masked else ()), *(_VISUAL if visual else ()))
    inputs = {name: getattr(arrays, name) for name in names}
    if visual:
        inputs.update({f"deepstack_{tap}": values for tap, values in enumerate(arrays.deepstack)})
    return inputs


def pack_outputs(arrays: PackArrays) -> NamedArrays:
    """The decoder's outputs."""
    return {"margin": arrays.margin, "kept": arrays.kept}


def mark_unwritten(outputs: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Writes NaN to where a run must write, so that a run that wrote nothing leaves no results of the one before.

    All margins, and each last row of image features; the runner finds what is no number. Keys and values are not
    marked: margins are computed from them.

    Returns:
        What was written to, contiguous: where the engine has a copy of the buffers it must learn of it.
    """
    marked = [outputs[name] for name in ("margin",) if name in outputs]
    if "features" in outputs:
        marked += list(outputs["features"][:, -1])
    for array in marked:
        array.fill(np.nan)
    return marked


def images_per_run(images: Sequence[EncodedImage], capacity: ImageCapacity) -> int:
    """How many of some images of one grid buffers hold at a time.

    Raises:
        EngineError: If they do not hold one.
    """
    each = images[0].grid[0] * images[0].grid[1]
    if each > capacity.patches:
        raise EngineError(f"an image of {each} patches does not fit the engine's buffers")
    return min(len(images), capacity.patches // each)


def image_batches(
    images: Sequence[EncodedImage], per_run: int, probe: Probe | None
) -> Iterator[Sequence[EncodedImage]]:
    """Cuts images into batches of `per_run`.

    Raises:
        InternalError: If there are several, and a probe that watches one run.
    """
    if probe is not None and per_run < len(images):
        raise InternalError("a probe watches one run, and the images need several")
    for begin in range(0, len(images), per_run):
        yield images[begin : begin + per_run]


def image_inputs(
    arrays: ImageArrays, images: Sequence[EncodedImage], profile: ImageProfile, host: HostWork
) -> NamedArrays:
    """Writes images of one grid into the vision encoder's inputs.

    Args:
        arrays: Where to; cut to these images.
        images: The images.
        profile: How the model takes images.
        host: Who lays them out.
    """
    places = np.split(arrays.patches, len(images))
    host.each(lambda image, patches: write_patches(image.pixels, profile, patches), images, places)
    geometry = VisionGeometry.for_grid(images[0].grid, profile)
    for name in _GEOMETRY:
        np.copyto(getattr(arrays, name), getattr(geometry, name))
    return {name: getattr(arrays, name) for name in ("patches", *_GEOMETRY)}


def image_features(arrays: ImageArrays, images: Sequence[EncodedImage], host: HostWork) -> list[Features]:
    """Copies what the vision encoder wrote: `[1 + taps, tokens, hidden]` for each image."""
    return host.each(np.copy, np.split(arrays.features, len(images), axis=1))
