"""The limits of a chip for a request: counts that are known, and a figure that was measured elsewhere."""

from __future__ import annotations

import pytest

from orin_rerank.engines.roofline import (
    ChipLimits,
    ModelCounts,
    RequestShape,
    Run,
    image_operations,
    request_runs,
    seconds,
)
from orin_rerank.lifecycle.published import MODELS

VL_8B = MODELS["vl-8b"].size.architecture
CHIP = ChipLimits("a chip", int8=200.0, memory=10.0)
TEXTS = RequestShape("texts", 50, 145, 62)


def runs_of(shape: RequestShape, *, quantized: bool = False, pack_tokens: int = 1024, name: str = "vl-8b"):
    return request_runs(
        MODELS[name].size.architecture, shape, quantized=quantized, pack_tokens=pack_tokens, image_patches=1024
    )


def test_the_8b_has_its_published_size() -> None:
    counts = ModelCounts.of_model(VL_8B)
    assert counts.decoder == pytest.approx(6.946e9, rel=1e-3)
    assert counts.embedding == pytest.approx(622.3e6, rel=1e-4)
    assert counts.vision == pytest.approx(576.4e6, rel=0.01)  # published with position table, norms and biases


@pytest.mark.parametrize("name", MODELS)
def test_matrices_are_nearly_all_parameters(name: str) -> None:
    counts = ModelCounts.of_model(MODELS[name].size.architecture)
    heads = 1 if MODELS[name].size.architecture.text.tied else 2
    total = counts.decoder + counts.vision + heads * counts.embedding
    assert total == pytest.approx(MODELS[name].download_bytes / 2, rel=0.003)


def test_a_run_takes_as_long_as_what_is_slower_in_it() -> None:
    assert Run(1, 400.0, 0.0, 10.0).seconds(CHIP, 1.0) == 2.0
    assert Run(1, 400.0, 100.0, 10.0).seconds(CHIP, 1.0) == 3.0, "float16 takes twice as long"
    assert Run(1, 400.0, 0.0, 50.0).seconds(CHIP, 1.0) == 5.0
    assert Run(3, 400.0, 0.0, 50.0).seconds(CHIP, 0.5) == 30.0


def test_a_float16_ceiling_that_was_measured_gives_the_speed_that_it_allows() -> None:
    """At 741 TFLOP/s, which an H200's matrix products were measured at, the 8B's alone allow 370 pairs a second."""
    chip = ChipLimits("H200", int8=2 * 741e12, memory=4.8e12)
    speeds = [50 / seconds(runs_of(TEXTS, pack_tokens=tokens), chip) for tokens in (512, 1024, 2048)]
    assert speeds[0] == pytest.approx(370, rel=0.02)
    assert speeds == sorted(speeds, reverse=True), "attention within a pack grows with it"


def test_operations_are_those_of_every_token() -> None:
    counts = ModelCounts.of_model(VL_8B)
    (first, rest) = runs_of(TEXTS)
    packs, tokens = 8, (62 + 50 * 145) / 8
    assert (first.count, rest.count) == (1, packs - 1)
    products = packs * 2 * tokens * counts.each_token + 50 * 2 * (counts.decoder - counts.each_token)
    attention = 4 * 36 * 4096 * tokens * (packs * tokens + (packs - 1) * 62)
    assert first.float16 + (packs - 1) * rest.float16 == pytest.approx(products + attention)
    assert first.memory == 2 * counts.decoder
    assert rest.memory - first.memory == 62 * 36 * 2 * 8 * 128 * 2, "keys and values of the known prefix"


def test_int8_moves_half_the_bytes_and_leaves_attention_wide() -> None:
    wide, narrow = runs_of(TEXTS)[0], runs_of(TEXTS, quantized=True)[0]
    assert narrow.memory * 2 == wide.memory
    assert narrow.int8 + narrow.float16 == pytest.approx(wide.float16)
    assert 0 < narrow.float16 < 0.05 * narrow.int8


def test_what_is_asked_for_more_takes_longer() -> None:
    chip = ChipLimits("a board", 85e12, 204.8e9)
    base = seconds(runs_of(TEXTS), chip)
    assert seconds(runs_of(RequestShape("more", 100, 145, 62)), chip) == pytest.approx(2 * base, rel=0.02)
    assert seconds(runs_of(TEXTS), chip, share=0.5) == pytest.approx(2 * base)
    assert seconds(runs_of(TEXTS, name="vl-2b"), chip) < base / 3
    # One document alone is bound by memory: all weights have to be read for it.
    alone = seconds(runs_of(RequestShape("one", 1, 10, 0)), chip)
    assert alone == pytest.approx(2 * 6.946e9 / 204.8e9, rel=1e-3)


def test_pictures_cost_what_the_encoder_does_for_them() -> None:
    picture = RequestShape("picture", 50, 145, 62 + 514, query_image_tokens=512)
    *_, encoder = runs_of(picture)
    assert encoder.count == 1
    assert encoder.float16 == image_operations(VL_8B, 512)
    assert encoder.memory == 2 * ModelCounts.of_model(VL_8B).vision
    small = RequestShape("small", 50, 18, 62, document_image_tokens=16)
    *_, encoder = runs_of(small)
    assert encoder.count == 50 / 16, "sixteen pictures of 64 patches share a run"
    assert encoder.float16 == 16 * image_operations(VL_8B, 16)
    # docs/quantization.md: 0.058 x 10^12 operations for 16 tokens and 7.9 x 10^12 for 1,280
    assert image_operations(VL_8B, 16) == pytest.approx(0.058e12, rel=0.02)
    assert image_operations(VL_8B, 1280) == pytest.approx(7.9e12, rel=0.02)
    assert len(runs_of(picture, name="8b")) == 2, "a text-only model has no encoder"
    assert image_operations(MODELS["8b"].size.architecture, 512) == 0.0
