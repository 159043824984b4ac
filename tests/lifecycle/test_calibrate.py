"""The whole pipeline on a tiny model: what it installs, what it starts from, and that nothing bad gets into service."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench.quantization_cost import Load, Work, stages
from graph.checkpoints import VL, tensors_of, write_checkpoint, write_safetensors
from lifecycle.calibrated import Diary, Made, Workplace
from lifecycle.calibration_sets import write_calibration_set
from lifecycle.int8_bundles import seal
from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.errors import (
    BundleError,
    CalibrationError,
    CheckpointError,
    DatasetError,
    OrinRerankError,
    RefusedPrecisionError,
    SettingsError,
    StoreBusyError,
)
from orin_rerank.evaluation.dataset import DATASET_FILE
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.places import model_places
from orin_rerank.graph.scheme import Mode
from orin_rerank.graph.text import embedding_name
from orin_rerank.lifecycle.calibrate import CalibrationOptions
from orin_rerank.lifecycle.derive import COVERAGE_FILE
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.planning import PlanOptions
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import RerankInput, TextPart
from orin_rerank.quantization.calibration_set import dataset_digest
from orin_rerank.quantization.gate import GATE_FILE, GateThresholds
from orin_rerank.quantization.plan import PLAN_FILE, SMOOTHING_FILE, QuantizationPlan

if TYPE_CHECKING:
    from collections.abc import Callable

ONE_THREAD = EngineSettings(threads=1, token_budget=256)


def computed(bundle: Bundle) -> dict[str, str]:
    """What decides an engine's scores: the hashes of all but its papers."""
    return {name: entry.sha256 for name, entry in bundle.manifest.files.items() if not name.startswith("quantization/")}


