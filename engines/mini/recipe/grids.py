"""Lookup tables of the image grids that the model is trained on.

Every grid has at most 64 patches (16 tokens), so one padded shape serves them all: a batch's grid is
only a row number of these tables, and neither compiled code nor a captured graph changes with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PATCH = 16
MAX_PATCHES = 64
MAX_TOKENS = 16
LEARNED = 12  # the position table has LEARNED x LEARNED entries
HEAD_DIM = 64
_THETA = 10000.0
# Rows x columns of patches. Within 12,288 to 16,384 pixels, what the preprocessor makes of common shapes.
GRIDS = ((8, 8), (6, 8), (8, 6), (6, 10), (10, 6), (4, 12), (12, 4), (6, 6), (4, 14), (14, 4), (4, 16), (16, 4))


def merge_order(rows: int, columns: int) -> Tensor:
    """Raster numbers of the patches in the order of 2 x 2 blocks."""
    blocks = torch.arange(rows * columns).view(rows // 2, 2, columns // 2, 2)
    return blocks.permute(0, 2, 1, 3).reshape(-1)


def position_matrix(rows: int, columns: int) -> Tensor:
    """[patches, LEARNED^2] bilinear weights over the learned positions, corners aligned."""

    def axis(count: int) -> Tensor:
        at = torch.linspace(0, LEARNED - 1, count)
        low = at.floor().long()
        high = (low + 1).clamp(max=LEARNED - 1)
        weight = torch.zeros(count, LEARNED)
        steps = torch.arange(count)
        weight[steps, low] += 1 - (at - low)
        weight[steps, high] += at - low
        return weight

    full = torch.einsum("ri,cj->rcij", axis(rows), axis(columns))
    return full.reshape(rows * columns, -1)[merge_order(rows, columns)]


def rotary(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [patches, HEAD_DIM] of the two-axis vision RoPE."""
    frequencies = 1 / (_THETA ** (torch.arange(0, HEAD_DIM // 2, 2).float() / (HEAD_DIM // 2)))
    order = merge_order(rows, columns)
    angles = torch.cat([(order // columns)[:, None] * frequencies, (order % columns)[:, None] * frequencies], 1)
    angles = torch.cat([angles, angles], 1)
    return angles.cos(), angles.sin()


def sample_points(rows: int, columns: int) -> Tensor:
    """[MAX_PATCHES * 256, 2] points (x, y) in -1..1 of every pixel, patch by patch in merge order."""
    ys = (torch.arange(rows * PATCH) + 0.5) * 2 / (rows * PATCH) - 1
    xs = (torch.arange(columns * PATCH) + 0.5) * 2 / (columns * PATCH) - 1
    points = torch.stack([xs[None].expand(len(ys), -1), ys[:, None].expand(-1, len(xs))], -1)
    patches = points.view(rows, PATCH, columns, PATCH, 2).permute(0, 2, 1, 3, 4)
    patches = patches.reshape(rows * columns, PATCH * PATCH, 2)[merge_order(rows, columns)]
    out = torch.full((MAX_PATCHES, PATCH * PATCH, 2), 3.0)  # beyond the picture: reads as background
    out[: rows * columns] = patches
    return out.view(-1, 2)


@dataclass
class GridTables:
    """The tables of all grids, stacked; the first dimension is the grid.

    Attributes:
        positions: [G, 64, 144] weights over the learned positions.
        cos: [G, 64, 64]; sin likewise.
        patch_bias: [G, 64], 0 where a patch exists and very negative elsewhere.
        points: [G, 64 * 256, 2] sampling points of augmentation.
        aspect: [G, 2] how far x and y reach where a square picture is shown whole.
        row: [G, 18] merged row of each token of vision_start, 16 image tokens, vision_end; column too.
        advance: [G, 18] how far a token moves the position of what follows.
        valid: [G, 18] whether the token exists.
    """

    positions: Tensor
    cos: Tensor
    sin: Tensor
    patch_bias: Tensor
    points: Tensor
    aspect: Tensor
    row: Tensor
    column: Tensor
    advance: Tensor
    valid: Tensor

    @classmethod
    def build(cls, device: torch.device) -> GridTables:
        """Builds the tables of GRIDS."""
        count, length = len(GRIDS), MAX_TOKENS + 2
        out = cls(
            positions=torch.zeros(count, MAX_PATCHES, LEARNED * LEARNED),
            cos=torch.ones(count, MAX_PATCHES, HEAD_DIM),
            sin=torch.zeros(count, MAX_PATCHES, HEAD_DIM),
            patch_bias=torch.full((count, MAX_PATCHES), -1e4),
            points=torch.stack([sample_points(rows, columns) for rows, columns in GRIDS]),
            aspect=torch.ones(count, 2),
            row=torch.zeros(count, length),
            column=torch.zeros(count, length),
            advance=torch.zeros(count, length),
            valid=torch.zeros(count, length, dtype=torch.bool),
        )
        for number, (rows, columns) in enumerate(GRIDS):
            patches, tokens = rows * columns, rows * columns // 4
            out.positions[number, :patches] = position_matrix(rows, columns)
            out.cos[number, :patches], out.sin[number, :patches] = rotary(rows, columns)
            out.patch_bias[number, :patches] = 0
            side = min(rows, columns)
            out.aspect[number] = torch.tensor([columns / side, rows / side])
            inside = torch.arange(tokens)
            out.row[number, 1 : tokens + 1] = (inside // (columns // 2)).float()
            out.column[number, 1 : tokens + 1] = (inside % (columns // 2)).float()
            out.advance[number, 0] = out.advance[number, -1] = 1
            out.advance[number, tokens] = max(rows, columns) // 2
            out.valid[number, : tokens + 1] = True
            out.valid[number, -1] = True
        for name, value in vars(out).items():
            setattr(out, name, value.to(device))
        return out
