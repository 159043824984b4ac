"""Rotary tables of the decoder: integer positions to cosines and sines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from orin_rerank.prompt.encoded import Float32Array, Int32Array

__all__ = ["RotaryTable"]


class RotaryTable:
    """Cosines and sines of every position up to a limit, computed once.

    Frequency f of a head turns by `position[axis(f)] * theta ** (-2 f / head_dim)`. Without sections the axis is time
    throughout. With sections `[t, h, w]` they are interleaved, as Qwen3-VL does: of the first `3 h` frequencies every
    third from 1 is height's, of the first `3 w` every third from 2 is width's, and all others are time's.

    Args:
        head_dim: Width of a head, D.
        theta: Base of the frequencies.
        sections: Frequencies of time, height and width, or None.
        max_position: Largest position.
    """

    def __init__(self, head_dim: int, theta: float, sections: tuple[int, int, int] | None, max_position: int) -> None:
        half = head_dim // 2
        # float32 as the reference has it, but for the power, which is rounded once: numpy's own float32 power is off in
        # the last bit now and then, which a position of 10,000 makes 1e-3 of an angle.
        exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        power = np.power(theta, exponent.astype(np.float64)).astype(np.float32)
        inverse = np.float32(1.0) / power
        angles = np.arange(max_position + 1, dtype=np.float32)[:, None] * inverse[None, :]
        self._cos = np.cos(angles)
        self._sin = np.sin(angles)
        self._axis_columns: list[tuple[int, slice]] = []
        if sections is not None:
            self._axis_columns = [
                (1, slice(1, min(3 * sections[1], half), 3)),
                (2, slice(2, min(3 * sections[2], half), 3)),
            ]

    @property
    def max_position(self) -> int:
        """Largest position in the table."""
        return int(self._cos.shape[0]) - 1

    def write(self, positions: Int32Array, cos: Float32Array, sin: Float32Array) -> None:
        """Looks positions up.

        Args:
            positions: int32 `[3, T]`, time, height and width.
            cos: float32 `[T, D/2]`, written.
            sin: float32 `[T, D/2]`, written.
        """
        for table, out in ((self._cos, cos), (self._sin, sin)):
            np.take(table, positions[0], axis=0, out=out)
            for axis, columns in self._axis_columns:
                # A text token has the same position on all axes, so this matters from the first image on only.
                differs = np.flatnonzero(positions[axis] != positions[0])
                if differs.size:
                    out[differs, columns] = table[positions[axis, differs], columns]
