"""The coverage card: what it counts, and which sets it lets pass. Most margins here are made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fakes.model import FakeEncoder, segment
from fakes.random_set import write_random_set
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.errors import CalibrationError, InternalError
from orin_rerank.lifecycle.self_test import read_golden_pairs
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import ImagePart, TextPart
from orin_rerank.prompt.encoded import EncodedImage, EncodedRequest
from orin_rerank.prompt.profile import ImageProfile, PromptFamily, PromptProfile
from orin_rerank.quantization.calibration_set import CalibrationRequest, read_calibration_set
from orin_rerank.quantization.coverage import Coverage, CoverageRules, Distribution, Modality, PairKind, margin_scale
from orin_rerank.quantization.survey import CoverageBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orin_rerank.lifecycle.model import LoadedModel

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ImageProfile(16, 2, 2, 4, 16, 10000.0, 1, 1 << 20)
PROFILE = PromptProfile(PromptFamily.VL, 512, "default", IMAGES)
TEXT, PICTURE = (TextPart("some words"),), (ImagePart(b"some bytes"),)
BOTH = (*TEXT, *PICTURE)
SCALE = 4.0


def survey(*lines: tuple, scale: float | None = SCALE, profile: PromptProfile = PROFILE) -> Coverage:
    """The card of requests given as `(query, documents, margins, language)`."""
    builder = CoverageBuilder()
    for query, documents, margins, language in lines:
        request = CalibrationRequest(query, tuple(documents), None, language, "here")
        builder.add(request, FakeEncoder().encode(request.request), margins)
    return builder.coverage(profile, scale)


def judged(count: int = 300, seed: int = 0) -> np.ndarray:
    """Margins such as a judged set gives: a quarter relevant."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(count) < 0.25, rng.normal(3, 2, count), rng.normal(-5, 2.5, count))


def good_lines(margins: np.ndarray | None = None) -> list[tuple]:
    margins = judged() if margins is None else margins
    kinds = [(TEXT, PICTURE), (PICTURE, TEXT), (TEXT, BOTH)]
    return [(*_kind(kinds[i % 3]), [m], "en" if i % 2 else "de") for i, m in enumerate(margins)]


def _kind(kind: tuple) -> tuple:
    return kind[0], [kind[1]]


def test_what_a_set_has_is_counted() -> None:
    image = EncodedImage(b"digest", np.zeros((32, 64, 3), np.uint8), (2, 4), 2)
    builder = CoverageBuilder()
    request = CalibrationRequest(PICTURE, (TEXT, BOTH), None, "fr", "here")
    documents = (segment(range(30)), segment(range(50), truncated_tokens=3, images=[image]))
    builder.add(request, EncodedRequest(segment(range(10), images=[image]), documents), np.float32([1.5, -2.5]))
    request = CalibrationRequest(TEXT, (TEXT,), None, "", "here")
    builder.add(request, EncodedRequest(segment(range(20)), (segment(range(20)),)), [0.0])
    card = builder.coverage(PROFILE, 2.0)
    assert (card.requests, card.pairs, card.truncated, card.image_count) == (2, 3, 1, 2)
    assert card.tokens == Distribution(40, 40, 60, 60)
    assert card.images == Distribution(2, 2, 2, 2)
    assert card.languages == {"fr": 1, "": 1}
    assert card.queries == {Modality.IMAGE: 1, Modality.TEXT: 1}
    assert card.documents == {Modality.TEXT: 2, Modality.MIXED: 1}
    assert card.kinds[1] == PairKind(Modality.IMAGE, Modality.MIXED, 1, 0.0, -2.5, 0.0)
    assert card.relevant == pytest.approx(1 / 3)
    assert json.loads(json.dumps(card.as_dict()))["documents"] == {"text": 2, "mixed": 1}


def test_spread_and_camps_are_what_numpy_makes_of_the_margins() -> None:
    margins = judged()
    card = survey(*good_lines(margins))
    groups = [margins[i::3] for i in range(3)]
    assert card.relevant == np.mean(margins > 0)
    assert card.spread == pytest.approx(np.sqrt(np.mean(np.concatenate([(g - g.mean()) ** 2 for g in groups]))))
    camps = sum(min((g >= SCALE / 2).sum(), (g < -SCALE / 2).sum()) for g in groups)
    assert card.told_apart == camps / len(margins)
    assert [kind.spread for kind in card.kinds] == pytest.approx([g.std() for g in groups])


def test_a_distribution_is_of_values_that_occur() -> None:
    assert Distribution.of({}) is None
    assert Distribution.of({7: 1}) == Distribution(7, 7, 7, 7)
    assert Distribution.of(dict.fromkeys(range(1, 101), 1)) == Distribution(1, 50, 95, 100)


def test_a_set_of_real_requests_passes_without_a_warning() -> None:
    assert survey(*good_lines()).check() == []


def test_margins_that_tell_nothing_apart_are_refused() -> None:
    rng = np.random.default_rng(1)
    for mean in (-10.0, 10.0):
        with pytest.raises(CalibrationError, match="tells only"):
            survey(*good_lines(rng.normal(mean, 3.6, 300))).check()


