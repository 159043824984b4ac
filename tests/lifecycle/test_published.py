"""The tables of models and boards against what is published, and against this machine's idea of them."""

from __future__ import annotations

import pytest

from fakes.published import BF16_MIB
from orin_rerank.board.module import MODULES
from orin_rerank.lifecycle.published import BOARDS, MODELS, REQUESTS

TERA = 1e12


@pytest.mark.parametrize("key", MODELS)
def test_downloads_are_as_large_as_published(key: str) -> None:
    assert MODELS[key].download_bytes == pytest.approx(BF16_MIB[key] << 20, rel=0.001)


def test_every_module_that_can_be_identified_has_limits() -> None:
    assert set(BOARDS) == {kind.key for kind in MODULES.values()}
    for board in BOARDS.values():
        assert 0.8 * board.kind.memory_gib < board.memory_bytes / (1 << 30) < board.kind.memory_gib
        rates = [mode.int8 for mode in board.modes]
        assert rates == sorted(rates, reverse=True), "the fastest mode comes first"


@pytest.mark.parametrize(
    ("board", "mode", "sparse"),
    [
        # of the GPU alone, as NVIDIA publishes them: dense is half
        ("agx-orin-64", "MAXN", 171),
        ("agx-orin-64", "50W", 109),
        ("agx-orin-64", "30W", 41),
        ("orin-nano-8", "MAXN_SUPER", 67),
        ("orin-nano-8", "15W", 41),
        ("orin-nano-4", "10W", 20.5),
        ("orin-nano-4", "MAXN_SUPER", 33.5),
        # of the module, less 20 for each deep-learning accelerator (40 in Super mode)
        ("orin-nx-16", "MAXN", 100 - 40),
        ("orin-nx-8", "MAXN", 70 - 20),
        ("orin-nx-16", "MAXN_SUPER", 157 - 80),
    ],
)
def test_limits_are_those_that_nvidia_publishes(board: str, mode: str, sparse: float) -> None:
    limits = {one.name: one for one in BOARDS[board].modes}[mode]
    assert limits.int8 / TERA == pytest.approx(sparse / 2, rel=0.03)
    assert limits.float16 == limits.int8 / 2


def test_requests_hold_their_pictures() -> None:
    for request in REQUESTS:
        assert request.query_image_tokens <= request.prefix_tokens
        assert request.document_image_tokens <= request.document_tokens
        assert request.documents == 50
