"""What the prompt path must know of a checkpoint: its family, how long prompts may be, how pictures are cut up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from orin_rerank.errors import CheckpointError
from orin_rerank.prompt.profile import ImageProfile, PromptFamily, PromptProfile
from orin_rerank.prompt.templates import template_for

if TYPE_CHECKING:
    from pathlib import Path

    from orin_rerank.graph.architecture import Architecture, VisionArchitecture

__all__ = ["image_profile", "read_profile"]

_MAX_TOKENS: Final = {PromptFamily.VL: 10240, PromptFamily.TEXT: 8192}
_PIXELS: Final = (4096, 1_843_200)
_IMAGE_FILE: Final = "preprocessor_config.json"
_PROCESSOR_FILE: Final = "processor_config.json"
"""Where transformers 5 writes what it wrote to the former before, under `image_processor`."""
_HALF: Final = [0.5, 0.5, 0.5]


def read_profile(
    checkpoint: Path,
    architecture: Architecture,
    *,
    max_tokens: int | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> PromptProfile:
    """Reads the preprocessor's configuration of a checkpoint folder.

    Args:
        checkpoint: The folder.
        architecture: The model's.
        max_tokens: Longest prompt; None is the family's published limit.
        min_pixels: Smallest image area; None is the checkpoint's, no wider than the reference's.
        max_pixels: Largest image area; likewise.

    Raises:
        CheckpointError: If pictures are to be prepared in a way that is not done here; the item names the key.
    """
    vision = architecture.vision
    family = PromptFamily.TEXT if vision is None else PromptFamily.VL
    image = None
    if vision is not None:
        path, config = _image_processor(checkpoint)
        _check(path, config, vision)
        low, high = _pixel_limits(path, config)
        image = image_profile(vision, min_pixels or low, max_pixels or high)
        if image.min_pixels > image.max_pixels:
            raise CheckpointError(
                f"the smallest picture, {image.min_pixels} pixels, is larger than the largest, {image.max_pixels}",
                item=str(path),
            )
    return PromptProfile(family, max_tokens or _MAX_TOKENS[family], template_for(family).default_instruction, image)


def image_profile(vision: VisionArchitecture, min_pixels: int, max_pixels: int) -> ImageProfile:
    """How a model with this vision encoder takes images.

    Args:
        vision: The encoder.
        min_pixels: Smallest image area.
        max_pixels: Largest image area.
    """
    return ImageProfile(
        patch_size=vision.patch_size,
        temporal_patch_size=vision.temporal_patch_size,
        merge_size=vision.merge_size,
        position_grid=vision.position_grid,
        head_dim=vision.head_dim,
        rope_theta=vision.rope_theta,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
    )


def _image_processor(checkpoint: Path) -> tuple[Path, dict[str, Any]]:
    """The file that configures the preprocessor, and what it says; empty if there is none."""
    for name in (_IMAGE_FILE, _PROCESSOR_FILE):
        path = checkpoint / name
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            config = config if name == _IMAGE_FILE else config.get("image_processor")
            if not isinstance(config, dict | None):
                raise TypeError("no object")  # noqa: TRY301 - one message for all that it may be instead
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"cannot be read: {error}", item=str(path)) from None
        if config is not None:
            return path, config
    return checkpoint / _IMAGE_FILE, {}


def _check(path: Path, config: dict[str, Any], vision: VisionArchitecture) -> None:
    """Pictures are prepared in one way; a checkpoint that was trained with another would get wrong scores."""
    known = {
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "merge_size": vision.merge_size,
        "image_mean": _HALF,
        "image_std": _HALF,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
    }
    for key, value in known.items():
        if config.get(key) not in (None, value):
            raise CheckpointError(f"{config[key]!r} is not supported, only {value!r}", item=f"{path}: {key}")
    factor = config.get("rescale_factor")
    if factor is not None and not (isinstance(factor, float) and abs(factor * 255 - 1) < 1e-6):
        raise CheckpointError(f"{factor!r} is not supported, only 1/255", item=f"{path}: rescale_factor")


def _pixel_limits(path: Path, config: dict[str, Any]) -> tuple[int, int]:
    """The checkpoint's own limits, no wider than what the reference script allows."""
    try:
        size = config.get("size") or {}
        low = int(config.get("min_pixels") or size.get("min_pixels") or size.get("shortest_edge") or _PIXELS[0])
        high = int(config.get("max_pixels") or size.get("max_pixels") or size.get("longest_edge") or _PIXELS[1])
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"cannot be read: {error}", item=f"{path}: size") from None
    return max(low, _PIXELS[0]), min(high, _PIXELS[1])
