"""Margins of every graph of a bundle against stored ones of transformers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engines.running import make_encoder, make_engine, make_runner, margins_of, pairs_of, random_split
from graph.golden_requests import golden_margins, golden_requests
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.prompt.content import RerankInput

if TYPE_CHECKING:
    from engines.running import Pair
    from orin_rerank.engines.bundle import Bundle


def _pairs(name: str, bundle: Bundle) -> list[Pair]:
    encoder = make_encoder(bundle)
    return pairs_of(encoder.encode(RerankInput(query, documents)) for query, documents in golden_requests(name))


@pytest.mark.parametrize("dialect", Dialect)
def test_margins_equal_the_reference_in_any_packing(golden_bundle: tuple[str, Bundle], dialect: Dialect) -> None:
    name, bundle = golden_bundle
    pairs, golden = _pairs(name, bundle), golden_margins(name)
    assert golden.std() > 0.1
    engine = make_engine(bundle, dialect)
    rng = random.Random(0)
    packings = [[list(range(len(pairs)))], [[i] for i in range(len(pairs))]]
    packings += [random_split(rng, len(pairs)) for _ in range(4)]
    results = [
        margins_of(make_runner(bundle, engine, remember=number % 2 == 0), pairs, packing)
        for number, packing in enumerate(packings)
    ]
    assert np.abs(np.array(results) - golden).max() < 1e-4
    assert np.ptp(results, axis=0).max() < 1e-5


@pytest.mark.parametrize("dialect", Dialect)
def test_float16_products_stay_near(golden_bundle: tuple[str, Bundle], dialect: Dialect) -> None:
    name, bundle = golden_bundle
    pairs, golden = _pairs(name, bundle), golden_margins(name)
    engine = make_engine(bundle, dialect, Precision.FP16)
    packings = [[range(len(pairs)), [0]], *(random_split(random.Random(seed), len(pairs)) for seed in range(3))]
    for number, packing in enumerate(packings):
        margins = margins_of(make_runner(bundle, engine, remember=number % 2 == 0), pairs, packing)
        difference = np.abs(margins - golden).max()
        assert 0 < difference < 0.02


@pytest.mark.parametrize("dialect", Dialect)
def test_prefixes_too_long_to_be_kept_are_computed_each_time(
    golden_bundle: tuple[str, Bundle], dialect: Dialect
) -> None:
    """Beside shorter ones of the same pack, which are known the second time."""
    name, bundle = golden_bundle
    pairs, golden = _pairs(name, bundle), golden_margins(name)
    lengths = sorted({len(prefix) for prefix, _ in pairs})
    runner = make_runner(bundle, make_engine(bundle, dialect, Precision.FP16), prefix_rows=lengths[-1] - 1)
    for _ in range(3):
        margins = margins_of(runner, pairs, [range(len(pairs))])
        assert np.abs(margins - golden).max() < 0.02
    assert {len(prefix) for prefix, _ in pairs if not runner.knows(prefix)} == {lengths[-1]}
    assert len(lengths) > 1