def test_two_kinds_that_differ_only_from_each_other_are_not_told_apart() -> None:
    """Noise for noise is found relevant and noise for text is not: together they look like a judged set."""
    rng = np.random.default_rng(1)
    lines = [(PICTURE, [PICTURE], [m], "en") for m in rng.normal(10, 3.6, 100)]
    lines += [(TEXT, [PICTURE], [m], "de") for m in rng.normal(-10, 3.6, 200)]
    card = survey(*lines)
    assert card.relevant == pytest.approx(1 / 3, abs=0.01)
    with pytest.raises(CalibrationError, match="tells only"):
        card.check()


def test_margins_that_spread_too_little_are_refused() -> None:
    for mean, spread in ((0.0, 2.7), (-4.0, 2.0), (4.0, 0.4)):
        with pytest.raises(CalibrationError, match="spread by"):
            survey(*good_lines(np.random.default_rng(1).normal(mean, spread, 300))).check()


def test_the_scale_is_the_models_own() -> None:
    """A model whose margins are a tenth as large is judged by that."""
    assert survey(*good_lines(judged() / 10), scale=SCALE / 10).check() == []
    with pytest.raises(CalibrationError, match="spread by"):
        survey(*good_lines(judged() / 10)).check()
    (warning,) = survey(*good_lines(), scale=None).check()
    assert "could not be checked" in warning


def test_a_scale_needs_margins_that_differ() -> None:
    assert margin_scale([1.0, -1.0]) == 1.0
    for margins in ([0.5, 0.5], [np.nan, 1.0]):
        with pytest.raises(CalibrationError, match="same margin"):
            margin_scale(margins)


def test_too_few_pairs_are_refused_and_few_warned_of() -> None:
    with pytest.raises(CalibrationError, match="31 pairs are too few"):
        survey(*good_lines()[:31]).check()
    (warning,) = survey(*good_lines()[:60]).check()
    assert warning.startswith("60 pairs are few")
    assert survey(*good_lines()[:60]).check(CoverageRules(enough_pairs=60)) == []
    with pytest.raises(CalibrationError, match="empty"):
        survey()


@pytest.mark.parametrize(
    ("query", "document", "warnings"),
    [
        (TEXT, TEXT, ["the model takes images, but there are none"]),
        (PICTURE, PICTURE, ["there is no text but the prompt's own"]),
        (TEXT, BOTH, ["no query has an image"]),
        (BOTH, TEXT, ["no document has an image"]),
        (BOTH, BOTH, []),
    ],
)
def test_a_missing_modality_is_warned_of(query: tuple, document: tuple, warnings: list[str]) -> None:
    lines = [(query, [document], [m], "en" if i % 2 else "de") for i, m in enumerate(judged())]
    assert survey(*lines).check() == warnings


def test_a_text_model_misses_no_images() -> None:
    lines = [(TEXT, [TEXT], [m], "en" if i % 2 else "de") for i, m in enumerate(judged())]
    assert survey(*lines, profile=replace(PROFILE, family=PromptFamily.TEXT, image=None)).check() == []


def test_one_language_and_none_are_warned_of() -> None:
    for language, warning in (("de", "all queries are in one language, de"), ("", "no query states its language")):
        assert survey(*[(*line[:3], language) for line in good_lines()]).check() == [warning]


def test_short_and_cut_prompts_are_warned_of() -> None:
    (warning,) = survey(*good_lines(), profile=replace(PROFILE, max_tokens=4096)).check()
    assert warning == "the longest prompt has 38 tokens, where the model takes 4096"
    long = (TEXT, [(TextPart("x" * 5000),)], [3.0], "en")
    (warning,) = survey(*good_lines(), long).check()
    assert warning == "1 pairs were cut to the model's limit of 512 tokens"


@pytest.fixture(scope="module")
def mini() -> Iterator[LoadedModel]:
    model = load_model(
        ROOT / "engines" / "mini", EngineSettings(token_budget=256, threads=1, precision=PrecisionChoice.FULL)
    )
    yield model
    model.close()


@pytest.fixture(scope="module")
def mini_scale() -> float:
    return margin_scale([pair.margin for pair in read_golden_pairs(Bundle.open(ROOT / "engines" / "mini"))])


def card_of(model: LoadedModel, data: Path, scale: float) -> Coverage:
    builder = CoverageBuilder()
    for request in read_calibration_set(data):
        output = model.rerank(request.request)
        builder.add(request, output.request, output.margins)
    return builder.coverage(model.profile, scale)


def test_the_shipped_set_passes_with_the_model_it_is_shipped_for(mini: LoadedModel, mini_scale: float) -> None:
    card = card_of(mini, ROOT / "calibration_data" / "calibration", mini_scale)
    assert card.check() == []
    assert card.pairs == 325
    assert card.spread / mini_scale > 1.05
    assert card.told_apart > 0.15


@pytest.mark.parametrize("pictures", [0, 8])
def test_random_tokens_and_noise_are_refused(
    mini: LoadedModel, mini_scale: float, tmp_path: Path, pictures: int
) -> None:
    data = write_random_set(tmp_path / "random", ROOT / "engines" / "mini", queries=30, pictures=pictures)
    card = card_of(mini, data, mini_scale)
    assert card.spread / mini_scale < 0.65
    with pytest.raises(CalibrationError):
        card.check()


def test_margins_must_be_one_a_document() -> None:
    with pytest.raises(InternalError, match="2 margins for 1 documents"):
        survey((TEXT, [TEXT], [1.0, 2.0], ""))
