"""The trial of numerics at scale, on shapes that a processor computes in seconds: that all of it works and tells."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "device"))

from margin_errors import margin_errors
from numerics import HALF_RESIDUAL, STORED, Trial

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", ["tiny", "tiny-vl"])
def test_products_in_half_precision_and_nothing_else(tmp_path: Path, name: str) -> None:
    options = argparse.Namespace(
        requests=2,
        documents=3,
        sides=(64, 128),
        device="cpu",
        folder=tmp_path,
        variants=["primitive", HALF_RESIDUAL, "float32"],
        save=lambda: None,
    )
    trial = Trial(name, options)
    try:
        trial.compare()
        trial.overflow()
    finally:
        trial.close()
    figures = trial.figures
    assert 2 < figures["float32"]["margins"]["spread"] < 6
    assert figures["float32"]["peaks"]["decoder residual"] > 100
    product = {variant: figures["product"][variant]["errors"]["rms"] for variant in figures["product"]}
    stored = figures["transformers"][STORED]["rms"]
    assert product["float32"] == pytest.approx(stored, rel=0.05)
    assert figures["product"]["float32"]["packing"]["largest"] < 1e-3
    assert max(product.values()) < figures["transformers"]["bfloat16"]["rms"]
    computing = {variant: figures["product"][variant]["computing"]["rms"] for variant in figures["product"]}
    # Which of the two is better six pairs do not tell.
    assert computing["float32"] < 1e-3 < min(computing["primitive"], computing[HALF_RESIDUAL])
    assert figures["margins"]["primitive"] != figures["margins"][HALF_RESIDUAL]
    for found in figures["overflow"].values():
        assert found["residual"] > 65_504
        assert "refused" in found[HALF_RESIDUAL]
    assert figures["overflow"]["63898"]["primitive"]["errors"]["not_finite"] == 0
    assert list(tmp_path.iterdir()) == []


def test_errors_of_margins_by_hand() -> None:
    errors = margin_errors([1.0, 0.0, 5.0, 7.0], [0.0, 1.0, 5.0, 7.0], [0, 0, 0, 1])
    assert errors["rms"] == pytest.approx(0.5**0.5)
    assert errors["largest"] == 1.0
    assert errors["spread"] == pytest.approx(np.std([0.0, 1.0, 5.0, 7.0]))
    assert errors["kendall"] == pytest.approx((5 - 1) / 6)
    assert errors["spearman"] == pytest.approx(0.8)
    assert (errors["order_changed"], errors["order_pairs"]) == (1, 3)
    assert margin_errors([np.nan, 1.0], [0.0, 1.0], [0, 0]) == {"not_finite": 1}
