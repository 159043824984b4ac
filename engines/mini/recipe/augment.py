"""Random changes to pictures on the device, sampled straight into a grid's patches."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .grids import GRIDS, MAX_PATCHES, PATCH, GridTables, merge_order


def patchify(pixels: Tensor) -> Tensor:
    """[n, 3, H, W] in -1..1 to padded patches [n, 64, 768] in merge order."""
    n, _, height, width = pixels.shape
    rows, columns = height // PATCH, width // PATCH
    x = pixels.reshape(n, 3, rows, PATCH, columns, PATCH).permute(0, 2, 4, 1, 3, 5)
    x = x.reshape(n, rows * columns, -1)[:, merge_order(rows, columns).to(pixels.device)]
    return F.pad(x, (0, 0, 0, MAX_PATCHES - rows * columns))


def scale(pixels: Tensor) -> Tensor:
    """uint8 to -1..1."""
    return pixels.float() / 127.5 - 1


def grid_number(height: int, width: int) -> int:
    """The row of the grid tables for a picture of this size."""
    return GRIDS.index((height // PATCH, width // PATCH))


def augment(pixels: Tensor, fixed: Tensor, mono: Tensor, grid: Tensor, tables: GridTables, strength: Tensor) -> Tensor:
    """Augmented patches [n, 64, 768] of uint8 pictures [n, 3, 128, 128].

    Args:
        pixels: pictures.
        fixed: [n] must not be mirrored.
        mono: [n] drawn in one colour, so may take any colour.
        grid: [1] the grid that the whole batch takes.
        tables: grid tables.
        strength: scalar, 1 for full changes, 0 for none.
    """
    n, device = len(pixels), pixels.device

    def chance(p: float) -> Tensor:
        return torch.rand(n, 1, 1, 1, device=device) < p * strength

    def spread(width: float, *shape: int) -> Tensor:
        return (torch.rand(n, *shape, device=device) - 0.5) * width * strength

    x = 1 - pixels.float() / 255  # white is 0, so that what lies beyond the picture reads as white
    coarse = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="bilinear", align_corners=False)
    x = torch.where(chance(0.15), coarse, x)
    zoom = 1 / (1 + strength * (torch.rand(n, device=device) * 0.35 - 0.3))
    angle, stretch = spread(0.4), torch.exp(spread(0.2))
    mirror = torch.where(chance(0.4).view(n) & ~fixed, -1.0, 1.0)
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    # On a wide or tall grid a picture is shown whole with room beside it, or stretched, or in between.
    room = tables.aspect[grid] ** torch.rand(n, 1, device=device)
    points = tables.points[grid] * room[:, None]
    px, py = points[..., 0], points[..., 1]
    hole = spread(1.6, 2)
    inside = (px - hole[:, :1]).abs().lt(0.25) & (py - hole[:, 1:]).abs().lt(0.25)
    at_x = (cos * mirror * stretch)[:, None] * px - sin[:, None] * py + spread(0.3, 1)
    at_y = (sin * mirror * stretch)[:, None] * px + (cos / stretch)[:, None] * py + spread(0.3, 1)
    where = torch.stack([at_x, at_y], -1).view(n, MAX_PATCHES * PATCH, PATCH, 2)
    x = F.grid_sample(x, where, mode="bilinear", padding_mode="zeros", align_corners=False)
    erased = inside.view(n, 1, MAX_PATCHES * PATCH, PATCH) & chance(0.15)
    x = 1 - x.masked_fill(erased, 0)
    single = mono.view(n, 1, 1, 1)
    x = torch.where(chance(0.12) & ~single, x.mean(1, keepdim=True).expand_as(x), x)
    x = (x - 0.5) * (1 + spread(0.3, 1, 1, 1)) + 0.5 + spread(0.24, 3, 1, 1) / 2
    ink = torch.rand(n, 3, 1, 1, device=device) * 0.7
    paper = 0.6 + 0.4 * torch.rand(n, 3, 1, 1, device=device)
    x = torch.where(chance(0.5) & single, ink + (paper - ink) * x, x)
    x = torch.where(chance(0.2), x * (0.6 + 0.4 * torch.rand(n, 3, 1, 1, device=device)), x)
    x = x.clamp(0, 1) * 2 - 1
    patches = x.view(n, 3, MAX_PATCHES, PATCH, PATCH).permute(0, 2, 1, 3, 4)
    return patches.reshape(n, MAX_PATCHES, -1)
