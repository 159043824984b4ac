"""Which precision is loaded, and why: INT8 only where everything about it holds, full precision in its place."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engines.running import noise_picture, random_text
from evaluation.scored import reference, with_noise
from lifecycle.conftest import GOLDEN
from lifecycle.int8_bundles import add_gate, seal, write_int8_bundle
from orin_rerank.engines.bundle import GOLDEN_FILE, WEIGHTS_FILE, Bundle
from orin_rerank.engines.settings import EngineSettings, PrecisionChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.errors import BundleError, RefusedPrecisionError, UnavailableError
from orin_rerank.evaluation.paired import compare
from orin_rerank.graph.builder import Dialect
from orin_rerank.lifecycle.precision import find_int8
from orin_rerank.lifecycle.startup import load_model
from orin_rerank.prompt.content import RerankInput
from orin_rerank.quantization.gate import GATE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orin_rerank.lifecycle.model import LoadedModel

SETTINGS = EngineSettings(threads=1, token_budget=128)
INT8 = dataclasses.replace(SETTINGS, precision=PrecisionChoice.INT8)
FULL = dataclasses.replace(SETTINGS, precision=PrecisionChoice.FULL)


def _requests() -> list[RerankInput]:
    rng = random.Random(3)
    return [
        RerankInput([random_text(rng)], [[random_text(rng)] for _ in range(6)] + [[noise_picture(i, 32, 64)]])
        for i in range(8)
    ]


@pytest.fixture(scope="session")
def int8_bundle(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """An INT8 bundle that has not been through a gate."""
    return write_int8_bundle(Bundle.open(bundle_folder), tmp_path_factory.mktemp("int8"), _requests())


@pytest.fixture
def store(tmp_path: Path) -> EngineStore:
    return EngineStore(tmp_path / "state")


@pytest.fixture
def install(store: EngineStore, int8_bundle: Bundle) -> Callable[..., Path]:
    """Installs the INT8 bundle after a change to it."""

    def install(change: Callable[[Bundle], object] = add_gate) -> Path:
        source = int8_bundle.manifest.source
        assert source is not None
        with store.staging(source) as staged:
            shutil.copytree(int8_bundle.folder, staged, dirs_exist_ok=True)
            change(Bundle.open(staged))
            return store.install(source, staged)

    return install


def _margins(model: LoadedModel) -> np.ndarray:
    try:
        return np.concatenate([model.rerank(request).margins for request in _requests()])
    finally:
        model.close()


def test_int8_stands_in_where_it_proves_itself(
    bundle_folder: Path, int8_bundle: Bundle, store: EngineStore, install: Callable[..., Path]
) -> None:
    installed = Bundle.open(install())
    model = load_model(bundle_folder, SETTINGS, store=store)
    assert (model.info.precision, model.name) == ("int8", int8_bundle.manifest.name)
    assert (model.digest, model.source) == (installed.digest, Bundle.open(bundle_folder).digest)
    assert model.precision_reason.startswith("INT8 passed its gate: NDCG@10 0.")
    int8 = _margins(model)
    asked = load_model(bundle_folder, INT8, store=store)
    np.testing.assert_array_equal(_margins(asked), int8)
    full = load_model(bundle_folder, FULL, store=store)
    assert (full.info.precision, full.source) == ("fp32", None)
    assert full.precision_reason == "full precision was asked for"
    exact = _margins(full)
    assert 1e-3 < np.abs(int8 - exact).max() < exact.std(), "INT8 is no full precision, but near it"
    assert np.corrcoef(int8, exact)[0, 1] > 0.95


def test_without_an_int8_engine_full_precision_says_how_to_get_one(
    bundle_folder: Path, store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(bundle_folder, SETTINGS, store=store)
    assert model.info.precision == "fp32"
    assert "no INT8 engine is installed" in model.precision_reason
    assert "`orin-rerank calibrate`" in model.precision_reason
    assert not caplog.records, "nothing is wrong"
    model.close()
    with pytest.raises(RefusedPrecisionError, match=r"no INT8 engine is installed.*`orin-rerank calibrate`"):
        load_model(bundle_folder, INT8, store=store)


def _other_gate(bundle: Bundle) -> None:
    """The record of another engine: it has other weights since the gate saw it."""
    add_gate(bundle)
    weights = bundle.folder / WEIGHTS_FILE
    contents = bytearray(weights.read_bytes())
    contents[-1] ^= 1
    weights.write_bytes(contents)
    seal(bundle.folder, bundle.manifest, {*bundle.manifest.files, GATE_FILE})


def _edited_gate(bundle: Bundle) -> None:
    add_gate(bundle, noise=1.0)
    path = bundle.folder / GATE_FILE
    good = add_gate(bundle).folder / GATE_FILE
    value = json.loads(good.read_text())
    value["report"]["total"]["correlation"] = 1.0
    path.write_text(json.dumps(value))
    seal(bundle.folder, bundle.manifest, {*bundle.manifest.files, GATE_FILE})


def _other_golden_margins(bundle: Bundle) -> None:
    path = bundle.folder / GOLDEN_FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["margin"] += 0.5
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    add_gate(seal(bundle.folder, bundle.manifest, bundle.manifest.files))


def _no_graph_for_it(bundle: Bundle) -> None:
    (bundle.folder / "text.fused.int8.onnx").write_bytes(b"no graph")
    add_gate(seal(bundle.folder, bundle.manifest, bundle.manifest.files))


def _fp32_only(bundle: Bundle) -> None:
    graphs = tuple(g for g in bundle.manifest.graphs if g.precision.half)
    add_gate(seal(bundle.folder, dataclasses.replace(bundle.manifest, graphs=graphs), bundle.manifest.files))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _: None, "vouches for no record of a gate"),
        (lambda bundle: add_gate(bundle, noise=1.0), "the gate refuses INT8: .*correlate by"),
        (_other_gate, "the gate's record is of INT8 engine"),
        (_edited_gate, "the gate's record does not have the contents"),
        (_other_golden_margins, "golden/pairs.jsonl:2: the model gives"),
        (_no_graph_for_it, "ONNX Runtime does not take the graph"),
        (_fp32_only, "has no fused graph in int8"),
    ],
)
def test_int8_that_cannot_be_trusted_is_not_served(
    bundle_folder: Path,
    store: EngineStore,
    install: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Bundle], object],
    why: str,
) -> None:
    install(change)
    _assert_refused(bundle_folder, store, caplog, why)


@pytest.mark.parametrize("damage", ["removed", "cut short", "bit flipped", "no manifest", "gate removed"])
def test_int8_that_was_damaged_since_is_not_served(
    bundle_folder: Path, store: EngineStore, install: Callable[..., Path], caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    folder = install()
    weights = folder / WEIGHTS_FILE
    contents = bytearray(weights.read_bytes())
    if damage == "removed":
        shutil.rmtree(folder)
    elif damage == "no manifest":
        (folder / "manifest.json").unlink()
    elif damage == "gate removed":
        (folder / GATE_FILE).unlink()
    elif damage == "cut short":
        weights.write_bytes(contents[:-1])
    else:
        contents[len(contents) // 2] ^= 4
        weights.write_bytes(contents)
    _assert_refused(bundle_folder, store, caplog, str(folder))


def _assert_refused(folder: Path, store: EngineStore, caplog: pytest.LogCaptureFixture, why: str) -> None:
    with caplog.at_level(logging.WARNING):
        model = load_model(folder, SETTINGS, store=store)
    assert (model.info.precision, model.source) == ("fp32", None)
    model.close()
    assert model.precision_reason.startswith("an INT8 engine is installed, but refused: ")
    (record,) = caplog.records
    assert record.message == "serving full precision though INT8 is installed"
    with pytest.raises(RefusedPrecisionError, match=why) as caught:
        load_model(folder, INT8, store=store)
    assert "`orin-rerank calibrate` makes" in str(caught.value)
    assert str(caught.value).startswith(model.precision_reason)


def test_a_dialect_that_int8_is_not_written_in_is_served_in_full_precision(
    bundle_folder: Path, store: EngineStore, install: Callable[..., Path]
) -> None:
    install()
    primitive = dataclasses.replace(INT8, dialect=Dialect.PRIMITIVE)
    with pytest.raises(RefusedPrecisionError, match="has no primitive graph in int8"):
        load_model(bundle_folder, primitive, store=store)
    model = load_model(bundle_folder, dataclasses.replace(SETTINGS, dialect=Dialect.PRIMITIVE), store=store)
    assert model.info.precision == "fp32"
    model.close()


def test_the_tolerance_follows_from_what_the_gate_measured(
    bundle_folder: Path, store: EngineStore, install: Callable[..., Path]
) -> None:
    install()
    trusted = find_int8(Bundle.open(bundle_folder), store, lambda _: None)
    assert trusted is not None
    shift = compare(reference(), with_noise(reference(), 0.1)).total.rms_shift
    assert trusted.tolerance == 2 * shift == pytest.approx(0.2, rel=0.1)


def test_a_full_precision_bundle_that_is_damaged_is_not_saved_by_int8(
    bundle_folder: Path, store: EngineStore, install: Callable[..., Path], tmp_path: Path
) -> None:
    """Nor does it stand in the way: what is served is whole."""
    install()
    shutil.copytree(bundle_folder, tmp_path / "copy")
    (tmp_path / "copy" / WEIGHTS_FILE).unlink()
    load_model(tmp_path / "copy", INT8, store=store).close()
    with pytest.raises(BundleError, match=WEIGHTS_FILE):
        load_model(tmp_path / "copy", FULL, store=store)


def test_an_int8_bundle_is_not_what_a_person_names(int8_bundle: Bundle, store: EngineStore) -> None:
    with pytest.raises(BundleError, match="name the bundle that it was made from"):
        load_model(int8_bundle.folder, SETTINGS, store=store)


def test_a_daemon_that_is_to_stop_is_not_kept_by_the_other_precision(
    bundle_folder: Path, store: EngineStore, install: Callable[..., Path]
) -> None:
    install()

    def stop(what: str) -> None:
        raise UnavailableError("the daemon stops")

    with pytest.raises(UnavailableError):
        load_model(bundle_folder, SETTINGS, stop, store=store)


def test_golden_margins_are_the_int8_engines_own(bundle_folder: Path, int8_bundle: Bundle) -> None:
    own, given = (
        [json.loads(line) for line in (folder / GOLDEN_FILE).read_text().splitlines()]
        for folder in (int8_bundle.folder, bundle_folder)
    )
    assert [{**line, "margin": 0} for line in own] == [{**line, "margin": 0} for line in given]
    assert all(abs(a["margin"] - b["margin"]) > 1e-6 for a, b in zip(own, given, strict=True))
    assert (int8_bundle.folder / "golden" / GOLDEN[1][1]).exists()
