"""A derived bundle: its manifest vouches for what lies there, plan after plan."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from lifecycle.calibrated import Made
from orin_rerank.engines.bundle import GOLDEN_FILE, MANIFEST_FILE, WEIGHTS_FILE, Bundle
from orin_rerank.engines.settings import EngineSettings
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.places import Place, model_places
from orin_rerank.graph.scheme import Mode
from orin_rerank.lifecycle.derive import COVERAGE_FILE, DerivedBundle
from orin_rerank.lifecycle.judging import REFERENCE_FILE
from orin_rerank.lifecycle.ledger import Ledger
from orin_rerank.lifecycle.planning import even_scales
from orin_rerank.lifecycle.workbench import Workbench
from orin_rerank.quantization.array_file import read_arrays, write_arrays
from orin_rerank.quantization.gate import GATE_FILE, engine_digest
from orin_rerank.quantization.plan import PLAN_FILE, SMOOTHING_FILE, QuantizationPlan

if TYPE_CHECKING:
    from pathlib import Path


class Bench:
    """Writes bundles by plans of the calibrated model."""

    def __init__(self, made: Made, folder: Path) -> None:
        self.source = made.at.bundle
        bench = Workbench(self.source, folder, EngineSettings())
        self.derived = DerivedBundle(self.source, folder)
        self.scales, metadata = read_arrays(made.result.folder / SMOOTHING_FILE)
        (folder / SMOOTHING_FILE).parent.mkdir()
        write_arrays(folder / SMOOTHING_FILE, self.scales, metadata)
        self.scales |= even_scales(bench, made.result.plan, Ledger(lambda *_: None))
        self.told: list[tuple[int, int]] = []

    def write(self, plan: QuantizationPlan) -> Bundle:
        checkpoint = Checkpoint.open(self.source.folder)
        return self.derived.write_model(checkpoint, plan, self.scales, {}, lambda *what: self.told.append(what))


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_every_file_is_vouched_for_and_no_other_is_there(made: Made, tmp_path: Path) -> None:
    bundle = Bench(made, tmp_path).write(made.result.plan)
    bundle.verify()
    manifest, source = bundle.manifest, made.at.bundle.manifest
    assert _names(tmp_path) == {*manifest.files, MANIFEST_FILE}
    assert (manifest.source, manifest.name) == (made.at.bundle.digest, source.name)
    assert (manifest.prompt, manifest.architecture) == (source.prompt, source.architecture)
    for name in ("config.json", "tokenizer.json"):
        assert manifest.files[name] == source.files[name]
    assert manifest.files[WEIGHTS_FILE].licence == source.files[WEIGHTS_FILE].licence
    assert manifest.files[WEIGHTS_FILE].bytes < 0.6 * source.files[WEIGHTS_FILE].bytes


def test_what_is_installed_was_written_so(made: Made, tmp_path: Path) -> None:
    """The same plan gives the same files as the whole pipeline did."""
    written = Bench(made, tmp_path).write(made.result.plan).manifest.files
    installed = made.result.bundle.manifest.files
    later = {name for name in installed if name.startswith("golden/")} | {GATE_FILE, COVERAGE_FILE, REFERENCE_FILE}
    assert written == {name: entry for name, entry in installed.items() if name not in later}
    assert GOLDEN_FILE in later
    assert _names(made.result.folder) == {*installed, MANIFEST_FILE}


def test_another_plan_takes_the_place_of_the_first(made: Made, tmp_path: Path) -> None:
    bench = Bench(made, tmp_path)
    first = bench.write(made.result.plan)
    wider = made.result.plan.widened(["layers.0.down", "layers.1.qkv"], "to see")
    second = bench.write(wider)
    second.verify()
    assert Bundle.open(tmp_path).digest == second.digest != first.digest
    loaded = QuantizationPlan.load(tmp_path / PLAN_FILE, bundle=made.at.bundle.digest, places=_places(made))
    assert loaded == wider
    graph = "text.fused.int8.onnx"
    assert first.manifest.files[graph] != second.manifest.files[graph]
    assert first.manifest.files[WEIGHTS_FILE] == second.manifest.files[WEIGHTS_FILE], "smoothed and stored alike"
    assert bench.write(made.result.plan).digest == first.digest


def test_progress_ends_with_every_byte(made: Made, tmp_path: Path) -> None:
    bench = Bench(made, tmp_path)
    bundle = bench.write(made.result.plan)
    done, total = bench.told[-1]
    assert done == total < bundle.manifest.files[WEIGHTS_FILE].bytes
    assert [one for one, _ in bench.told] == sorted(one for one, _ in bench.told)


def test_a_gate_is_added_to_the_very_engine_that_it_saw(made: Made, tmp_path: Path) -> None:
    bench = Bench(made, tmp_path)
    before = bench.write(made.result.plan)
    after = bench.derived.add_gate(made.result.record)
    after.verify()
    assert engine_digest(after.manifest.files) == engine_digest(before.manifest.files)
    assert GATE_FILE in after.manifest.files


def test_golden_pairs_of_an_earlier_plan_are_not_vouched_for(made: Made, tmp_path: Path) -> None:
    bench = Bench(made, tmp_path)
    bench.write(made.result.plan)
    names = [name for name in made.at.bundle.manifest.files if name.startswith("golden/")]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    assert set(names) <= set(bench.derived.add_golden(names).manifest.files)
    assert not set(names) & set(bench.write(made.result.plan).manifest.files)


@pytest.mark.parametrize("vision", [Mode.WEIGHTS, Mode.WIDE])
def test_weights_are_narrow_where_the_plan_says_so(made: Made, tmp_path: Path, vision: Mode) -> None:
    places = tuple(dataclasses.replace(p, mode=vision) if p.vision else p for p in made.result.plan.places)
    bundle = Bench(made, tmp_path).write(dataclasses.replace(made.result.plan, places=places))
    stored = Checkpoint.open(bundle.folder).entries
    by_place = {p.name: p.weights for p in _places(made)}
    for place in places:
        kinds = {stored[name].dtype for name in by_place[place.place]}
        assert kinds == {"F16" if place.mode is Mode.WIDE else "I8"}, place.place


def _places(made: Made) -> list[Place]:
    return model_places(made.at.bundle.manifest.architecture)
