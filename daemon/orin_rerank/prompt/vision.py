"""What the vision encoder must know about an image's grid, computed on the host: positions, weights and rotary tables.

None of it depends on pixels, so each grid is computed once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orin_rerank.errors import InternalError

if TYPE_CHECKING:
    from orin_rerank.prompt.encoded import Float32Array, Int32Array
    from orin_rerank.prompt.profile import ImageProfile

__all__ = ["VisionGeometry"]


@dataclass(frozen=True, slots=True, eq=False)
class VisionGeometry:
    """Inputs of the vision graph for one grid of P patches, in merge-block order. The arrays are read-only.

    Attributes:
        position_index: int32 `[P, 4]` rows of the learned position table, `[position_grid**2, hidden]`.
        position_weight: float32 `[P, 4]`: a patch's position embedding is the sum of those rows with these weights.
        cos: float32 `[P, head_dim / 2]`: the first half of the rotary table, height frequencies then width ones. The
            second half repeats it (rotate-half convention).
        sin: Likewise.
    """

    position_index: Int32Array
    position_weight: Float32Array
    cos: Float32Array
    sin: Float32Array

    @staticmethod
    def for_grid(grid: tuple[int, int], profile: ImageProfile) -> VisionGeometry:
        """The geometry of a grid of patches `(gh, gw)`; the last 128 grids are kept.

        Equals transformers' `get_vision_interpolation_indices_and_weights` (bilinear, corners aligned) and
        `Qwen3VLVisionRotaryEmbedding`.

        Raises:
            InternalError: If the grid is not made of whole tokens.
        """
        return _for_grid(grid, profile)


@functools.lru_cache(maxsize=128)
def _for_grid(grid: tuple[int, int], profile: ImageProfile) -> VisionGeometry:
    rows, columns = grid
    merge = profile.merge_size
    if rows < 1 or columns < 1 or rows % merge or columns % merge:
        raise InternalError(f"a grid of {rows} x {columns} patches is not made of whole tokens")
    row, column = (
        axis.reshape(rows // merge, merge, columns // merge, merge).transpose(0, 2, 1, 3).reshape(-1)
        for axis in np.indices(grid)
    )
    row_index, row_weight = _bilinear(rows, profile.position_grid)
    column_index, column_weight = _bilinear(columns, profile.position_grid)
    patches = rows * columns
    index = row_index[row, :, np.newaxis] * profile.position_grid + column_index[column, np.newaxis, :]
    weight = row_weight[row, :, np.newaxis] * column_weight[column, np.newaxis, :]
    angle = np.concatenate((_angles(rows, profile)[row], _angles(columns, profile)[column]), axis=1)
    geometry = VisionGeometry(
        position_index=np.ascontiguousarray(index.reshape(patches, 4), dtype=np.int32),
        position_weight=np.ascontiguousarray(weight.reshape(patches, 4), dtype=np.float32),
        cos=np.cos(angle),
        sin=np.sin(angle),
    )
    for array in (geometry.position_index, geometry.position_weight, geometry.cos, geometry.sin):
        array.flags.writeable = False  # shared by everyone who asks for this grid
    return geometry


def _bilinear(size: int, side: int) -> tuple[Int32Array, Float32Array]:
    """The two neighbours in a table of `side` entries, and their weights, of `size` places from its first to its last.

    Returns:
        int32 `[size, 2]` and float32 `[size, 2]`.
    """
    # In float32 and in this order of operations, so that the results are the reference's to the last bit.
    place = np.arange(size, dtype=np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    floor = np.floor(place)
    index = floor.astype(np.int32)[:, np.newaxis] + np.arange(2, dtype=np.int32)
    distance = np.abs(place[:, np.newaxis] - floor[:, np.newaxis] - np.arange(2, dtype=np.float32))
    weight = np.maximum(np.float32(1) - distance, np.float32(0))
    return np.minimum(index, side - 1), weight


def _angles(size: int, profile: ImageProfile) -> Float32Array:
    """float32 `[size, head_dim / 4]`: angle of every place along one axis at every frequency."""
    half = profile.head_dim // 2
    exponent = np.arange(0, half, 2, dtype=np.float32) / np.float32(half)
    # The power is rounded to float32 once: numpy's own float32 power is off in the last bit now and then, which an
    # angle of 100 radians makes 1e-5 of a cosine.
    power = np.power(profile.rope_theta, exponent.astype(np.float64)).astype(np.float32)
    frequency = np.float32(1) / power
    return np.asarray(np.arange(size, dtype=np.float32)[:, np.newaxis] * frequency, dtype=np.float32)
