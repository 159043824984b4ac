"""The reference implementations of the prompt path, called on plain arrays and lists."""

from __future__ import annotations

import importlib.util
import io
import sys
import types
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel, Qwen3VLVisionRotaryEmbedding
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids


def _qwen_vl_utils() -> types.ModuleType:
    """qwen-vl-utils imports torchvision, but for videos only: its image functions are loaded without it as well."""
    absent = importlib.util.find_spec("torchvision") is None
    names = ("torchvision", "torchvision.io", "torchvision.transforms")
    if absent:
        for name in names:
            sys.modules[name] = types.ModuleType(name)
        sys.modules["torchvision"].io = sys.modules["torchvision.io"]
        sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
        sys.modules["torchvision.transforms"].InterpolationMode = None
    try:
        from qwen_vl_utils import vision_process
    finally:
        if absent:
            for name in names:
                del sys.modules[name]
    return vision_process


_VISION_PROCESS = _qwen_vl_utils()


def smart_resize(height: int, width: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    return _VISION_PROCESS.smart_resize(height, width, 32, min_pixels, max_pixels)


def fetched(data: bytes, min_pixels: int, max_pixels: int) -> np.ndarray:
    """A file as qwen-vl-utils decodes and resizes it: uint8 `[height, width, 3]`."""
    request = {"image": Image.open(io.BytesIO(data)), "min_pixels": min_pixels, "max_pixels": max_pixels}
    return np.asarray(_VISION_PROCESS.fetch_image(request, image_patch_size=16))


def patches(pixels: np.ndarray, patch_size: int) -> np.ndarray:
    """`pixel_values` of the image processor."""
    processor = Qwen2VLImageProcessorPil(
        patch_size=patch_size, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return processor(images=[Image.fromarray(pixels)], do_resize=False, return_tensors="np")["pixel_values"]


def rope_index(layout: list[int | list[int]]) -> list[list[int]]:
    """`get_rope_index` of a layout of text lengths and merged grids; the method needs only the config of a model."""
    kinds: list[int] = []
    grids = []
    for run in layout:
        if isinstance(run, int):
            kinds += [0] * run
        else:
            kinds += [1] * (run[0] * run[1])
            grids.append([1, run[0] * 2, run[1] * 2])
    model = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    model.get_vision_position_ids = Qwen3VLModel.get_vision_position_ids.__get__(model)
    ids = torch.zeros((1, len(kinds)), dtype=torch.long)
    positions, _ = Qwen3VLModel.get_rope_index(
        model, ids, torch.tensor([kinds]), torch.tensor(grids) if grids else None
    )
    return positions[:, 0].tolist()


def vision(grid: tuple[int, int], head_dim: int, theta: float = 10_000.0) -> dict[str, np.ndarray]:
    """Position indices and weights `[P, 4]` and the full rotary table `[P, head_dim]`."""
    thw = torch.tensor([[1, *grid]])
    index, weight = get_vision_interpolation_indices_and_weights(
        thw, num_grid_per_side=48, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    rope = {"rope_type": "axial", "rope_theta": theta}
    rotary = Qwen3VLVisionRotaryEmbedding(SimpleNamespace(rope_parameters=rope, head_dim=head_dim))
    cos, sin = rotary(torch.zeros(1), get_vision_position_ids(thw, 2))
    return {"index": index.numpy(), "weight": weight.numpy(), "cos": cos.numpy(), "sin": sin.numpy()}
