"""Checks of bundle, INT8 engine and plans."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from engines.running import noise_picture, random_text
from fakes.board import make_pc
from lifecycle.doctor.places import MINI, WITH_GPU, board, context_of, said
from lifecycle.int8_bundles import add_gate, write_int8_bundle
from orin_rerank.engines.bundle import Bundle
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.settings import DeviceChoice, EngineSettings, PrecisionChoice
from orin_rerank.engines.store import EngineStore
from orin_rerank.graph.builder import Precision
from orin_rerank.lifecycle.compile_target import CompileTarget
from orin_rerank.lifecycle.doctor.disk import missing_bytes
from orin_rerank.lifecycle.doctor.finding import Verdict
from orin_rerank.lifecycle.doctor.gpu import check_tensorrt
from orin_rerank.lifecycle.doctor.model import check_bundle, check_damage, check_int8, check_plans
from orin_rerank.lifecycle.doctor.probe import MachineProbe
from orin_rerank.lifecycle.plan_work import engine_to_compile
from orin_rerank.prompt.content import RerankInput


def test_the_bundle(tmp_path: Path) -> None:
    paths = board(tmp_path)
    digest = Bundle.open(MINI).digest[:12]
    assert said(check_bundle(paths, context_of(tmp_path))) == (Verdict.OK, f"orin-rerank-mini ({digest})")
    none = context_of(tmp_path, bundle=None, bundle_problem="no bundle is installed")
    assert said(check_bundle(paths, none)) == (Verdict.FAIL, "no bundle is installed")
    broken = tmp_path / "bundle"
    shutil.copytree(MINI, broken)
    (broken / "tokenizer.json").unlink()
    assert said(check_bundle(paths, context_of(tmp_path, bundle=broken))) == (
        Verdict.FAIL,
        f"{broken} lacks tokenizer.json",
    )
    (broken / "manifest.json").write_text("{")
    finding = check_bundle(paths, context_of(tmp_path, bundle=broken))
    assert finding.verdict is Verdict.FAIL
    assert finding.command == f"orin-rerank bundle verify {broken}"


def test_int8_is_missed_on_a_jetson(tmp_path: Path) -> None:
    paths = board(tmp_path)
    finding = check_int8(paths, context_of(tmp_path))
    assert finding is not None
    assert (finding.verdict, finding.command) == (Verdict.WARN, "orin-rerank calibrate")
    assert said(check_int8(make_pc(tmp_path / "pc"), context_of(tmp_path)))[0] is Verdict.OK
    full = context_of(tmp_path, engine=EngineSettings(precision=PrecisionChoice.FULL))
    assert check_int8(paths, full) is None


def test_int8_that_cannot_be_read(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    place = context.state / "engines" / Bundle.open(MINI).digest
    (place / "1-abc").mkdir(parents=True)
    (place / "current").symlink_to("1-abc")
    verdict, text = said(check_int8(board(tmp_path), context))
    assert verdict is Verdict.WARN
    assert text.startswith("cannot be read: ")


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A state folder with plans of the mini for the Orin of `WITH_GPU`, and JetPack as this machine has it."""
    context = context_of(tmp_path)
    assert WITH_GPU.tensorrt is not None
    assert WITH_GPU.gpu is not None
    store = PlanStore(context.state)
    target = CompileTarget(WITH_GPU.tensorrt, WITH_GPU.gpu)
    work = engine_to_compile(Bundle.open(MINI), Precision.FP16, context.engine, target, store)
    with store.staging(work.key, [plan.name for plan in work.plans]) as staged:
        for plan in work.plans:
            staged.path(plan.name).write_bytes(b"plan")
            staged.add(plan.name, 1.0)
        staged.install()
    return context.state


def test_plans_are_for_this_machine_as_it_is(tmp_path: Path, compiled: Path) -> None:
    paths = board(tmp_path)
    assert said(check_plans(paths, context_of(tmp_path))) == (Verdict.OK, "fp16, for this machine as it is")
    updated = MachineProbe("tensorrt 10.16.2", gpu=WITH_GPU.gpu)
    verdict, text = said(check_plans(paths, context_of(tmp_path, probe=updated)))
    assert verdict is Verdict.WARN
    assert "runtime: tensorrt 10.3.0, not tensorrt 10.16.2" in text
    other = context_of(tmp_path, engine=EngineSettings(max_tokens=512))
    assert "packs of other sizes" in said(check_plans(paths, other))[1]
    assert check_damage(paths, context_of(tmp_path)) is None
    manifest = next(compiled.glob("plans/*/fp16/*/manifest.json"))
    manifest.write_text("{")
    assert said(check_damage(paths, context_of(tmp_path)))[0] is Verdict.WARN


def test_no_plans(tmp_path: Path) -> None:
    paths = board(tmp_path)
    finding = check_plans(paths, context_of(tmp_path))
    assert said(finding) == (Verdict.WARN, "no fp16 plans are installed for this bundle")
    assert finding is not None
    assert finding.command == "orin-rerank build"
    assert check_plans(paths, context_of(tmp_path, probe=MachineProbe())) is None
    for_tests = MachineProbe("tensorrt_rtx 1.7.1", gpu=WITH_GPU.gpu)
    assert check_plans(paths, context_of(tmp_path, probe=for_tests)) is None


def test_int8_whose_gate_did_not_pass(bundle_folder: Path, tmp_path: Path) -> None:
    rng = random.Random(3)
    requests = [RerankInput([random_text(rng)], [[random_text(rng)], [noise_picture(1, 32, 64)]])]
    source = Bundle.open(bundle_folder)
    made = write_int8_bundle(source, tmp_path / "int8", requests)
    context = context_of(tmp_path, bundle=bundle_folder)
    for noise, verdict in ((1.0, Verdict.WARN), (0.1, Verdict.OK)):
        add_gate(made, noise)
        with EngineStore(context.state).staging(source.digest) as staged:
            shutil.copytree(made.folder, staged, dirs_exist_ok=True)
            EngineStore(context.state).install(source.digest, staged)
        finding = check_int8(board(tmp_path), context)
        assert said(finding)[0] is verdict
        assert finding is not None
        assert finding.text.startswith("its gate says: ") is (verdict is Verdict.WARN)
        assert finding.command == ("orin-rerank calibrate" if verdict is Verdict.WARN else None)


@pytest.mark.parametrize(
    ("engine", "plans", "missing"),
    [
        (EngineSettings(), "no fp16 plans are installed", True),
        (EngineSettings(precision=PrecisionChoice.FULL), "no fp16 plans are installed", True),
        (EngineSettings(precision=PrecisionChoice.INT8), None, True),
        (EngineSettings(device=DeviceChoice.CPU), None, True),
        (EngineSettings(device=DeviceChoice.CPU, precision=PrecisionChoice.FULL), None, False),
    ],
    ids=["auto", "full", "int8", "cpu", "cpu-full"],
)
def test_what_the_settings_do_not_ask_for_is_not_missed(
    tmp_path: Path, engine: EngineSettings, plans: str | None, *, missing: bool
) -> None:
    paths, context = board(tmp_path), context_of(tmp_path, engine=engine)
    finding = check_plans(paths, context)
    assert (finding is None) is (plans is None)
    assert finding is None or finding.text.startswith(plans or "")
    assert (missing_bytes(context) > 0) is missing
    without = context_of(tmp_path, engine=engine, probe=MachineProbe())
    assert (check_tensorrt(paths, without) is None) is (engine.device is DeviceChoice.CPU)
