"""Numbers of a checkpoint in the types of a weight file."""

from __future__ import annotations

import numpy as np
import pytest

from orin_rerank.errors import CheckpointError
from orin_rerank.graph.checkpoint import widened
from orin_rerank.graph.narrowing import Narrowing, narrowed

ALL_BF16 = np.arange(1 << 16, dtype=np.uint16)
FINITE_BF16 = ALL_BF16[np.isfinite(widened(ALL_BF16))]
LARGEST = float(np.finfo(np.float16).max)


def test_every_bf16_number_becomes_what_float32_would_have_become() -> None:
    wide = widened(FINITE_BF16)
    halves, loss = narrowed(FINITE_BF16, "F16", "w")
    assert np.array_equal(halves, np.clip(wide, -LARGEST, LARGEST).astype(np.float16))
    assert np.array_equal(np.signbit(halves), np.signbit(wide))
    assert loss == narrowed(wide, "F16", "w")[1]
    assert loss.clipped == np.count_nonzero(np.abs(wide) > LARGEST)
    assert loss.vanished == np.count_nonzero((wide != 0) & (np.abs(wide) <= 2.0**-25))


def test_a_bf16_number_from_2_to_the_minus_17_up_is_kept_exactly() -> None:
    wide = widened(FINITE_BF16)
    held = (np.abs(wide) >= 2.0**-17) & (np.abs(wide) <= LARGEST)
    assert np.array_equal(narrowed(FINITE_BF16, "F16", "w")[0][held].astype(np.float32), wide[held])
    small = np.abs(wide) < 2.0**-17
    assert np.abs(narrowed(FINITE_BF16, "F16", "w")[0][small] - wide[small]).max() <= 2.0**-25


def test_shape_and_blocks_do_not_matter() -> None:
    rng = np.random.default_rng(3)
    bits = rng.choice(FINITE_BF16, (3, 5, 1 << 15))  # more than one block, and not a whole number of them
    halves, loss = narrowed(bits, "F16", "w")
    assert halves.shape == bits.shape
    expected, same = narrowed(widened(bits), "F16", "w")
    assert np.array_equal(halves, expected)
    assert loss == same


def test_bf16_in_float32_loses_nothing() -> None:
    wide, loss = narrowed(FINITE_BF16, "F32", "w")
    assert wide.dtype == np.float32
    assert np.array_equal(wide, widened(FINITE_BF16))
    assert loss == Narrowing(FINITE_BF16.size)


@pytest.mark.parametrize("dtype", ["F16", "F32"])
@pytest.mark.parametrize("stored", ["bf16", "f2", "f4", "f8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(dtype: str, stored: str, value: float) -> None:
    values = np.zeros(70_000, np.float32)
    values[-1] = value
    values = (values.view(np.uint32) >> 16).astype(np.uint16) if stored == "bf16" else values.astype(stored)
    with pytest.raises(CheckpointError) as caught:
        narrowed(values, dtype, "the.name")
    assert caught.value.item == "the.name"


def test_losses_add_up() -> None:
    assert Narrowing(3, 1, 0) + Narrowing(5, 1, 2) == Narrowing(8, 2, 2)


def test_integers_stay() -> None:
    codes = np.arange(-127, 128, dtype=np.int8)
    same, loss = narrowed(codes, "I8", "w")
    assert np.array_equal(same, codes)
    assert loss == Narrowing(codes.size)


def test_no_numbers_at_all() -> None:
    assert narrowed(np.empty((0, 4), np.uint16), "F16", "w")[1] == Narrowing()
