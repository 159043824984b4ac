from __future__ import annotations

import os

import pytest

from orin_rerank.engines.settings import EngineSettings
from orin_rerank.errors import SettingsError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 0),
        ("token_budget", 15),
        ("feature_cache_bytes", -1),
        ("picture_bytes", -1),
        ("prefix_cache_bytes", -1),
        ("pool_timeout_s", 0.0),
    ],
)
def test_values_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(SettingsError) as caught:
        EngineSettings(**{name: value})
    assert caught.value.item == name


def test_threads_default_to_what_the_process_may_use() -> None:
    assert EngineSettings().effective_threads == len(os.sched_getaffinity(0))
    assert EngineSettings(threads=3).effective_threads == 3
