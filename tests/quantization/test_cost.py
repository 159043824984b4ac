"""The reckoning of docs/quantization.md: right for a model whose counts are known, and what the document shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.quantization_cost import BOARD_MODES, OWN, SHIPPED, VL_8B, Board, Load, StageCost, Work, cost_table, stages
from orin_rerank.engines.bundle import Bundle
from orin_rerank.lifecycle.workbench import PACK_TOKENS

ROOT = Path(__file__).parents[2]


def test_the_8b_has_its_published_size() -> None:
    writing = next(cost for cost in stages(VL_8B, SHIPPED) if cost.written)
    # decoder layers 6.946 B, embedding 622.3 M, vision 576.4 M with position table, norms and biases
    assert writing.written == pytest.approx(6.946e9 + 622.3e6 + 576.4e6, rel=5e-4)
    steps_known = 6.946e9 - 167.8e6  # of the decoder but for what sees last tokens only
    assert writing.read == pytest.approx(4 * writing.written - 2 * steps_known, rel=5e-4)


def test_counts_of_the_mini_follow_from_its_shapes() -> None:
    architecture = Bundle.open(ROOT / "engines" / "mini").manifest.architecture
    work = Work(Load(3, 1000), Load(5, 2000, 7, 16), Load(2, 100), attempts=2)
    costs = list(stages(architecture, work))
    assert [cost.load.tokens for cost in costs] == [1000, 2000, 0, 1000, 23 * 100, 0, 0, 2000, 0, 2000]
    layer = 256 * 512 + 256 * 256 + 3 * 256 * 768
    decoder = 6 * layer
    vision = 3 * 2 * 256 * 192 + 6 * 192 * (4 * 192 + 2 * 768) + 4 * (768 * 768 + 768 * 256)
    smoothing, tried, evening, writing = costs[2], *costs[4:7]
    last_tokens_only = layer - 256 * 512
    assert smoothing.read == tried.read == 2 * (decoder - last_tokens_only)
    # All of the vision encoder but what lies behind a GELU, and the patches.
    assert evening.read == 2 * (last_tokens_only + 6 * 192 * (4 * 192 + 768) + 4 * 768 * 768)
    assert writing.read == 2 * (decoder + last_tokens_only + 2 * (vision + 12314 * 256))
    each_token = 5 * layer + 256 * 512 + 2 * 6 * PACK_TOKENS * 256
    assert costs[0].operations == 2 * 1000 * each_token
    assert tried.operations == 23 * 2 * 100 * each_token
    assert costs[7].int8
    assert costs[7].operations > costs[1].operations  # its pictures are not INT8, and count twice


def test_a_stage_takes_as_long_as_what_is_slowest_in_it() -> None:
    board = Board("b", int8=100.0, memory=10.0, share=0.5, storage=4.0)
    assert StageCost("s", operations=100.0).seconds(board) == 4.0
    assert StageCost("s", operations=100.0, int8=True).seconds(board) == 2.0
    assert StageCost("s", operations=100.0, memory=50.0).seconds(board) == 10.0
    assert StageCost("s", operations=100.0, read=6, written=2).seconds(board) == 6.0


@pytest.mark.parametrize("work", [SHIPPED, OWN])
def test_the_document_shows_what_is_reckoned(work: Work) -> None:
    text = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    assert "\n".join(cost_table(VL_8B, work)) in text, "run tests/bench/quantization_cost.py"
    for board in BOARD_MODES:
        assert f"{board.int8 / 1e12:.0f}" in text
