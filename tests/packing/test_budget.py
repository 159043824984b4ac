from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.errors import InternalError
from orin_rerank.packing.budget import TokenBudget


def test_the_shortest_length_near_the_best_is_taken() -> None:
    measured = TokenBudget.measured([(512, 0.51), (64, 0.1), (256, 0.261), (128, 0.15), (1024, 1.5)])
    # tokens per second: 640, 853, 981, 1004, 683
    assert measured.tokens == (64, 128, 256, 512, 1024)
    assert measured.best == 256


@given(st.dictionaries(st.integers(1, 2000), st.floats(1e-4, 10), min_size=1, max_size=8))
def test_best_is_within_three_per_cent_and_nothing_shorter_is(samples: dict[int, float]) -> None:
    budget = TokenBudget.measured(list(samples.items()))
    rate = {tokens: tokens / seconds for tokens, seconds in samples.items()}
    assert rate[budget.best] >= 0.97 * max(rate.values())
    assert all(rate[tokens] < 0.97 * max(rate.values()) for tokens in samples if tokens < budget.best)


@pytest.mark.parametrize(("prefix", "tokens"), [(0, 200), (50, 200), (100, 200), (101, 201), (1000, 1100)])
def test_a_long_prefix_leaves_half_the_budget_for_documents(prefix: int, tokens: int) -> None:
    assert TokenBudget.fixed(200).for_prefix(prefix) == tokens


@pytest.mark.parametrize(
    ("tokens", "seconds"), [((), ()), ((1, 2), (1.0,)), ((2, 1), (1.0, 1.0)), ((1, 1), (1.0, 1.0))]
)
def test_a_ladder_must_ascend(tokens: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(InternalError):
        TokenBudget(tokens, seconds)