class TestWhatIsInstalled:
    def test_it_is_whole_in_service_and_served_by_itself(self, made: Made) -> None:
        result = made.result
        assert result.folder == made.at.in_service == result.bundle.folder
        Bundle.open(result.folder).verify()
        model = load_model(made.at.bundle.folder, ONE_THREAD, store=made.at.store)
        assert (model.info.precision, model.digest) == ("int8", result.bundle.digest)
        assert model.source == made.at.bundle.digest
        model.close()
        assert [path.name for path in made.at.place.iterdir() if path.name.startswith(".staging")] == []

    def test_its_papers_say_what_was_done(self, made: Made) -> None:
        result, folder = made.result, made.result.folder
        places = model_places(made.at.bundle.manifest.architecture)
        plan = QuantizationPlan.load(folder / PLAN_FILE, bundle=made.at.bundle.digest, places=places)
        assert plan == result.plan
        assert plan.counts()[Mode.INT8] == 9  # of the decoder's 12 places, 3 see the last tokens only
        assert {p.mode for p in plan.places if p.vision} == {Mode.WEIGHTS}
        gate = json.loads((folder / GATE_FILE).read_text())
        assert gate["verdict"] == {"passed": True, "reasons": []}
        assert gate["dataset"] == dataset_digest(made.at.judged)
        assert gate["subject"]["source"] == made.at.bundle.digest
        assert result.coverage is not None
        assert json.loads((folder / COVERAGE_FILE).read_text()) == json.loads(json.dumps(result.coverage.as_dict()))

    def test_the_record_is_of_what_is_served(self, made: Made) -> None:
        """Scoring a part of the judged set with the installed engine gives what full precision gives, nearly."""
        margins = []
        for choice in (PrecisionChoice.INT8, PrecisionChoice.FULL):
            settings = dataclasses.replace(ONE_THREAD, precision=choice)
            model = load_model(made.at.bundle.folder, settings, store=made.at.store)
            request = RerankInput([TextPart("red fire engine")], [[TextPart(w)] for w in ("a ladder", "猫", "1923 ?")])
            margins.append(model.rerank(request).margins)
            model.close()
        moved = np.abs(margins[0] - margins[1]).max()
        assert 0 < moved <= 2 * made.result.record.report.total.largest_shift

    def test_a_spectator_sees_stages_card_and_verdict(self, made: Made) -> None:
        diary = made.diary
        assert list(diary.stages) == [
            "verifying the bundle",
            "reading the sets",
            "observing activations",
            "judged set in full precision",
            "searching smoothing",
            "observing smoothed activations",
            "trying each place in INT8",
            "evening out columns",
            "writing INT8 weights",
            "judged set in INT8",
            "installing",
        ]
        assert [stage.name for stage in made.result.ledger.stages] == list(diary.stages)
        assert all(told[0] == (0, 0) for told in diary.stages.values())
        for name in ("searching smoothing", "trying each place in INT8", "writing INT8 weights", "judged set in INT8"):
            done, total = diary.stages[name][-1]
            assert done == total > 1
        assert diary.stages["observing activations"][-1] == (264, 0)
        assert diary.cards == [made.result.coverage]
        assert diary.attempts == [(made.result.plan, made.result.record)]
        assert (diary.warnings, made.result.warnings) == ([], ())

    def test_the_ledger_counts_what_goes_through(self, made: Made) -> None:
        stages = {stage.name: stage for stage in made.result.ledger.stages}
        observing, again = stages["observing activations"], stages["observing smoothed activations"]
        assert observing.pairs == again.pairs == 264
        assert observing.tokens == again.tokens > 264
        assert stages["judged set in INT8"].pairs == 3 * 56
        tried = stages["trying each place in INT8"]
        assert tried.pairs == (9 + 2) * 48
        checkpoint = made.at.bundle.manifest.files[WEIGHTS_FILE].bytes
        assert 0.9 * checkpoint < stages["verifying the bundle"].weight_bytes <= checkpoint
        assert all(stage.seconds > 0 for stage in stages.values())

    def test_the_reckoning_of_large_models_counts_what_the_ledger_counts(self, made: Made) -> None:
        manifest = made.at.bundle.manifest
        counted = {stage.name: stage for stage in made.result.ledger.stages}

        def load(name: str, times: int = 1) -> Load:
            return Load(counted[name].pairs // times, counted[name].tokens // times, counted[name].images)

        trying = "trying each place in INT8"
        work = Work(load("observing activations"), load("judged set in full precision"), load(trying, 9 + 2))
        matrices = {name for place in model_places(manifest.architecture) for name in place.weights}
        matrices.add(embedding_name(vl=True))
        entries = Checkpoint.open(made.at.bundle.folder).entries
        others = sum(entry.end - entry.begin for name, entry in entries.items() if name not in matrices)
        for cost in stages(manifest.architecture, work):
            stage = counted[cost.name]
            assert (stage.pairs, stage.tokens, stage.images) == (cost.load.pairs, cost.load.tokens, cost.load.images)
            # What is no matrix, a thousandth of a large model, is read by the writer alone.
            assert stage.weight_bytes == cost.read + (others if cost.written else 0), cost.name


class TestWhatItStartsFrom:
    @pytest.mark.parametrize("threads", [1, 2])
    def test_it_is_the_same_to_the_last_bit_again(self, made: Made, tmp_path: Path, threads: int) -> None:
        at = dataclasses.replace(made.at, store=EngineStore(tmp_path))
        assert at.calibrate(threads=threads).bundle.digest == made.result.bundle.digest

    def test_ranges_that_were_kept_save_a_pass(self, made: Made, tmp_path: Path) -> None:
        at = made.elsewhere(tmp_path)
        before = made.ranges.read_bytes()
        again = at.calibrate(ranges=made.ranges)
        assert made.ranges.read_bytes() == before
        (observing,) = [stage for stage in again.ledger.stages if stage.name == "observing activations"]
        assert (observing.pairs, observing.tokens, again.coverage) == (0, 0, None)
        assert computed(again.bundle) == computed(made.result.bundle)
        assert again.plan == made.result.plan
        assert COVERAGE_FILE not in again.bundle.manifest.files

    def test_a_plan_that_is_reused_gives_the_same_engine(self, made: Made, tmp_path: Path) -> None:
        """From a copy of its two files, with no calibration at all."""
        papers = tmp_path / "papers"
        for name in (PLAN_FILE, SMOOTHING_FILE):
            (papers / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made.result.folder / name, papers / name)
        at = dataclasses.replace(made.at, store=EngineStore(tmp_path / "state"))
        diary = Diary()
        again = at.calibrate(diary, reuse=papers)
        assert "observing activations" not in diary.stages
        assert computed(again.bundle) == computed(made.result.bundle)
        assert (again.plan, again.record) == (made.result.plan, made.result.record)

    def test_the_engine_before_is_kept_for_who_reads_it(self, made: Made, tmp_path: Path) -> None:
        at = made.elsewhere(tmp_path)
        old = at.in_service
        assert old is not None
        new = at.calibrate(reuse=old).folder
        assert new == at.in_service != old
        Bundle.open(old).verify()

    def test_vision_is_what_was_asked_for(self, made: Made, tmp_path: Path) -> None:
        at = dataclasses.replace(made.at, store=EngineStore(tmp_path))
        int8 = at.calibrate(plan=PlanOptions(vision=Mode.INT8))
        assert {p.mode for p in int8.plan.places if p.vision} == {Mode.INT8}
        assert sum(p.share for p in int8.plan.places if p.vision) == pytest.approx(1)
        sizes = [r.bundle.manifest.files[WEIGHTS_FILE].bytes for r in (int8, made.result)]
        assert sizes[0] == sizes[1], "stored as INT8 in both"


class TestTheGate:
    def test_places_become_wide_until_it_passes(self, made: Made, tmp_path: Path) -> None:
        first = made.result.record.report.total.correlation
        asked = GateThresholds(min_correlation=(1 + first) / 2)
        at, diary = dataclasses.replace(made.at, store=EngineStore(tmp_path)), Diary()
        result = at.calibrate(diary, thresholds=asked, max_wide=1.0)
        assert result.attempts == len(diary.attempts) == len(result.refused) + 1 > 1
        shares = [plan.wide_share for plan, _ in diary.attempts]
        assert shares[0] == 0
        assert shares == sorted(set(shares))
        assert [record.verdict.passed for _, record in diary.attempts] == [False] * len(result.refused) + [True]
        assert all("margins correlate" in record.verdict.reasons[0] for record in result.refused)
        wide = [p for p in result.plan.ranking if p.mode is Mode.WEIGHTS]
        assert wide == result.plan.ranking[: len(wide)], "the costliest"
        assert all("the gate asked for it" in place.why for place in wide)
        assert result.record.report.total.correlation >= asked.min_correlation > first

    def test_what_cannot_pass_is_refused_with_the_last_reasons(self, made: Made, tmp_path: Path) -> None:
        at, diary = made.elsewhere(tmp_path), Diary()
        with pytest.raises(
            RefusedPrecisionError,
            match=r"INT8 is refused: margins correlate by 0\.99\d+; at least 1 is asked for \(plan \d, \d\d% of",
        ) as caught:
            at.calibrate(diary, thresholds=GateThresholds(min_correlation=1), max_wide=0.3)
        assert caught.value.item == at.bundle.manifest.name
        assert len(diary.attempts) > 1
        assert_untouched(at, made)

    def test_nothing_need_stay_wide(self, made: Made, tmp_path: Path) -> None:
        at, diary = made.elsewhere(tmp_path), Diary()
        with pytest.raises(RefusedPrecisionError, match="plan 1, 0% of the decoder's work wide, of at most 0%"):
            at.calibrate(diary, thresholds=GateThresholds(min_correlation=1), max_wide=0)
        assert len(diary.attempts) == 1

    def test_a_set_without_pictures_gives_a_warning(self, made: Made, tmp_path: Path) -> None:
        data = write_calibration_set(tmp_path / "texts", pictures=0)
        at, diary = dataclasses.replace(made.at, store=EngineStore(tmp_path / "state")), Diary()
        result = at.calibrate(diary, data=data)
        assert result.warnings == tuple(diary.warnings) == ("the model takes images, but there are none",)
        with pytest.raises(CalibrationError, match="never reached this place: it has no pictures") as caught:
            at.calibrate(data=data, plan=PlanOptions(vision=Mode.INT8))
        assert caught.value.item == "patches"

    def test_judging_by_the_calibration_set_itself_gives_a_warning(self, made: Made, tmp_path: Path) -> None:
        at = dataclasses.replace(made.at, store=EngineStore(tmp_path))
        assert any(
            "the judged set is the calibration set itself" in w for w in at.calibrate(data=made.at.judged).warnings
        )


def assert_untouched(at: Workplace, made: Made) -> None:
    """The engine that was in service still is, whole, and nothing half-made lies beside it."""
    engine = at.in_service
    assert engine is not None
    assert Bundle.open(engine).digest == made.result.bundle.digest
    Bundle.open(engine).verify()
    assert {path.name for path in at.place.iterdir()} == {"current", engine.name, ".lock"}


def _copy(path: Path, to: Path, change: Callable[[bytearray], object] = lambda _: None) -> Path:
    contents = bytearray(path.read_bytes())
    change(contents)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(contents)
    return to


def _flip(contents: bytearray) -> None:
    contents[len(contents) // 2] ^= 4


def _halve(contents: bytearray) -> None:
    del contents[len(contents) // 2 :]


def _broken_ranges(change: Callable[[bytearray], object]) -> Callable[[Made, Path], dict[str, Any]]:
    return lambda made, tmp: {"ranges": _copy(made.ranges, tmp / "ranges", change)}


def _broken_papers(broken: str, change: Callable[[bytearray], object]) -> Callable[[Made, Path], dict[str, Any]]:
    def breaking(made: Made, tmp: Path) -> dict[str, Any]:
        for name in (PLAN_FILE, SMOOTHING_FILE):
            _copy(made.result.folder / name, tmp / "papers" / name, change if name == broken else lambda _: None)
        return {"reuse": tmp / "papers"}

    return breaking


def _other_set(made: Made, tmp: Path) -> dict[str, Any]:
    return {"ranges": made.ranges, "data": write_calibration_set(tmp / "other", seed=9)}


def _other_places(made: Made, tmp: Path) -> dict[str, Any]:
    """Recorded for the decoder, and wanted for the vision encoder too."""
    return {"ranges": made.ranges, "plan": PlanOptions(vision=Mode.INT8)}


def _few_pairs(made: Made, tmp: Path) -> dict[str, Any]:
    return {"data": write_calibration_set(tmp / "few", queries=5)}


def _cut_picture(made: Made, tmp: Path) -> dict[str, Any]:
    data = write_calibration_set(tmp / "cut")
    for picture in (data / "images").iterdir():
        _copy(picture, picture, _halve)
    return {"data": data}


def _cut_judged_picture(made: Made, tmp: Path) -> dict[str, Any]:
    judged = tmp / "judged"
    shutil.copytree(made.at.judged, judged)
    for picture in (judged / "images").iterdir():
        _copy(picture, picture, _halve)
    return {"evaluation": judged}


def _too_few_judged(made: Made, tmp: Path) -> dict[str, Any]:
    judged = tmp / "judged"
    shutil.copytree(made.at.judged, judged)
    lines = (judged / DATASET_FILE).read_text().splitlines(keepends=True)
    (judged / DATASET_FILE).write_text("".join(lines[:49]))
    return {"evaluation": judged}


def _too_long(made: Made, tmp: Path) -> dict[str, Any]:
    data = write_calibration_set(tmp / "long")
    lines = [json.loads(line) for line in (data / DATASET_FILE).read_text().splitlines()]
    lines[3]["instruction"] = "word " * 600
    (data / DATASET_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"data": data}


@pytest.mark.parametrize(
    ("wrong", "kind", "item", "why"),
    [
        (_broken_ranges(_flip), CalibrationError, "/ranges", "its own SHA-256|cut short, or no file"),
        (_broken_ranges(_halve), CalibrationError, "/ranges", "its own SHA-256"),
        (_broken_ranges(bytearray.clear), CalibrationError, "/ranges", "cut short, or no file of recorded arrays"),
        (_other_set, CalibrationError, "/ranges.safetensors", "was recorded of another dataset"),
        (_other_places, CalibrationError, "/ranges.safetensors", "was recorded of another graph"),
        (lambda _made, tmp: {"ranges": tmp}, CalibrationError, "", "cannot be read: Is a directory"),
        (lambda _made, tmp: {"ranges": tmp / "none" / "r"}, SettingsError, "ranges", "is in no folder that exists"),
        (lambda _made, tmp: {"reuse": tmp / "none"}, CalibrationError, PLAN_FILE, "cannot be read: No such file"),
        (_broken_papers(PLAN_FILE, _flip), CalibrationError, PLAN_FILE, "SHA-256|damaged"),
        (_broken_papers(PLAN_FILE, _halve), CalibrationError, PLAN_FILE, "the plan is damaged"),
        (_broken_papers(SMOOTHING_FILE, _flip), CalibrationError, SMOOTHING_FILE, "its own SHA-256"),
        (_broken_papers(SMOOTHING_FILE, _halve), CalibrationError, SMOOTHING_FILE, "SHA-256|cut short"),
        (_few_pairs, CalibrationError, "pairs", "30 pairs are too few"),
        (_cut_picture, DatasetError, ".image", "damaged or cut short"),
        (_cut_judged_picture, DatasetError, "query q", "damaged or cut short"),
        (_too_few_judged, DatasetError, "/judged", "49 judged queries decide nothing; 50 are needed"),
        (_too_long, CalibrationError, "dataset.jsonl:4", "tokens"),
        (lambda _made, tmp: {"data": tmp / "none"}, DatasetError, DATASET_FILE, "cannot be read"),
        (lambda _made, tmp: {"evaluation": tmp / "none"}, DatasetError, DATASET_FILE, "cannot be read"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    made: Made,
    tmp_path: Path,
    wrong: Callable[[Made, Path], dict[str, Any]],
    kind: type[OrinRerankError],
    item: str,
    why: str,
) -> None:
    at = made.elsewhere(tmp_path)
    (tmp_path / "input").mkdir()
    with pytest.raises(kind, match=why) as caught:
        at.calibrate(**wrong(made, tmp_path / "input"))
    assert item in (caught.value.item or "")
    assert_untouched(at, made)


@pytest.fixture(scope="module")
def relative(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A model of the same architecture with other weights."""
    folder = tmp_path_factory.mktemp("relative")
    checkpoint = write_checkpoint(folder / "checkpoint", VL)
    tensors = {name: values * np.float32(1.5) for name, values in tensors_of(VL, checkpoint).items()}
    write_safetensors(checkpoint / WEIGHTS_FILE, tensors)
    options = ExportOptions(name="relative", max_tokens=512, min_pixels=1)
    return export_checkpoint(checkpoint, folder / "bundle", options).bundle


def test_what_was_made_for_another_model_is_refused(made: Made, relative: Bundle, tmp_path: Path) -> None:
    at = dataclasses.replace(made.at, bundle=relative, store=EngineStore(tmp_path))
    with pytest.raises(CalibrationError, match="was recorded of another bundle"):
        at.calibrate(ranges=made.ranges)
    with pytest.raises(CalibrationError, match="the plan was made for bundle"):
        at.calibrate(reuse=made.result.folder)
    assert at.in_service is None


def test_an_int8_bundle_is_not_quantised_again(made: Made, tmp_path: Path) -> None:
    at = dataclasses.replace(made.at, bundle=made.result.bundle, store=EngineStore(tmp_path))
    with pytest.raises(CalibrationError, match="is INT8 itself"):
        at.calibrate()
    assert not tmp_path.exists() or not any(tmp_path.iterdir())


def test_two_cannot_make_an_engine_at_a_time(made: Made, tmp_path: Path) -> None:
    at = made.elsewhere(tmp_path)
    with at.store.staging(at.bundle.digest) as other, pytest.raises(StoreBusyError):
        at.calibrate()
    assert not other.exists()
    assert_untouched(at, made)


@pytest.mark.parametrize(
    ("tensor", "value", "kind", "item"),
    [
        ("model.language_model.layers.1.mlp.up_proj.weight", np.nan, CheckpointError, "layers.1.mlp.up_proj.weight"),
        ("model.language_model.norm.weight", np.inf, CheckpointError, "model.language_model.norm.weight"),
        # finite, but what it makes is not
        ("model.language_model.layers.1.input_layernorm.weight", 3e38, CalibrationError, "layers.1.qkv"),
        ("model.language_model.norm.weight", 3e38, CalibrationError, "tiny-reranker"),
    ],
)
def test_a_model_that_computes_no_numbers_is_refused(
    made: Made, tmp_path: Path, tensor: str, value: float, kind: type[OrinRerankError], item: str
) -> None:
    folder = Path(shutil.copytree(made.at.bundle.folder, tmp_path / "bundle"))
    _overwrite(folder, tensor, value)
    at = dataclasses.replace(made.at, bundle=Bundle.open(folder), store=EngineStore(tmp_path / "state"))
    with pytest.raises(kind, match=r"not finite|NaN|not a finite number") as caught:
        at.calibrate()
    assert (caught.value.item or "").endswith(item)
    assert at.in_service is None
    assert [path.name for path in at.place.iterdir()] == [".lock"]


def test_a_damaged_bundle_is_refused(made: Made, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made.at.bundle.folder, tmp_path / "bundle"))
    _copy(folder / WEIGHTS_FILE, folder / WEIGHTS_FILE, _flip)
    at = dataclasses.replace(made.at, bundle=Bundle.open(folder), store=EngineStore(tmp_path / "state"))
    with pytest.raises(BundleError, match="the contents that the manifest names"):
        at.calibrate()


def test_the_widest_share_is_a_share() -> None:
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(SettingsError, match="max_wide"):
            CalibrationOptions(Path("a"), Path("b"), max_wide=value)


def _overwrite(folder: Path, tensor: str, value: float) -> None:
    """Fills a tensor of a bundle with a value, and has the manifest vouch for it."""
    entry = Checkpoint.open(folder).entry(tensor)
    kind = {"F16": "<f2", "F32": "<f4"}[entry.dtype]
    contents = bytearray((folder / WEIGHTS_FILE).read_bytes())
    count = (entry.end - entry.begin) // np.dtype(kind).itemsize
    contents[entry.begin : entry.end] = np.full(count, value, kind).tobytes()
    (folder / WEIGHTS_FILE).write_bytes(contents)
    manifest = Bundle.open(folder).manifest
    seal(folder, manifest, manifest.files)
